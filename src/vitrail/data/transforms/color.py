"""Colours of a batch of uint8 images, each image with a parameter of its own; what PIL computes, to the level.

Whole numbers, or real ones in steps that every device rounds alike: an image comes out the same in any batch.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

Images = UInt8[Tensor, "B C H W"]
Reals = Float[Tensor, " B"]
Wholes = Int[Tensor, " B"]

LUMA = (19595, 38470, 7471)  # ITU-R 601, of 65536
REACH = 3  # deviations of a Gaussian that are summed


def blend(base: Float[Tensor, "..."], images: Images, factor: Reals) -> Images:
    """Go from a base (0) to the image (1) and past it; cut off to whole levels, as PIL does."""
    real = images.to(torch.float32)
    return (base + factor[:, None, None, None] * (real - base)).clamp(0, 255).to(torch.uint8)


def brightness(images: Images, factor: Reals) -> Images:
    """Blend with black."""
    return blend(torch.zeros((), device=images.device), images, factor)


def contrast(images: Images, factor: Reals) -> Images:
    """Blend with the mean grey of the image."""
    gray = luma(images)
    pixels = gray[0].numel()
    mean = (2 * gray.flatten(1).sum(dim=1) + pixels) // (2 * pixels)
    return blend(mean.to(torch.float32)[:, None, None, None], images, factor)


def saturation(images: Images, factor: Reals) -> Images:
    """Blend with the image in grey; PIL calls it colour."""
    return blend(luma(images).to(torch.float32), images, factor)


def sharpness(images: Images, factor: Reals) -> Images:
    """Blend with the image smoothed by (1 1 1, 1 5 1, 1 1 1) / 13, its border left as it is."""
    if min(images.shape[-2:]) < 3:
        return images
    small = images.to(torch.int16)
    rows = small[:, :, :-2] + small[:, :, 1:-1] + small[:, :, 2:]  # B C H-2 W
    nine = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]  # B C H-2 W-2
    smooth = small.clone()
    smooth[:, :, 1:-1, 1:-1] = (2 * (nine + 4 * small[:, :, 1:-1, 1:-1]) + 13) // 26
    return blend(smooth.to(torch.float32), images, factor)


def grayscale(images: Images) -> Images:
    """Make all channels the grey of the image."""
    return luma(images).to(torch.uint8).expand_as(images)


def luma(images: Images) -> Int[Tensor, "B 1 H W"]:
    """Weigh red, green and blue to grey; other numbers of channels are averaged."""
    whole = images.to(torch.int32)
    if images.shape[1] != 3:
        return (2 * whole.sum(dim=1, keepdim=True, dtype=torch.int32) + images.shape[1]) // (2 * images.shape[1])
    red, green, blue = whole.split(1, dim=1)
    return (red * LUMA[0] + green * LUMA[1] + blue * LUMA[2] + 0x8000) >> 16


def autocontrast(images: Images) -> Images:
    """Stretch every channel from its darkest to its brightest level over all levels."""
    low, high = images.amin(dim=(2, 3), keepdim=True).to(torch.int32), images.amax(dim=(2, 3), keepdim=True)
    span = high - low
    return torch.where(span > 0, (images - low) * 255 // span.clamp(min=1), images).to(torch.uint8)


def equalize(images: Images) -> Images:
    """Spread the levels of every channel evenly, by PIL's table."""
    flat = images.flatten(2).to(torch.int64)  # B C HW
    ones = torch.ones((), dtype=torch.int32, device=images.device).expand_as(flat)
    counts = torch.zeros(*flat.shape[:2], 256, dtype=torch.int32, device=images.device).scatter_add_(2, flat, ones)
    brightest = counts.gather(2, flat.amax(dim=2, keepdim=True))
    step = (flat.shape[2] - brightest) // 255  # B C 1
    before = counts.cumsum(dim=2, dtype=torch.int32) - counts  # of darker pixels
    table = ((before + step // 2) // step.clamp(min=1)).clamp(max=255)
    same = torch.arange(256, dtype=torch.int32, device=images.device)
    table = torch.where(step > 0, table, same).to(torch.uint8)  # B C 256
    return table.gather(2, flat).unflatten(2, images.shape[2:])


def posterize(images: Images, bits: Wholes) -> Images:
    """Keep the highest bits of every level, 0 to 8."""
    mask = (0xFF << (8 - bits.clamp(0, 8))) & 0xFF
    return images & mask.to(torch.uint8)[:, None, None, None]


def solarize(images: Images, threshold: Wholes) -> Images:
    """Invert the levels from a threshold on, 0 (all) to 256 (none)."""
    return torch.where(images < threshold[:, None, None, None], images, 255 - images)


def solarize_add(images: Images, amount: Wholes, threshold: int = 128) -> Images:
    """Add to the levels below a threshold."""
    added = (images.to(torch.int16) + amount.to(torch.int16)[:, None, None, None]).clamp(0, 255).to(torch.uint8)
    return torch.where(images < threshold, added, images)


def invert(images: Images) -> Images:
    """Make dark what is bright."""
    return 255 - images


def blur(images: Images, deviation: Reals, most: float) -> Images:
    """Blur by Gaussians of these deviations in pixels, none above `most`, which the host knows; edges go on."""
    radius = max(int(REACH * most + 1), 1)
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float32, device=images.device)
    taps = torch.exp(-0.5 * (offsets / deviation.clamp(min=1e-3)[:, None]) ** 2)  # B taps
    taps = torch.where(offsets.abs() <= (REACH * deviation + 1)[:, None], taps, 0)
    taps = torch.round(taps / taps.sum(dim=1, keepdim=True) * 2**14) * 2.0**-14  # sums of these are exact
    real = images.to(torch.float32)
    for axis in (2, 3):
        pad = (0, 0, radius, radius) if axis == 2 else (radius, radius, 0, 0)
        wide = F.pad(real, pad, mode="replicate")
        length = images.shape[axis]
        total = torch.zeros_like(real)
        for place in range(2 * radius + 1):
            total = total + wide.narrow(axis, place, length) * taps[:, place, None, None, None]
        real = total.round()
    return real.clamp(0, 255).to(torch.uint8)
