"""Uneven classes: what each counts for in the loss, and how far its logits are moved."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

UNEVEN = 5  # largest class by the smallest, from which on something is said
HELPS = (
    "What helps is one of --set logit_adjustment=1, class_weights=balanced and sampling=balanced; judge by the "
    "balanced accuracy"
)
BETA = 0.999  # of the effective number of images: what one more adds, of the one before it (Cui et al., 2019)
Counts = NDArray[np.int64]
Reals = NDArray[np.float64]


def weights_of(counts: Counts, kind: Literal["balanced", "effective"] | Sequence[float]) -> Reals:
    """Give what each class counts for; a class without images, which nothing is learned of, counts for nothing.

    balanced: all images by K times those of the class. effective: 1 / (1 - BETA ** images), which add up to K (Cui et
    al., 2019, eq. 2). K counts the classes that have images.
    """
    if not isinstance(kind, str):
        return np.array(kind, dtype=np.float64)
    some = counts > 0
    each, classes = counts[some].astype(np.float64), int(some.sum())
    found = np.zeros(len(counts))
    if kind == "balanced":
        found[some] = each.sum() / (classes * each)
    else:
        inverse = 1 / -np.expm1(each * np.log(BETA))
        found[some] = inverse * classes / inverse.sum()
    return found


def log_priors(counts: Counts) -> Reals:
    """Give the logarithm of each class's share of the images (Menon et al., 2021); one image is the least."""
    return np.log(np.maximum(counts, 1) / max(int(counts.sum()), 1))


def imbalance(counts: Sequence[int]) -> float:
    """Give the largest class by the smallest; infinite where a class has none, 1 where there are no classes."""
    most, least = max(counts, default=0), min(counts, default=0)
    return 1.0 if not most else float(most / least) if least else float("inf")
