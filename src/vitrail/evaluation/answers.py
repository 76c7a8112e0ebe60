"""What a classifier answers to every image of a source: its first classes, how sure it is, and how far off."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.loader import Skip
from vitrail.data.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.rows import rows_of
from vitrail.models import Model
from vitrail.ops.metrics import bounded, first_classes, ranks_of
from vitrail.runtime.inference import Pass

FIRST = 5  # classes of each image that are kept


@dataclass(frozen=True, kw_only=True)
class Answers:
    """A row for each image that could be decoded; with NaN among its logits it has no answer, and is never right."""

    samples: NDArray[np.int64]  # numbers of the images in the source, rising
    labels: NDArray[np.int64]  # the data's; -1: none
    classes: NDArray[np.int64]  # N k: the first five, or all of fewer, best first; -1: no answer
    probabilities: NDArray[np.float32]  # N k, of those
    own: NDArray[np.float32]  # N: probability of the true class; NaN without one
    ranks: NDArray[np.int64]  # N: classes before the true one; -1 without one
    losses: NDArray[np.float32]  # N; NaN without a true class
    count: int  # of the model's classes
    skipped: tuple[Skip, ...] = ()
    reused: int = 0
    seconds: float = 0.0

    @property
    def answer(self) -> NDArray[np.int64]:
        """The first class of each image; -1: no answer."""
        return self.classes[:, 0]

    @property
    def confidence(self) -> NDArray[np.float32]:
        """Its probability; NaN: no answer."""
        return self.probabilities[:, 0]

    @property
    def sound(self) -> NDArray[np.bool_]:
        """Which images have an answer."""
        return self.answer >= 0


@dataclass(frozen=True, kw_only=True)
class Score:
    """Which images count, which of those are answered right, and which among the first five."""

    counted: NDArray[np.bool_]
    right: NDArray[np.bool_]
    five: NDArray[np.bool_] | None  # None where there are five classes or fewer


def answers(model: Model, source: Source, how: Pass, *, labeled: bool = True) -> Answers:
    """Ask a model; `labelled` says that the data's labels are the model's classes, else no class is the true one."""
    check_classifier(model)
    count = model.config.classes
    assert count is not None
    if labeled and len(source.class_names) != count:
        raise DataError(f"the model has {count} classes, the data {len(source.class_names)}.")
    kind, read = ("answers", read_answers) if labeled else ("answers-alone", _read_alone)
    rows = rows_of(model, source, kind, read, how)
    return Answers(
        samples=rows.samples,
        labels=rows.labels,
        **rows.values,
        count=count,
        skipped=rows.skipped,
        reused=rows.reused,
        seconds=rows.seconds,
    )


def check_classifier(model: Model) -> None:
    """Refuse a model that cannot answer."""
    if not model.config.classes:
        raise ConfigError(
            "the model has no classifier, so it names no class. Fine-tune it (vitrail finetune DATA --model FILE), "
            "or measure what it represents with vitrail fewshot."
        )


def read_answers(model: Model, images: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
    """Answer a batch."""
    logits = bounded(model(images))
    ranks, first = ranks_of(logits, labels), first_classes(logits, FIRST)
    shares = logits.log_softmax(dim=1)
    own = torch.where(ranks >= 0, shares.gather(1, labels.clamp(min=0)[:, None])[:, 0], torch.nan)
    return {
        "classes": first,
        "probabilities": shares.gather(1, first.clamp(min=0)).exp(),
        "own": own.exp(),
        "ranks": ranks,
        "losses": -own,
    }


def _read_alone(model: Model, images: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
    return read_answers(model, images, torch.full_like(labels, -1))


def score(found: Answers) -> Score:
    """Score by the data's own labels; images without one do not count."""
    first, five = (found.ranks >= 0) & (found.ranks < 1), (found.ranks >= 0) & (found.ranks < FIRST)
    return Score(counted=found.labels >= 0, right=first, five=five if found.count > FIRST else None)
