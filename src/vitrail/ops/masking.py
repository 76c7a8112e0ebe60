"""Which patches are hidden: exact shares, chosen by given random numbers (Appendix B.1.2; He et al., 2022)."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, Shaped
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config.objective import count_of
from vitrail.errors import ShapeError

MASK, OTHER, KEPT = 0, 1, 2  # what becomes of a corrupted patch
EACH = 3  # numbers a patch: its rank, its kind, the other patch


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
