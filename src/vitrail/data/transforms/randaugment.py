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

from collections.abc import Callable
from typing import NamedTuple

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

EACH = 3  # numbers a layer: which operation; its sign or row; its column
SIDE = 224
WIDTH = 6  # parameters of an operation at most


class Drawn(NamedTuple):
    """What the numbers of a layer say: the magnitude in tens, and for each image a sign and a place."""

    share: float
    sign: Reals
    row: Reals
    col: Reals
    height: int
    width: int


class Operation(NamedTuple):
    """How an operation finds its parameters, and what it does with them to some images."""

    parameters: Callable[[Drawn], float | Reals]
    apply: Callable[[Images, Tensor], Images]


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
    drawn = Drawn(magnitude / 10, np.where(u[:, 1] < 0.5, 1.0, -1.0), u[:, 1], u[:, 2], height, width)
    table = np.zeros((len(u), WIDTH))
    for number, operation in enumerate(OPERATIONS.values()):
        chosen = which == number
        values = operation.parameters(drawn)
        table[chosen] = values[chosen] if isinstance(values, np.ndarray) else values
    return which, table


def _layer(images: Images, choice: NDArray[np.int64], parameters: Tensor) -> Images:
    """Apply one operation to each, given in the order of the operations; neighbours that are one function go as one."""
    done = torch.empty_like(images)
    functions = [operation.apply for operation in OPERATIONS.values()]
    numbers = [number for number, apply in enumerate(functions) if not number or apply is not functions[number - 1]]
    starts = [int(start) for start in np.searchsorted(choice, [*numbers, len(functions)])]
    for number, start, end in zip(numbers, starts[:-1], starts[1:], strict=True):
        if start < end:
            done[start:end] = functions[number](images[start:end], parameters[start:end])
    return done


def _factor(drawn: Drawn) -> float:
    return 0.1 + 1.8 * drawn.share


def _boxes(drawn: Drawn) -> Reals:
    tall, wide = (int(40 * drawn.share * side / SIDE) for side in (drawn.height, drawn.width))
    row, col = np.floor(drawn.row * drawn.height), np.floor(drawn.col * drawn.width)
    none = np.zeros_like(row)
    return np.stack([row - tall, col - wide, none + 2 * tall, none + 2 * wide, none, none], axis=1)


def _alone(function: Callable[[Images], Images]) -> Operation:
    return Operation(_factor, lambda images, _: function(images))


def _by_factor(function: Callable[[Images, Tensor], Images]) -> Operation:
    return Operation(_factor, lambda images, parameters: function(images, parameters[:, 0]))


def _by_levels(most: int, function: Callable[[Images, Tensor], Images]) -> Operation:
    """Take a whole number, so many tenths of the magnitude."""
    return Operation(
        lambda drawn: int(most * drawn.share),
        lambda images, parameters: function(images, parameters[:, 0].to(torch.int32)),
    )


def _by_map(parameters: Callable[[Drawn, Reals], Reals]) -> Operation:
    """Show an image through a map; the second argument is a zero for every image."""
    return Operation(lambda drawn: parameters(drawn, np.zeros_like(drawn.sign)), geometry.affine)


OPERATIONS = {  # chosen by their place; maps are neighbours, so that they go as one
    "autocontrast": _alone(color.autocontrast),
    "equalize": _alone(color.equalize),
    "invert": _alone(color.invert),
    "rotate": _by_map(lambda d, _: geometry.rotations(d.sign * 30 * d.share, d.height, d.width)),
    "shear_x": _by_map(lambda d, none: geometry.shears(d.sign * 0.3 * d.share, none)),
    "shear_y": _by_map(lambda d, none: geometry.shears(none, d.sign * 0.3 * d.share)),
    "translate_x": _by_map(lambda d, none: geometry.translations(d.sign * 100 * d.share * d.width / SIDE, none)),
    "translate_y": _by_map(lambda d, none: geometry.translations(none, d.sign * 100 * d.share * d.height / SIDE)),
    "posterize": _by_levels(4, color.posterize),
    "solarize": _by_levels(256, color.solarize),
    "solarize_add": _by_levels(110, color.solarize_add),
    "saturation": _by_factor(color.saturation),
    "contrast": _by_factor(color.contrast),
    "brightness": _by_factor(color.brightness),
    "sharpness": _by_factor(color.sharpness),
    "cutout": Operation(_boxes, lambda images, parameters: geometry.cutout(images, parameters[:, :4])),
}
