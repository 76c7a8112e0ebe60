"""How good answers are, counted: ranks, confusions, calibration, and how sure a share or a difference is."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

BINS = 15  # of confidence (Guo et al., 2017)
NORMAL = 1.959963984540054  # deviations within which 95 % of a normal distribution lie
LARGEST = 1e38  # of a logit: an infinite one is as good as this, whose differences are numbers still


def ranks_of(logits: Float[Tensor, "B K"], labels: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Count the classes before the true one, of equals the first first; -1 without a label or with a logit of NaN."""
    own = labels.clamp(min=0)[:, None]
    mine = logits.gather(1, own)
    first = torch.arange(logits.shape[1], device=logits.device) < own
    ranks = ((logits > mine) | ((logits == mine) & first)).sum(dim=1)
    return torch.where((labels >= 0) & ~logits.isnan().any(dim=1), ranks, -1)


def within(ranks: Int[Tensor, " B"], most: int) -> Bool[Tensor, " B"]:
    """Tell which true classes are among the first `most`."""
    return (ranks >= 0) & (ranks < most)


def first_classes(logits: Float[Tensor, "B K"], most: int) -> Int[Tensor, "B k"]:
    """Give the `most` best classes, or all, best first, of equals the first first; -1 where a logit is NaN."""
    order = logits.argsort(dim=1, descending=True, stable=True)[:, :most]
    return torch.where(logits.isnan().any(dim=1, keepdim=True), -1, order)


