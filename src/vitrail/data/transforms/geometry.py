"""Where pixels go: boxes of crops, and maps, cut-outs and flips of a batch of uint8 images.

A map is six numbers (a, b, c, d, e, f), as of PIL's Image.transform: the new pixel whose centre is (x, y) shows what
was at (a x + b y + c, d x + e y + f); a pixel's centre is half a pixel from its corner. All are made on the CPU.

A random box is that of torchvision's RandomResizedCrop: the area is uniform and the aspect (width / height)
log-uniform; TensorFlow's sample_distorted_bounding_box draws the aspect and then the height uniformly, which favours
large areas less. Each of ten tries has its own numbers; where none fits, the largest central box within the limits of
the aspect is taken.
"""

import numpy as np
import torch
from jaxtyping import Float, Int, Num
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.decode import Box
from vitrail.errors import ShapeError

Images = Num[Tensor, "B C H W"]
Reals = NDArray[np.float64]
GRAY = 128
TRIES = 10
EACH = 4  # area, aspect, top, left
SLOTS = TRIES * EACH


def affine(images: Images, maps: Float[Tensor, "B 6"], fill: int = GRAY) -> Images:
    """Show every image through its map, by the nearest pixel; what comes from outside is filled."""
    height, width = images.shape[-2:]
    rows = (torch.arange(height, device=images.device) + 0.5)[:, None]
    cols = torch.arange(width, device=images.device) + 0.5
    a, b, c, d, e, f = (part[:, None, None] for part in maps.to(torch.float32).unbind(dim=1))
    x, y = a * cols + b * rows + c, d * cols + e * rows + f  # B H W
    inside = ((x >= 0) & (x < width) & (y >= 0) & (y < height))[:, None]
    index = y.clamp(0, height - 1).to(torch.int64) * width + x.clamp(0, width - 1).to(torch.int64)
    index = index.flatten(1)[:, None].expand(-1, images.shape[1], -1)  # B C HW
    return torch.where(inside, images.flatten(2).gather(2, index).unflatten(2, (height, width)), fill)


def rotations(degrees: Reals, height: int, width: int) -> Reals:
    """Maps that turn about the middle, counter-clockwise."""
    angle = np.radians(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = width / 2, height / 2
    return np.stack([cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y], axis=1)


def shears(horizontal: Reals, vertical: Reals) -> Reals:
    """Maps that slant about the centre of the first pixel, as TensorFlow's."""
    one = np.ones_like(horizontal)
    return np.stack([one, horizontal, -horizontal / 2, vertical, one, -vertical / 2], axis=1)


def translations(right: Reals, down: Reals) -> Reals:
    """Maps that move the image by pixels."""
    zero, one = np.zeros_like(right), np.ones_like(right)
    return np.stack([one, zero, -right, zero, one, -down], axis=1)


def inside(boxes: Float[Tensor, "B 4"], height: int, width: int) -> Tensor:
    """Tell which pixels are inside boxes (top, left, height, width): B 1 H W."""
    top, left, tall, wide = (part[:, None, None, None] for part in boxes.unbind(dim=1))
    rows, cols = torch.arange(height, device=boxes.device)[:, None], torch.arange(width, device=boxes.device)
    return (rows >= top) & (rows < top + tall) & (cols >= left) & (cols < left + wide)


def cutout(images: Images, boxes: Float[Tensor, "B 4"], fill: int = GRAY) -> Images:
    """Fill a box (top, left, height, width) of every image; it may reach over the edge (DeVries and Taylor, 2017)."""
    return torch.where(inside(boxes, *images.shape[-2:]), fill, images)


def flip(images: Images, which: Int[Tensor, " B"]) -> Images:
    """Mirror the images marked by a number other than zero."""
    return torch.where((which != 0)[:, None, None, None], images.flip(3), images)


def inception_boxes(height: int, width: int, u: Reals, area: tuple[float, float], aspect: tuple[float, float]) -> Reals:
    """Draw a box (top, left, height, width) of every row of numbers, as `inception_box` does; B 4, whole numbers."""
    low, high = np.log(aspect[0]), np.log(aspect[1])
    share, slant, down, right = np.moveaxis(u.reshape(len(u), u.shape[1] // EACH, EACH), 2, 0)  # B tries
    target = (area[0] + share * (area[1] - area[0])) * height * width
    ratio = np.exp(low + slant * (high - low))
    tall, wide = np.rint(np.sqrt(target / ratio)), np.rint(np.sqrt(target * ratio))
    fits = (tall >= 1) & (tall <= height) & (wide >= 1) & (wide <= width)
    tops, lefts = np.trunc(down * (height - tall + 1)), np.trunc(right * (width - wide + 1))
    chosen = np.stack([tops, lefts, tall, wide], axis=2)[np.arange(len(u)), fits.argmax(axis=1)]
    for place in np.flatnonzero(~fits.any(axis=1)):
        chosen[place] = inception_box(height, width, u[place], area, aspect)
    return chosen


def inception_box(height: int, width: int, u: Reals, area: tuple[float, float], aspect: tuple[float, float]) -> Box:
    """Draw a box inside an image from one row of SLOTS numbers, or fewer for fewer tries; the first that fits."""
    if u.ndim != 1 or len(u) % EACH or not len(u):
        raise ShapeError(f"each try of a box takes {EACH} numbers; got an array of {u.shape}.")
    if min(height, width) < 1:
        raise ShapeError("an image has at least one pixel; got a side of 0.")
    low, high = np.log(aspect[0]), np.log(aspect[1])
    for share, slant, down, right in u.reshape(len(u) // EACH, EACH):  # mostly the first: faster than all at once
        target = (area[0] + share * (area[1] - area[0])) * height * width
        ratio = np.exp(low + slant * (high - low))
        tall, wide = int(np.rint(np.sqrt(target / ratio))), int(np.rint(np.sqrt(target * ratio)))
        if 1 <= tall <= height and 1 <= wide <= width:
            return Box(int(down * (height - tall + 1)), int(right * (width - wide + 1)), tall, wide)
    tall = min(max(round(width / aspect[0]), 1), height)
    wide = min(max(round(height * aspect[1]), 1), width)
    return Box((height - tall) // 2, (width - wide) // 2, tall, wide)
