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
from vitrail.evaluation.cached import cached_outputs
from vitrail.models import Model
from vitrail.ops.metrics import bounded, first_classes, ranks_of
from vitrail.runtime.inference import InferenceOptions

FIRST = 5  # classes of each image that are kept


@dataclass(frozen=True, kw_only=True)
class Answers:
    """A row for each image that could be decoded; with NaN among its logits it has no answer, and is wrong."""

    samples: NDArray[np.int64]  # numbers of the images in the source, rising
    labels: NDArray[np.int64]  # the data's; -1: none
    classes: NDArray[np.int64]  # N k: the first five, or all of fewer, best first; -1: no answer
    probabilities: NDArray[np.float32]  # N k, of those
    true_probability: NDArray[np.float32]  # N: of the true class; NaN without one
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
    def has_answer(self) -> NDArray[np.bool_]:
        """Which images have an answer."""
        return self.answer >= 0


@dataclass(frozen=True, kw_only=True)
class Score:
    """Which images count, which of those are correct, and which are correct in the top 5."""

    counted: NDArray[np.bool_]
    correct: NDArray[np.bool_]
    top5: NDArray[np.bool_] | None  # None where there are five classes or fewer


def answers(model: Model, source: Source, options: InferenceOptions, *, labeled: bool = True) -> Answers:
    """Ask a model; `labeled` says that the data's labels are the model's classes, else no class is the true one."""
    check_classifier(model)
    count = model.config.classes
    assert count is not None
    if labeled and len(source.class_names) != count:
        raise DataError(f"the model has {count} classes, the data {len(source.class_names)}.")
    kind, read = ("predictions", read_answers) if labeled else ("predictions-unlabeled", _read_unlabeled)
    rows = cached_outputs(model, source, kind, read, options)
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
            "the model has no classifier, so it names no class. Fine-tune it with vitrail finetune, or measure its "
            "features with vitrail fewshot."
        )


def read_answers(model: Model, images: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
    """Answer a batch."""
    logits = bounded(model(images))
    ranks, first = ranks_of(logits, labels), first_classes(logits, FIRST)
    shares = logits.log_softmax(dim=1)
    true = torch.where(ranks >= 0, shares.gather(1, labels.clamp(min=0)[:, None])[:, 0], torch.nan)
    return {
        "classes": first,
        "probabilities": shares.gather(1, first.clamp(min=0)).exp(),
        "true_probability": true.exp(),
        "ranks": ranks,
        "losses": -true,
    }


def _read_unlabeled(model: Model, images: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
    return read_answers(model, images, torch.full_like(labels, -1))


def score(found: Answers) -> Score:
    """Score by the data's own labels; images without one do not count."""
    top5 = (found.ranks >= 0) & (found.ranks < FIRST) if found.count > FIRST else None
    return Score(counted=found.labels >= 0, correct=found.ranks == 0, top5=top5)
