"""Few-shot evaluation of frozen features (Section 4.1): a linear classifier of a few images of every class."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config.check import not_negative, one_of, positive, whole
from vitrail.data.sources.memory import checked_labels
from vitrail.errors import ConfigError, DataError
from vitrail.ops.probes import fit_logistic, in_parts, neighbor_votes, solve

Features = NDArray[Any] | Tensor | Sequence[Sequence[float]]
Labels = NDArray[Any] | Tensor | Sequence[int]
PAPER_L2 = 1024.0
SWEEP = tuple(2.0**power for power in range(-4, 21, 2))  # of l2
NEIGHBORS, TEMPERATURE = 20, 0.07  # as Wu et al. and their followers vote
LOGISTIC_L2 = 1e-3
PROBES = ("ridge", "knn", "logistic")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured: how many images of every class, drawn how often, and by which probes."""

    shots: tuple[int | None, ...] = (1, 5, 10, 25)  # None: all images
    seeds: tuple[int, ...] = (0, 1, 2)
    l2: float = PAPER_L2
    probes: tuple[str, ...] = PROBES
    neighbors: int = NEIGHBORS
    logistic_l2: float = LOGISTIC_L2

    def __post_init__(self) -> None:
        for name in ("shots", "seeds", "probes"):
            if not (given := getattr(self, name)) or len(set(given)) < len(given):
                raise ConfigError(f"{name} must be one or more, each once; got {given!r}.")
        for shots in self.shots:
            if shots is not None:
                whole("shots", shots)
        for seed in self.seeds:
            whole("seeds", seed, least=0)
        for probe in self.probes:
            one_of("probes", probe, PROBES)
        whole("neighbors", self.neighbors)
        not_negative("l2", self.l2)
        positive("logistic_l2", self.logistic_l2)

    def seeds_of(self, shots: int | None) -> tuple[int, ...]:
        """Give the draws of so many shots; all images are one draw."""
        return self.seeds if shots is not None else self.seeds[:1]


def fewshot(
    train_features: Features,
    train_labels: Labels,
    test_features: Features,
    test_labels: Labels,
    *,
    shots: int,
    classes: int | None = None,
    seed: int = 0,
    l2: float = PAPER_L2,
) -> float:
    """Give the share of test rows that least squares from `shots` training rows of every class gets right.

    Rows of a class are the first of a permutation by `numpy.random.default_rng(seed)`, which runs on over the classes
    in their order; a class that has fewer gives all that it has. `classes` are as many as the labels name, unless said.
    """
    if classes is None:
        classes = 1 + max(int(max(labels, default=0)) for labels in (train_labels, test_labels))
    train = _checked("train", train_features, train_labels, classes)
    test = _checked("test", test_features, test_labels, classes)
    if train[0].shape[1] != test[0].shape[1]:
        raise ConfigError(
            f"train and test features must be as wide; got {train[0].shape[1]} and {test[0].shape[1]}. "
            "Take both from one model."
        )
    chosen = choose_shots(train[1].numpy(), classes=classes, shots=whole("shots", shots), seed=seed)
    ridge = solve(train[0][chosen], train[1][chosen], classes)
    not_negative("l2", l2)
    return _accuracy(lambda rows: ridge.scores(ridge.project(rows), l2), *test, classes)


def choose_shots(labels: NDArray[np.int64], *, classes: int, shots: int | None, seed: int) -> NDArray[np.int64]:
    """Give the numbers of the rows to learn from, class by class; all of them where `shots` is None."""
    if shots is None:
        return np.flatnonzero(labels >= 0)
    generator = np.random.default_rng(whole("seed", seed, least=0))
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(classes + 1))
    each = (order[low:high] for low, high in pairwise(ends.tolist()))
    return np.concatenate([generator.permutation(rows)[:shots] for rows in each])


def measure_probes(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], *, classes: int, settings: Settings
) -> tuple[dict[str, float], dict[float, float]]:
    """Give the accuracy of every probe, and that of least squares by its l2; of features and labels of both sets."""
    features, labels = train
    others, answers = test
    accuracy: dict[str, float] = {}
    sweep: dict[float, float] = {}
    if "ridge" in settings.probes:
        ridge = solve(features, labels, classes)
        projected = ridge.project(others)
        for l2 in sorted({*SWEEP, settings.l2}):
            sweep[l2] = _accuracy(partial(ridge.scores, l2=l2), projected, answers, classes)
        accuracy["ridge"] = sweep[settings.l2]
    if "knn" in settings.probes:
        how = {"classes": classes, "neighbors": settings.neighbors, "temperature": TEMPERATURE}
        vote = partial(neighbor_votes, features, labels, **how)
        accuracy["knn"] = _accuracy(vote, others, answers, classes)
    if "logistic" in settings.probes:
        fitted = fit_logistic(features, labels, classes=classes, l2=settings.logistic_l2)
        accuracy["logistic"] = _accuracy(fitted.scores, others, answers, classes)
    return accuracy, sweep


def _accuracy(score: Callable[[Tensor], Tensor], rows: Tensor, labels: Tensor, classes: int) -> float:
    """Give the share of rows whose class has the highest score, the first of equals; part by part."""
    parts = zip(in_parts(rows, classes), in_parts(labels, classes), strict=True)
    return sum(int((score(some).argmax(dim=1) == own).sum()) for some, own in parts) / len(labels)


def _checked(name: str, features: Features, labels: Labels, classes: int) -> tuple[Tensor, Tensor]:
    try:
        own = isinstance(features, Tensor)
        rows = features.detach().cpu().double() if own else torch.from_numpy(np.array(features, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}_features must be rows of numbers, one for each image: {error}.") from error
    if rows.dim() != 2 or not rows.numel():
        raise ConfigError(f"{name}_features must be rows of numbers, one for each image; got {tuple(rows.shape)}.")
    if not bool(torch.isfinite(rows).all()):
        raise ConfigError(f"{name}_features must be finite; some are not. Check the model's weights.")
    try:
        numbers = checked_labels(labels, len(rows), whole("classes", classes))
    except DataError as error:
        raise ConfigError(f"{name}_{error}") from error
    return rows, torch.from_numpy(numbers)
