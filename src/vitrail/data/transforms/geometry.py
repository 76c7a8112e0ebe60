"""Where pixels go: boxes of crops, and maps, cut-outs, crops and flips of a batch of uint8 images.

A map is six numbers (a, b, c, d, e, f), as of PIL's Image.transform: the new pixel whose centre is (x, y) shows what
was at (a x + b y + c, d x + e y + f); a pixel's centre is half a pixel from its corner. All are made on the CPU.

A random box is that of torchvision's RandomResizedCrop: the area is uniform and the aspect (width / height)
log-uniform; TensorFlow's sample_distorted_bounding_box draws the aspect and then the height uniformly, which favours
large areas less. Each of ten tries has its own numbers; where none fits, the largest central box within the limits of
the aspect is taken.
"""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.decode import Box
from vitrail.errors import ShapeError
from vitrail.ops.constants import upload

Images = UInt8[Tensor, "B C H W"]
Reals = NDArray[np.float64]
Wholes = NDArray[np.int64]
GRAY = 128
TRIES = 10
EACH = 4  # area, aspect, top, left
SLOTS = TRIES * EACH
BITS = 15  # of a weight: products with 8 bits, and their sums up to one, are exact in float32


def affine(
    images: Images,
    maps: Float[Tensor, "B 6"],
    mode: Literal["nearest", "bilinear"] = "nearest",
    fill: int = GRAY,
) -> Images:
    """Show every image through its map; what comes from outside is filled."""
    height, width = images.shape[-2:]
    rows = (torch.arange(height, device=images.device) + 0.5)[:, None]
    cols = torch.arange(width, device=images.device) + 0.5
    a, b, c, d, e, f = (part[:, None, None] for part in maps.to(torch.float32).unbind(dim=1))
    x, y = a * cols + b * rows + c, d * cols + e * rows + f  # B H W
    inside = ((x >= 0) & (x < width) & (y >= 0) & (y < height))[:, None]
    if mode == "nearest":
        return torch.where(inside, _pick(images, y, x), fill)
    x, y = x - 0.5, y - 0.5
    left, top = x.floor(), y.floor()
    right, down = (x - left)[:, None], (y - top)[:, None]  # B 1 H W
    above = torch.lerp(_pick(images, top, left).float(), _pick(images, top, left + 1).float(), right)
    below = torch.lerp(_pick(images, top + 1, left).float(), _pick(images, top + 1, left + 1).float(), right)
    return torch.where(inside, torch.lerp(above, below, down).round().to(torch.uint8), fill)


def _pick(images: Images, y: Float[Tensor, "B H W"], x: Float[Tensor, "B H W"]) -> Images:
    """Read the pixels that hold these places; outside, the nearest at the edge."""
    height, width = images.shape[-2:]
    index = y.clamp(0, height - 1).to(torch.int64) * width + x.clamp(0, width - 1).to(torch.int64)
    index = index.flatten(1)[:, None].expand(-1, images.shape[1], -1)  # B C HW
    return images.flatten(2).gather(2, index).unflatten(2, (height, width))


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


def crop_resize(
    images: Images, boxes: NDArray[np.int64], size: tuple[int, int], *, antialias: bool = True
) -> UInt8[Tensor, "B C h w"]:
    """Cut a box (top, left, height, width) out of every image and resize it, bilinear, in two products of matrices."""
    on_device = upload(boxes.astype(np.float32), images.device)
    rows = _weights(on_device[:, 0], on_device[:, 2], images.shape[2], size[0], antialias=antialias)
    cols = _weights(on_device[:, 1], on_device[:, 3], images.shape[3], size[1], antialias=antialias)
    with torch.autocast(images.device.type, enabled=False):
        wide = torch.einsum("bchw,bxw->bchx", images.to(torch.float32), cols).round()  # B C H w
        return torch.einsum("bchx,byh->bcyx", wide, rows).round().clamp(0, 255).to(torch.uint8)


