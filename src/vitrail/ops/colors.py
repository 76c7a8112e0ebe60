"""Colours as classes: three bits a channel, 512 in all (Appendix B.1.2)."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import ShapeError
from vitrail.ops.patches import patchify

BITS = 3
SIDES = 8  # steps of a channel
COLORS = SIDES**3
STEP = 256 / SIDES  # levels
SMALL = 4  # sides of a downsized patch
SLACK = 1e-4  # levels, by which whole ones that were scaled and scaled back may lie too low


def color_classes(levels: Float[Tensor, "... 3"]) -> Int64[Tensor, "..."]:
    """Give the class of colours, in levels from 0 to 255: the three highest bits of red, green and blue."""
    if levels.shape[-1] != 3:
        raise ShapeError(f"a colour is red, green and blue; got {levels.shape[-1]} channels. Take images of three.")
    steps = ((levels + SLACK) / STEP).floor().clamp(0, SIDES - 1).long()  # ... 3
    return (steps[..., 0] * SIDES + steps[..., 1]) * SIDES + steps[..., 2]


def class_colors(device: torch.device | None = None) -> Float[Tensor, "512 3"]:
    """Give the middle of every class, in levels."""
    numbers = torch.arange(COLORS, device=device)
    steps = torch.stack([numbers // SIDES**2, numbers // SIDES % SIDES, numbers % SIDES], dim=1)
    return (steps + 0.5) * STEP


def mean_colors(levels: Float[Tensor, "B 3 H W"], patch: int) -> Int64[Tensor, "B N"]:
    """Give the class of every patch's mean colour."""
    flat = patchify(levels, patch)  # B N PPC
    return color_classes(flat.unflatten(2, (patch * patch, levels.shape[1])).mean(dim=2))


def small_colors(levels: Float[Tensor, "B 3 H W"], patch: int) -> Int64[Tensor, "B N 16"]:
    """Give the classes of every patch made 4 x 4, each a mean over what it covers, row by row."""
    images, channels = levels.shape[:2]
    flat = patchify(levels, patch)  # B N PPC
    pictures = flat.unflatten(2, (patch, patch, channels)).permute(0, 1, 4, 2, 3).flatten(0, 1)  # BN C P P
    small = F.adaptive_avg_pool2d(pictures, (SMALL, SMALL)).flatten(2).transpose(1, 2)  # BN 16 C
    return color_classes(small).unflatten(0, (images, flat.shape[1]))
