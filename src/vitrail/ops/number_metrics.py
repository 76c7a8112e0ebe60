"""How near numbers are to the true ones, and answers in ordered classes to theirs."""

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

Numbers = Float[np.ndarray, "N K"]
Reals = NDArray[np.float64]


def absolute_errors(truths: Numbers, found: Numbers) -> Reals:
    """Give the mean absolute error of every number."""
    return np.abs(found - truths).mean(axis=0)


def root_squares(truths: Numbers, found: Numbers) -> Reals:
    """Give the root of the mean squared error of every number."""
    return np.sqrt(np.square(found - truths).mean(axis=0))


def determinations(truths: Numbers, found: Numbers) -> Reals:
    """Give R2 of every number, 1 less the squared errors by those of the mean; NaN where it is always the same."""
    spread = np.square(truths - truths.mean(axis=0)).sum(axis=0)
    left = np.square(found - truths).sum(axis=0)
    return np.where(spread > 0, 1 - left / np.where(spread > 0, spread, 1), np.nan)


def correlations(truths: Numbers, found: Numbers) -> Reals:
    """Give Pearson's correlation of every number; NaN where either is always the same."""
    one, other = truths - truths.mean(axis=0), found - found.mean(axis=0)
    scale = np.sqrt(np.square(one).sum(axis=0) * np.square(other).sum(axis=0))
    return np.where(scale > 0, (one * other).sum(axis=0) / np.where(scale > 0, scale, 1), np.nan)


def ranked(values: Numbers) -> Numbers:
    """Give the place of every value among those of its column; equal ones share the mean of theirs."""
    found = np.empty_like(values, dtype=np.float64)
    for column in range(values.shape[1]):
        _, places, counts = np.unique(values[:, column], return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        found[:, column] = (ends - (counts - 1) / 2)[places]
    return found


def rank_correlations(truths: Numbers, found: Numbers) -> Reals:
    """Give Spearman's correlation of every number: Pearson's of the ranks."""
    return correlations(ranked(truths), ranked(found))


def weighted_kappa(confusion: Int[np.ndarray, "K K"]) -> float:
    """Give Cohen's kappa with squared distances of classes as weights; NaN where all is one class."""
    count = confusion.astype(np.float64)
    total, places = count.sum(), np.arange(len(count))
    weights = np.square(places[:, None] - places[None, :]).astype(np.float64)
    expected = count.sum(axis=1)[:, None] * count.sum(axis=0)[None, :] / max(total, 1)
    chance = float((weights * expected).sum())
    return 1 - float((weights * count).sum()) / chance if chance > 0 else float("nan")
