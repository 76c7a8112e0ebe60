"""Where pixels go: affine maps, cut-outs, crops and flips of a batch of uint8 images, each with its own parameters.

A map is six numbers (a, b, c, d, e, f), as of PIL's Image.transform: the new pixel whose centre is (x, y) shows what
was at (a x + b y + c, d x + e y + f); a pixel's centre is half a pixel from its corner. Maps are made on the CPU.
"""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.transforms.upload import upload

Images = UInt8[Tensor, "B C H W"]
Reals = NDArray[np.float64]
GRAY = 128
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
