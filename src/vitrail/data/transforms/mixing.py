"""Two images in one: Mixup (Zhang et al., 2018) and CutMix (Yun et al., 2019), without a batch's say in it.

Partners are found inside fixed blocks of the global order, so that a batch mixes alike however its blocks are split
over micro-batches and ranks. Each pair has its own weight, from Beta(alpha, alpha) by the inverse of its distribution:
a table, made once for an alpha by bisection, and straight lines between its entries.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.transforms.geometry import inside
from vitrail.errors import ConfigError

Reals = NDArray[np.float64]
Wholes = NDArray[np.int64]

SLOTS = 4  # which of the two; the weight; row and column of the box
KNOTS = 4096
TERMS = 4000  # of the series at most
_LEVELS = 0.5 * np.linspace(0, 1, KNOTS + 1) ** 4  # denser where the distribution begins


class Mix(NamedTuple):
    """How each image is mixed: its partner's place in the batch, its own share, and the box that is the partner's."""

    partner: Wholes
    weight: Reals
    boxes: Reals


def partners(places: NDArray[np.integer], block: int, absent: NDArray[np.integer] | None = None) -> Wholes:
    """Give each sample's partner as an index of the batch: the next of its block of the global order, round and round.

    The last block may be short; it pairs inside itself. `absent` are places whose images could not be decoded: their
    blocks are whole without them.
    """
    _check_whole(places if absent is None else np.concatenate([places, absent]), block)
    order = np.argsort(places, kind="stable")
    number = np.asarray(places, dtype=np.int64)[order] // block
    first = np.flatnonzero(np.diff(number, prepend=-1))  # where blocks start
    sizes = np.diff(first, append=len(order))
    start, size = np.repeat(first, sizes), np.repeat(sizes, sizes)
    offset = np.arange(len(order)) - start
    found = np.empty(len(order), dtype=np.int64)
    found[order] = order[start + (offset + 1) % size]
    return found


def _check_whole(places: NDArray[np.integer], block: int) -> None:
    number, place = np.divmod(np.sort(np.asarray(places, dtype=np.int64)), block)
    first = np.flatnonzero(np.diff(number, prepend=-1))
    sizes = np.diff(first, append=len(number))
    if not np.array_equal(np.arange(len(number)) - np.repeat(first, sizes), place) or (sizes[:-1] != block).any():
        raise ConfigError(
            f"samples mix inside blocks of {block}, which must be whole in a batch, the last excepted; got places "
            f"{', '.join(map(str, places[:8].tolist()))}{', ...' if len(places) > 8 else ''}. "
            "Make the batch of every step and rank a multiple of mix_block."
        )


def plan(
    places: NDArray[np.integer],
    block: int,
    u: Reals,
    mixup: float,
    cutmix: float,
    size: tuple[int, int],
    absent: NDArray[np.integer] | None = None,
) -> Mix:
    """Decide how to mix from numbers (B SLOTS): by Mixup, by CutMix, or, where both have an alpha, by either's turn."""
    count = len(places)
    cuts = (u[:, 0] < 0.5) if mixup and cutmix else np.full(count, cutmix > 0)
    weight, boxes = np.ones(count), np.zeros((count, 4))
    if mixup:
        drawn = beta(u[:, 1], mixup)
        weight = np.where(cuts, weight, np.maximum(drawn, 1 - drawn))  # the larger part is the image's own
    if cutmix:
        boxes[cuts] = cut_boxes(u[cuts, 1:], cutmix, size)
        weight = np.where(cuts, 1 - boxes[:, 2] * boxes[:, 3] / (size[0] * size[1]), weight)
    return Mix(partners(places, block, absent), weight, boxes)


def cut_boxes(u: Reals, alpha: float, size: tuple[int, int]) -> Reals:
    """Draw boxes (top, left, height, width) of a share from Beta(alpha, alpha), cut at the edges."""
    side = np.sqrt(1 - beta(u[:, 0], alpha))
    edges = []
    for axis, length in enumerate(size):
        half, center = np.rint(side * length) / 2, np.floor(u[:, 1 + axis] * length)
        edges.append((np.clip(np.floor(center - half), 0, length), np.clip(np.floor(center + half), 0, length)))
    (top, bottom), (left, right) = edges
    return np.stack([top, left, bottom - top, right - left], axis=1)


def mixup(
    images: Float[Tensor, "B C H W"], other: Float[Tensor, "B C H W"], weight: Float[Tensor, " B"]
) -> Float[Tensor, "B C H W"]:
    """Add images and their partners, weighted."""
    own = weight[:, None, None, None]
    return own * images + (1 - own) * other


def cutmix(
    images: Float[Tensor, "B C H W"], other: Float[Tensor, "B C H W"], boxes: Float[Tensor, "B 4"]
) -> Float[Tensor, "B C H W"]:
    """Show the partner inside a box."""
    return torch.where(inside(boxes, *images.shape[-2:]), other, images)


def soft_targets(
    labels: Int[Tensor, " B"], other: Int[Tensor, " B"], weight: Float[Tensor, " B"], classes: int
) -> Float[Tensor, "B K"]:
    """Give each class the share of the image that is of it; what has no label, -1, is of none."""
    targets = torch.zeros(len(labels), classes, dtype=torch.float32, device=labels.device)
    own = weight.to(torch.float32)
    if classes:
        for label, share in ((labels, own), (other, 1 - own)):
            place = label.to(torch.int64).clamp(min=0)
            targets.scatter_add_(1, place[:, None], (share * (label >= 0))[:, None])
    return targets


def between(
    targets: Float[Tensor, "B K"], other: Float[Tensor, "B K"], weight: Float[Tensor, " B"]
) -> Float[Tensor, "B K"]:
    """Mix several labels or numbers as the images are: what both have stays as it is."""
    own = weight.to(torch.float32)[:, None]
    return torch.where(targets == other, targets, own * targets + (1 - own) * other)


def beta(u: Reals, alpha: float) -> Reals:
    """Turn uniform numbers into numbers of Beta(alpha, alpha), rising; off by less than 1e-3."""
    if alpha <= 0:
        raise ConfigError(f"alpha must be positive; got {alpha}.")
    low = np.minimum(u, 1 - u)  # the distribution is its own mirror image
    half = np.interp(low, _LEVELS, _quantiles(float(alpha)))
    return np.where(u < 0.5, half, 1 - half)


@cache
def _quantiles(alpha: float) -> Reals:
    """Find where the distribution reaches each of the levels from 0 to a half."""
    low, high = np.zeros_like(_LEVELS), np.full_like(_LEVELS, 0.5)
    for _ in range(50):
        middle = (low + high) / 2
        under = distribution(middle, alpha) < _LEVELS
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    high[0] = 0.0
    return high


def distribution(x: Reals, alpha: float) -> Reals:
    """The regularised incomplete beta function I_x(alpha, alpha) up to a half, by its series of positive terms."""
    total, term = np.ones_like(x), np.ones_like(x)
    for step in range(TERMS):
        term = term * x * (2 * alpha + step) / (alpha + 1 + step)
        total = total + term
        if (term < 1e-15 * total).all():
            break
    scale = 2 * math.lgamma(alpha) - math.lgamma(2 * alpha) + math.log(alpha)
    with np.errstate(divide="ignore"):
        return np.exp(alpha * (np.log(x) + np.log1p(-x)) - scale) * total