def _weights(
    start: Float[Tensor, " B"], length: Float[Tensor, " B"], old: int, new: int, *, antialias: bool
) -> Float[Tensor, "B new old"]:
    """How much of each old pixel a new one takes: a triangle over the stretch, cut at its ends, in whole BITS."""
    scale = (length / new)[:, None, None]
    centers = start[:, None, None] + (torch.arange(new, device=start.device)[:, None] + 0.5) * scale  # B new 1
    pixels = torch.arange(old, device=start.device) + 0.5
    share = (1 - (pixels - centers).abs() / (scale.clamp(min=1) if antialias else 1)).clamp(min=0)
    within = (pixels > start[:, None, None]) & (pixels < (start + length)[:, None, None])
    share = torch.where(within, share, 0)  # B new old
    return torch.round(share / share.sum(dim=2, keepdim=True) * 2**BITS) * 2.0**-BITS


def inception_box(height: int, width: int, u: Reals, area: tuple[float, float], aspect: tuple[float, float]) -> Box:
    """Draw a box inside an image from one row of SLOTS numbers, or fewer for fewer tries; the first that fits."""
    _check(u[None], int(min(height, width)))
    low, high = np.log(aspect[0]), np.log(aspect[1])
    for share, slant, down, right in u.reshape(len(u) // EACH, EACH):  # mostly the first: faster than all at once
        target = (area[0] + share * (area[1] - area[0])) * height * width
        ratio = np.exp(low + slant * (high - low))
        tall, wide = int(np.rint(np.sqrt(target / ratio))), int(np.rint(np.sqrt(target * ratio)))
        if 1 <= tall <= height and 1 <= wide <= width:
            return Box(int(down * (height - tall + 1)), int(right * (width - wide + 1)), tall, wide)
    boxes = inception_boxes(np.array([height]), np.array([width]), u[None], area, aspect)
    return Box(*(int(side) for side in boxes[0]))


def inception_boxes(
    heights: Wholes, widths: Wholes, u: Reals, area: tuple[float, float], aspect: tuple[float, float]
) -> Wholes:
    """Draw a box (top, left, height, width) for each image; one row of numbers each."""
    _check(u, int(min(heights.min(), widths.min())) if len(heights) else 1)
    count = len(heights)
    tries = u.reshape(count, u.shape[1] // EACH, EACH)
    rows, cols = heights[:, None], widths[:, None]
    target = (area[0] + tries[:, :, 0] * (area[1] - area[0])) * rows * cols
    low, high = np.log(aspect[0]), np.log(aspect[1])
    ratio = np.exp(low + tries[:, :, 1] * (high - low))
    tall = np.rint(np.sqrt(target / ratio)).astype(np.int64)
    wide = np.rint(np.sqrt(target * ratio)).astype(np.int64)
    fits = (tall >= 1) & (tall <= rows) & (wide >= 1) & (wide <= cols)
    each, first = np.arange(count), fits.argmax(axis=1)
    tall, wide = tall[each, first], wide[each, first]
    top = np.floor(tries[each, first, 2] * (heights - tall + 1)).astype(np.int64)
    left = np.floor(tries[each, first, 3] * (widths - wide + 1)).astype(np.int64)
    found = np.stack([top, left, tall, wide], axis=1)
    return np.where(fits.any(axis=1)[:, None], found, _largest(heights, widths, aspect))


def _check(u: Reals, shortest: int) -> None:
    if u.ndim != 2 or u.shape[1] % EACH or not u.shape[1]:
        raise ShapeError(f"each try of a box takes {EACH} numbers; got an array of {u.shape}.")
    if shortest < 1:
        raise ShapeError("an image has at least one pixel; got a side of 0.")


def middle_box(height: int, width: int, aspect: float = 1.0, share: float = 1.0) -> Box:
    """Take the largest central box of an aspect (width / height), or a share of its sides."""
    if not 0 < share <= 1 or aspect <= 0:
        raise ShapeError(f"share must be above 0 and at most 1, and aspect positive; got {share} and {aspect}.")
    tall, wide = min(height, width / aspect) * share, min(width, height * aspect) * share
    rows, cols = max(round(tall), 1), max(round(wide), 1)
    return Box((height - rows) // 2, (width - cols) // 2, rows, cols)


def _largest(heights: Wholes, widths: Wholes, aspect: tuple[float, float]) -> Wholes:
    """Take the largest central box whose aspect is within limits."""
    tall = np.clip(np.rint(widths / aspect[0]).astype(np.int64), 1, heights)
    wide = np.clip(np.rint(heights * aspect[1]).astype(np.int64), 1, widths)
    return np.stack([(heights - tall) // 2, (widths - wide) // 2, tall, wide], axis=1)