def bounded(logits: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """Make infinite logits large ones, so that they have probabilities; NaN stays."""
    return logits.float().clamp(-LARGEST, LARGEST)


def log_probabilities(logits: Float[Tensor, "B K"], temperature: float = 1.0) -> Float[Tensor, "B K"]:
    """Give the logarithms of the classes' probabilities: a softmax of the logits over the temperature."""
    return (bounded(logits) / temperature).log_softmax(dim=1)


COLDEST, HOTTEST = 0.05, 20.0  # temperatures


def fit_temperature(logits: Float[Tensor, "B K"], labels: Int[Tensor, " B"]) -> float:
    """Give the temperature under which the labels are likeliest (Guo et al., 2017), within 0.05 and 20.

    The likelihood is concave in the inverse of the temperature: its slope is bisected.
    """
    exact = bounded(logits).double()
    true = exact.gather(1, labels[:, None])[:, 0].mean()
    low, high = math.log(COLDEST), math.log(HOTTEST)
    while high - low > 1e-7:
        middle = (low + high) / 2
        shares = (exact / math.exp(middle)).softmax(dim=1)
        expected = torch.where(shares > 0, shares * exact, 0.0).sum(dim=1).mean()
        low, high = (low, middle) if true > expected else (middle, high)  # the true logits say more: colder
    return math.exp((low + high) / 2)


def confusion_matrix(labels: NDArray[np.int64], answers: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Count images by true class (rows) and answer (columns); what lacks either, -1, is in none."""
    sound = (labels >= 0) & (answers >= 0)
    cells = np.bincount(labels[sound] * classes + answers[sound], minlength=classes * classes)
    return cells.reshape(classes, classes)


@dataclass(frozen=True, kw_only=True)
class ClassCounts:
    """Images of each class, answers that name it, and answers that are right."""

    images: NDArray[np.int64]
    answered: NDArray[np.int64]
    right: NDArray[np.int64]

    @property
    def recall(self) -> NDArray[np.float64]:
        """The share of a class's images that are answered right; NaN where it has none."""
        return divide_counts(self.right, self.images)

    @property
    def precision(self) -> NDArray[np.float64]:
        """The share of the answers naming a class that are right; NaN where none does."""
        return divide_counts(self.right, self.answered)

    @property
    def f1(self) -> NDArray[np.float64]:
        """The harmonic mean of both; NaN where a class is neither there nor named."""
        return divide_counts(2 * self.right, self.images + self.answered)

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes that have images; 0 where none has."""
        return _mean(self.recall)

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the classes that have images or are named; 0 where there is none."""
        return _mean(self.f1)


def class_counts(labels: NDArray[np.int64], answers: NDArray[np.int64], classes: int) -> ClassCounts:
    """Count by class the images that have a label; an answer of -1 names none."""
    known = labels >= 0
    labels, answers = labels[known], answers[known]
    return ClassCounts(
        images=np.bincount(labels, minlength=classes),
        answered=np.bincount(answers[answers >= 0], minlength=classes),
        right=np.bincount(labels[labels == answers], minlength=classes),
    )


@dataclass(frozen=True, kw_only=True)
class Bin:
    """Answers whose confidence is over `low` and at most `high`; the first holds 0 too."""

    low: float
    high: float
    images: int
    confidence: float | None  # mean, of its images
    accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How far confidence is from accuracy: over bins, weighted by their images."""

    error: float
    bins: tuple[Bin, ...]


def calibration(confidences: NDArray[np.floating], right: NDArray[np.bool_], bins: int = BINS) -> Calibration:
    """Measure the expected calibration error in bins of equal width (Guo et al., 2017)."""
    sure = confidences.astype(np.float64)
    edges = np.arange(bins + 1) / bins
    places = np.clip(np.searchsorted(edges, sure, side="left") - 1, 0, bins - 1)
    counts = np.bincount(places, minlength=bins)
    means = divide_counts(np.bincount(places, sure, minlength=bins), counts)
    shares = divide_counts(np.bincount(places, right.astype(np.float64), minlength=bins), counts)
    table = tuple(
        Bin(
            low=float(edges[place]),
            high=float(edges[place + 1]),
            images=int(counts[place]),
            confidence=float(means[place]) if counts[place] else None,
            accuracy=float(shares[place]) if counts[place] else None,
        )
        for place in range(bins)
    )
    error = np.nansum(np.abs(means - shares) * counts) / max(len(sure), 1)
    return Calibration(error=float(error), bins=table)


def wilson(right: int, images: int) -> tuple[float, float]:
    """Give the 95 % interval of a share (Wilson, 1927); of nothing, all from 0 to 1."""
    if not images:
        return 0.0, 1.0
    share, more = right / images, NORMAL**2 / images
    middle = (share + more / 2) / (1 + more)
    half = NORMAL / (1 + more) * math.sqrt(share * (1 - share) / images + more / images / 4)
    return (0.0 if right == 0 else middle - half), (1.0 if right == images else middle + half)


def mean_interval(values: NDArray[np.floating]) -> tuple[float, float]:
    """Give the 95 % interval of a mean by Student's t; NaN of fewer than two values, which say nothing of it."""
    count = len(values)
    if count < 2:
        return math.nan, math.nan
    exact = values.astype(np.float64)
    half = student(count - 1) * float(exact.std(ddof=1)) / math.sqrt(count)
    return float(exact.mean()) - half, float(exact.mean()) + half


def student(freedom: int) -> float:
    """Give the deviations within which 95 % of Student's t lie: exact up to two, then by Fisher's series."""
    if freedom <= 2:
        return (12.706204736, 4.302652730)[freedom - 1]
    z, n = NORMAL, freedom
    series = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / n**power for power, term in enumerate(series))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two models on the same images: what each gets right, the difference (second less first), how sure it is."""

    both: int
    only_first: int
    only_second: int
    neither: int
    difference: float
    interval: tuple[float, float]  # of 95 %, of paired shares (Agresti and Min, 2005)
    p: float  # McNemar's, exact and two-sided: how likely so uneven a split is where both are equally good


def compare(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Comparison:
    """Compare what two models get right of the same images."""
    images = len(first)
    both, gained, lost = (int(part.sum()) for part in (first & second, ~first & second, first & ~second))
    # Half an image more in each of the four cells: an interval that holds for few images too.
    more, up, down = images + 2, gained + 0.5, lost + 0.5
    middle = (up - down) / more
    half = NORMAL * math.sqrt(up + down - (up - down) ** 2 / more) / more
    return Comparison(
        both=both,
        only_first=lost,
        only_second=gained,
        neither=images - both - gained - lost,
        difference=(gained - lost) / max(images, 1),
        interval=(max(middle - half, -1.0), min(middle + half, 1.0)),
        p=mcnemar(lost, gained),
    )


def mcnemar(one: int, other: int) -> float:
    """Give the exact two-sided p of two counts of a fair coin's sides; summed in whole numbers, rounded once."""
    tosses, term, total = one + other, 1, 0
    for heads in range(min(one, other) + 1):
        total += term  # term is `tosses` over `heads`
        term = term * (tosses - heads) // (heads + 1)
    return min(2 * total / 2**tosses, 1.0) if 2 * total < 2**tosses else 1.0


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0


def divide_counts(part: NDArray[np.generic], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """Divide counts; NaN where there is nothing to divide by."""
    given = np.full(len(whole), np.nan)
    return np.divide(part, whole, out=given, where=whole > 0)
