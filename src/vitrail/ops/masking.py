"""What is hidden of an image, by given random numbers, and the colours predicted in its place (Appendix B.1.2)."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.config.objective import count_of
from vitrail.errors import ShapeError
from vitrail.ops.patches import patchify

MASK, OTHER, KEPT = 0, 1, 2  # what becomes of a corrupted patch
EACH = 3  # numbers a patch: its rank, its kind, the other patch
SIDES = 8  # steps of a channel
COLORS = SIDES**3
STEP = 256 / SIDES  # levels
SMALL = 4  # sides of a downsized patch
SLACK = 1e-4  # levels, by which whole ones that were scaled and scaled back may lie too low
ROUNDS = 10  # after which a palette hardly changes
CHUNK = 1 << 15  # colours that are compared at a time


class Corruption(NamedTuple):
    """What becomes of some patches of every image."""

    patches: Int64[NDArray, "B M"]  # which, in rising order
    kinds: Int64[NDArray, "B M"]  # MASK, OTHER or KEPT
    others: Int64[NDArray, "B M"]  # whose embedding comes in its place, where it is OTHER; never its own


def choose_patches(u: Float[NDArray, "B N"], count: int) -> Int64[NDArray, "B M"]:
    """Choose exactly so many patches of every image, each as likely, in rising order."""
    return np.sort(np.argsort(u, axis=1, kind="stable")[:, :count], axis=1)


def choose_visible(u: Float[NDArray, "B N"], masked: float) -> tuple[Int64[NDArray, "B V"], Int64[NDArray, "B M"]]:
    """Part the patches of every image, each in rising order: those that are seen, and a share that is hidden."""
    seen = u.shape[1] - count_of(masked, u.shape[1])
    order = np.argsort(u, axis=1, kind="stable")
    return np.sort(order[:, :seen], axis=1), np.sort(order[:, seen:], axis=1)


def take(rows: Shaped[Tensor, "B N D"], places: Int64[Tensor, "B M"]) -> Shaped[Tensor, "B M D"]:
    """Take these rows of every image."""
    return rows.gather(1, _across(places, rows.shape[2]))


def put(
    rows: Float[Tensor, "B N D"], places: Int64[Tensor, "B M"], others: Float[Tensor, "B M D"]
) -> Float[Tensor, "B N D"]:
    """Give the rows with others in these places."""
    return rows.scatter(1, _across(places, rows.shape[2]), others)


def _across(places: Int64[Tensor, "B M"], width: int) -> Int64[Tensor, "B M D"]:
    return places[:, :, None].expand(-1, -1, width)


def plan_corruption(u: Float[NDArray, "B N3"], share: float, masked: float, replaced: float) -> Corruption:
    """Choose a share of the patches, rounded to whole ones, and what becomes of each: masked, another's, or kept.

    `u` are three numbers a patch. The shares of the kinds are probabilities: 0.8 and 0.1 in the paper, the rest kept.
    """
    if u.shape[1] % EACH:
        raise ShapeError(f"expected {EACH} numbers for every patch; got {u.shape[1]} an image.")
    count = u.shape[1] // EACH
    rank, kind, other = (u[:, part * count : (part + 1) * count] for part in range(EACH))
    patches = choose_patches(rank, count_of(share, count))
    luck = np.take_along_axis(kind, patches, axis=1)
    kinds = np.where(luck < masked, MASK, np.where(luck < masked + replaced, OTHER, KEPT))
    steps = 1 + np.floor(np.take_along_axis(other, patches, axis=1) * max(count - 1, 1)).astype(np.int64)
    return Corruption(patches, kinds.astype(np.int64), (patches + steps) % count)


def corrupt(
    embeddings: Float[Tensor, "B N D"],
    mask: Float[Tensor, " D"],
    patches: Int64[Tensor, "B M"],
    kinds: Int64[Tensor, "B M"],
    others: Int64[Tensor, "B M"],
) -> Float[Tensor, "B N D"]:
    """Put the mask, another patch's embedding, or its own in the place of each of these patches."""
    own, another = take(embeddings, patches), take(embeddings, others)
    which = kinds[:, :, None]
    taken = torch.where(which == MASK, mask.to(own.dtype), torch.where(which == OTHER, another, own))
    return put(embeddings, patches, taken)


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


def nearest(colors: Float[Tensor, "n C"], palette: Float[Tensor, "K C"]) -> Int64[Tensor, " n"]:
    """Give the number of the palette's nearest colour, the first of several."""
    lengths = palette.square().sum(dim=1) / 2
    parts = [(lengths - part @ palette.T).argmin(dim=1) for part in colors.split(CHUNK)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=colors.device)


def make_palette(colors: Float[Tensor, "n C"], count: int, *, seed: int) -> Float[Tensor, "count C"]:
    """Find `count` colours that lie near to these (k-means), from a random choice of them on."""
    generator = torch.Generator().manual_seed(seed)
    distinct = torch.unique(colors, dim=0)
    order = torch.randperm(len(distinct), generator=generator)
    palette = distinct[order[torch.arange(count) % len(distinct)]].clone()
    for _ in range(ROUNDS):
        mine = nearest(colors, palette)
        counts = torch.bincount(mine, minlength=count)
        sums = torch.zeros_like(palette, dtype=torch.float64).index_add_(0, mine, colors.double())
        used = counts > 0  # one that is nobody's stays where it is
        palette[used] = (sums[used] / counts[used, None]).to(palette.dtype)
    return palette
