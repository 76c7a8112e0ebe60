"""RandAugment (Cubuk et al., 2020): in each layer an operation, one of sixteen, with one magnitude for all.

From magnitude to parameter, as big_vision has it (AutoAugment's scale, of which 10 was the most; magnitudes go past):

| operation                                | at magnitude m              | at 15     |
|------------------------------------------|-----------------------------|-----------|
| autocontrast, equalize, invert           | -                           |           |
| rotate                                   | +- 30 m / 10 degrees        | 45        |
| posterize                                | whole(4 m / 10) bits left   | 6         |
| solarize                                 | from level 256 m / 10       | none      |
| solarize_add                             | 110 m / 10 levels, below 128 | 165      |
| colour, contrast, brightness, sharpness  | factor 0.1 + 1.8 m / 10     | 2.8       |
| shear_x, shear_y                         | +- 0.3 m / 10               | 0.45      |
| translate_x, translate_y                 | +- 100 m / 10 pixels of 224 | 150       |
| cutout                                   | 40 m / 10 pixels of 224 each way | 60   |

Two things are not as there: pixels are of an image of 224 and scale with the side, since 150 pixels empty a small
image; and contrast turns about the image's mean, as in PIL, where that code has its number of pixels / 256.
What comes from outside is grey, and maps take the nearest pixel.
"""

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config.recipe import RandAugment
from vitrail.data.transforms import color, geometry
from vitrail.errors import ShapeError
from vitrail.ops.constants import upload

Images = UInt8[Tensor, "B C H W"]
Reals = NDArray[np.float64]

OPERATIONS = (
    "autocontrast",
    "equalize",
    "invert",
    "rotate",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "posterize",
    "solarize",
    "solarize_add",
    "saturation",
    "contrast",
    "brightness",
    "sharpness",
    "cutout",
)
MAPS = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")  # neighbours above, so that they go as one
EACH = 3  # numbers a layer: which operation; its sign or row; its column
SIDE = 224
WIDTH = 6  # parameters of an operation at most


def slots(config: RandAugment) -> int:
    """How many numbers an image takes."""
    return EACH * config.layers


def randaugment(images: Images, u: Reals, config: RandAugment) -> Images:
    """Apply random operations to every image; each row of numbers decides for its image alone.

    Images are sorted by operation, so that a layer is one gather and a few calls on neighbours; the order of all layers
    and their parameters go to the device in two copies.
    """
    if u.shape != (len(images), slots(config)):
        raise ShapeError(f"expected {slots(config)} numbers for each of {len(images)} images; got {u.shape}.")
    height, width = images.shape[-2:]
    choices, orders, tables = [], [], []
    last = np.arange(len(images))  # the image at each place
    for layer in range(config.layers):
        which, table = plan(u[:, layer * EACH : (layer + 1) * EACH], config.magnitude, height, width)
        order = np.argsort(which, kind="stable")
        choices.append(which[order])
        tables.append(table[order])
        orders.append(np.argsort(last)[order])  # where these images are now
        last = order
    orders.append(np.argsort(last))
    moves = upload(np.stack(orders), images.device)
    parameters = upload(np.stack(tables).astype(np.float32), images.device)
    for layer, choice in enumerate(choices):
        images = _layer(images.index_select(0, moves[layer]), choice, parameters[layer])
    return images.index_select(0, moves[config.layers])


def plan(u: Reals, magnitude: float, height: int, width: int) -> tuple[NDArray[np.int64], Reals]:
    """Choose an operation (its number) and its parameters (B WIDTH, the rest zero) for every image."""
    which = np.floor(u[:, 0] * len(OPERATIONS)).astype(np.int64)
    share = magnitude / 10
    sign = np.where(u[:, 1] < 0.5, 1.0, -1.0)
    none = np.zeros(len(u))
    tall, wide = int(40 * share * height / SIDE), int(40 * share * width / SIDE)
    row, col = np.floor(u[:, 1] * height), np.floor(u[:, 2] * width)
    table = np.zeros((len(u), WIDTH))
    made = {
        "rotate": geometry.rotations(sign * 30 * share, height, width),
        "shear_x": geometry.shears(sign * 0.3 * share, none),
        "shear_y": geometry.shears(none, sign * 0.3 * share),
        "translate_x": geometry.translations(sign * 100 * share * width / SIDE, none),
        "translate_y": geometry.translations(none, sign * 100 * share * height / SIDE),
        "posterize": int(4 * share),
        "solarize": int(256 * share),
        "solarize_add": int(110 * share),
        "cutout": np.stack([row - tall, col - wide, none + 2 * tall, none + 2 * wide, none, none], axis=1),
    }
    for number, name in enumerate(OPERATIONS):
        chosen = which == number
        values = made.get(name, 0.1 + 1.8 * share)
        table[chosen] = values[chosen] if isinstance(values, np.ndarray) else values
    return which, table


def _layer(images: Images, choice: NDArray[np.int64], parameters: Tensor) -> Images:
    """Apply one operation to each, given in the order of the operations."""
    done = torch.empty_like(images)
    numbers = [OPERATIONS.index(name) for name in OPERATIONS if name not in MAPS[1:]]
    starts = [int(start) for start in np.searchsorted(choice, [*numbers, len(OPERATIONS)])]
    for number, start, end in zip(numbers, starts[:-1], starts[1:], strict=True):
        if start < end:
            done[start:end] = _apply(OPERATIONS[number], images[start:end], parameters[start:end])
    return done


def _apply(name: str, images: Images, parameters: Tensor) -> Images:
    """Apply an operation to all of these images."""
    first = parameters[:, 0]
    match name:
        case "autocontrast":
            return color.autocontrast(images)
        case "equalize":
            return color.equalize(images)
        case "invert":
            return color.invert(images)
        case "rotate":
            return geometry.affine(images, parameters)
        case "posterize":
            return color.posterize(images, first.to(torch.int32))
        case "solarize":
            return color.solarize(images, first.to(torch.int32))
        case "solarize_add":
            return color.solarize_add(images, first.to(torch.int32))
        case "cutout":
            return geometry.cutout(images, parameters[:, :4])
        case "saturation":
            return color.saturation(images, first)
        case "contrast":
            return color.contrast(images, first)
        case "brightness":
            return color.brightness(images, first)
        case "sharpness":
            return color.sharpness(images, first)
    raise AssertionError(f"no operation {name!r}")
