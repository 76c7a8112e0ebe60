"""How good the probabilities of labels are, where an image may have several: average precision, thresholds, F1."""

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

Truths = Bool[np.ndarray, "N K"]
Scores = Float[np.ndarray, "N K"]


def average_precision(truths: NDArray[np.bool_], scores: NDArray[np.floating]) -> float:
    """Sum precision over the steps of recall, equal scores taken together (as scikit-learn); NaN where none is true."""
    wanted = int(truths.sum())
    if not wanted:
        return float("nan")
    right, found = _counts(truths, scores)[:2]
    recall = np.diff(right, prepend=0) / wanted
    return float((recall * right / found).sum())


def average_precisions(truths: Truths, scores: Scores) -> NDArray[np.float64]:
    """Give every label's; NaN of those that no image has."""
    pairs = zip(truths.T, scores.T, strict=True)
    return np.array([average_precision(*pair) for pair in pairs], dtype=np.float64)


def best_threshold(truths: NDArray[np.bool_], scores: NDArray[np.floating]) -> float:
    """Give the probability from which on to say a label, so that its F1 is highest; a half where none tells.

    It is halfway to the next lower score, so that what is as good stays in; of thresholds that are equally good, the
    highest.
    """
    if not truths.any() or truths.all():
        return 0.5
    right, found, ends = _counts(truths, scores)
    f1 = 2 * right / (found + int(truths.sum()))
    best = int(np.flatnonzero(f1 == f1.max())[0])
    order = np.sort(scores)[::-1].astype(np.float64)
    here = order[ends[best]]
    below = order[ends[best] + 1] if ends[best] + 1 < len(order) else 0.0
    middle = (here + below) / 2
    return float(middle if below < middle <= here else here)


def f1_scores(truths: Truths, said: Truths) -> NDArray[np.float64]:
    """Give every label's F1; NaN of those that are neither there nor said."""
    right = (truths & said).sum(axis=0)
    whole = truths.sum(axis=0) + said.sum(axis=0)
    return np.where(whole > 0, 2 * right / np.maximum(whole, 1), np.nan)


def mean_of(values: NDArray[np.float64]) -> float:
    """Give the mean of those that are known; 0 where none is."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0


def _counts(
    truths: NDArray[np.bool_], scores: NDArray[np.floating]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Count, at every score that occurs, those that are true and all that reach it; and the place of its last one."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)).astype(np.int64)
    return np.cumsum(truths[order], dtype=np.int64)[ends], ends + 1, ends
