"""Few-shot evaluation of frozen features (Section 4.1): a linear classifier of a few images of every class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config.check import not_negative, one_of, positive, whole
from vitrail.data.sources.memory import checked_labels
from vitrail.errors import ConfigError
from vitrail.ops.probes import fit_logistic, neighbour_votes
from vitrail.ops.ridge import Ridge, solve

Features = NDArray[Any] | Tensor
PAPER_L2 = 1024.0
SWEEP = tuple(2.0**power for power in range(-4, 21, 2))  # of l2
NEIGHBOURS, TEMPERATURE = 20, 0.07  # as Wu et al. and their followers vote
LOGISTIC_L2 = 1e-3
PROBES = ("ridge", "knn", "logistic")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured: how many images of every class, drawn how often, and by which probes."""

    shots: tuple[int | None, ...] = (1, 5, 10, 25)  # None: all images
    seeds: tuple[int, ...] = (0, 1, 2)
    l2: float = PAPER_L2
    probes: tuple[str, ...] = PROBES
    neighbours: int = NEIGHBOURS
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
        whole("neighbours", self.neighbours)
        not_negative("l2", self.l2)
        positive("logistic_l2", self.logistic_l2)


def fewshot(
    train_features: Features,
    train_labels: Features | Sequence[int],
    test_features: Features,
    test_labels: Features | Sequence[int],
    *,
    classes: int,
    shots: int,
    seed: int,
    l2: float = PAPER_L2,
) -> float:
    """Give the share of test rows that least squares from `shots` training rows of every class gets right.

    Rows of a class are the first of a permutation by `numpy.random.default_rng(seed)`, which runs on over the classes
    in their order; a class that has fewer gives all that it has.
    """
    train = _checked("train", train_features, train_labels, classes)
    test = _checked("test", test_features, test_labels, classes)
    if train[0].shape[1] != test[0].shape[1]:
        raise ConfigError(
            f"train and test features must be as wide; got {train[0].shape[1]} and {test[0].shape[1]}. "
            "Take both from one model."
        )
    chosen = choose_shots(train[1].numpy(), classes=classes, shots=whole("shots", shots), seed=seed)
    ridge = solve(train[0][chosen], train[1][chosen], classes)
    return _accuracy(ridge.scores(ridge.project(test[0]), not_negative("l2", l2)), test[1])


def choose_shots(labels: NDArray[np.int64], *, classes: int, shots: int | None, seed: int) -> NDArray[np.int64]:
    """Give the numbers of the rows to learn from, class by class; all of them where `shots` is None."""
    if shots is None:
        return np.flatnonzero(labels >= 0)
    generator = np.random.default_rng(whole("seed", seed, least=0))
    rows = [generator.permutation(np.flatnonzero(labels == label))[:shots] for label in range(classes)]
    return np.concatenate(rows)


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
        sweep = _sweep(ridge, others, answers, sorted({*SWEEP, settings.l2}))
        accuracy["ridge"] = sweep[settings.l2]
    if "knn" in settings.probes:
        votes = neighbour_votes(
            features, labels, others, classes=classes, neighbours=settings.neighbours, temperature=TEMPERATURE
        )
        accuracy["knn"] = _accuracy(votes, answers)
    if "logistic" in settings.probes:
        fitted = fit_logistic(features, labels, classes=classes, l2=settings.logistic_l2)
        accuracy["logistic"] = _accuracy(fitted.scores(others), answers)
    return accuracy, sweep


def _sweep(ridge: Ridge, others: Tensor, answers: Tensor, strengths: Sequence[float]) -> dict[float, float]:
    projected = ridge.project(others)
    return {l2: _accuracy(ridge.scores(projected, l2), answers) for l2 in strengths}


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return int((scores.argmax(dim=1) == labels).sum()) / len(labels)


def _checked(name: str, features: Features, labels: Features | Sequence[int], classes: int) -> tuple[Tensor, Tensor]:
    rows = features.detach().cpu() if isinstance(features, Tensor) else torch.from_numpy(np.asarray(features))
    if rows.dim() != 2 or not rows.numel() or rows.is_complex():
        raise ConfigError(f"{name}_features must be rows of numbers, one for each image; got {tuple(rows.shape)}.")
    if not bool(torch.isfinite(rows).all()):
        raise ConfigError(f"{name}_features must be finite; some are not. Check the model's weights.")
    try:
        numbers = checked_labels(labels, len(rows), whole("classes", classes))
    except ConfigError as error:
        raise ConfigError(f"{name}_{error}") from error
    return rows, torch.from_numpy(numbers)
