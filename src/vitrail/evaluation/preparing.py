"""Preprocessing that nobody knows, found by labels: which of the usual ways makes a classifier right most often."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.config import Preprocessing, encode
from vitrail.config.preprocessing import AUTHORS, FIELDS, IMAGENET, NAMED
from vitrail.data.levels import Levels, measure_levels
from vitrail.data.source import Source, Subset
from vitrail.errors import DataError
from vitrail.evaluation.answers import answers, score
from vitrail.models import Model
from vitrail.ops.metrics import mcnemar
from vitrail.runtime.inference import InferenceOptions

TRIED_ON = 512  # labeled images, spread over the source
CROPPED = {"resize": "crop", "crop_share": IMAGENET.crop_share}
SQUASHED = {"resize": "squash", "crop_share": 1.0}


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A way to read images, and how good a model is with it."""

    name: str
    preprocessing: Preprocessing
    accuracy: float
    loss: float
    correct: NDArray[np.bool_] = field(repr=False)  # image by image

    def is_told_from(self, other: "Tried") -> bool:
        """Tell whether the images show that one is better, by McNemar's test at 5 %."""
        only = (self.correct & ~other.correct).sum(), (other.correct & ~self.correct).sum()
        return mcnemar(*map(int, only)) < 0.05

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        loss = self.loss if np.isfinite(self.loss) else None
        return {
            "name": self.name,
            "preprocessing": encode(self.preprocessing),
            "accuracy": self.accuracy,
            "loss": loss,
        }


@dataclass(frozen=True, kw_only=True)
class PreprocessingChoice:
    """What was tried on so many images, and which of it was taken: the most accurate, of equals that of least loss."""

    images: int
    tried: tuple[Tried, ...]

    @property
    def best(self) -> Tried:
        """The one that was taken."""
        return min(self.tried, key=lambda each: (-each.accuracy, each.loss))

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        unclear = [each.name for each in self.tried if each is not self.best and not self.best.is_told_from(each)]
        tried = [each.document() for each in self.tried]
        return {"images": self.images, "best": self.best.name, "unclear": unclear, "tried": tried}


def choose_preprocessing(
    model: Model, source: Source, given: Mapping[str, Any], options: InferenceOptions
) -> PreprocessingChoice:
    """Try the usual means and deviations, then the usual crops with the best of them; `given` fields stay as they are.

    What the labels choose is optimistic on the same images: it is the caller's to say so.
    """
    labeled = np.flatnonzero(np.asarray(source.labels) >= 0)
    if not len(labeled):
        raise DataError("preprocessing is chosen by labels, and none of the images has one. Give it instead.")
    some = Subset(source, labeled[np.unique(np.linspace(0, len(labeled) - 1, TRIED_ON).astype(np.int64))])
    channels, own = model.config.channels, model.card.prepared(given, model.config.channels).preprocessing
    first = "assumed" if model.card.assumed and not given else "as it is"
    tried = [_try(first, own, model, some, options)]
    if not given.keys() & {"mean", "deviation"}:
        for name, fields in _levels(measure_levels(some, channels, value_range=own.value_range), channels):
            if (how := own.changed(fields)) != own:
                tried.append(_try(name, how, model, some, options))
    if not given.keys() & {"resize", "crop_share"}:
        best = PreprocessingChoice(images=len(some), tried=tuple(tried)).best
        for word, fields in {"squashed": SQUASHED, "cropped": CROPPED}.items():
            how = replace(best.preprocessing, **fields)
            if how != best.preprocessing:
                tried.append(_try(f"{best.name}, {word}", how, model, some, options))
    return PreprocessingChoice(images=len(some), tried=tuple(tried))


def _levels(measured: Levels | None, channels: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name means and deviations to try."""
    known = {"authors": AUTHORS, **({"imagenet": IMAGENET} if channels == len(IMAGENET.mean) else {})}
    if measured is not None and all(measured.deviation):
        known["measured"] = Preprocessing(mean=measured.mean, deviation=measured.deviation)
    for name, how in {**known, "zero-one": NAMED["zero-one"]}.items():
        yield name, {"mean": how.mean, "deviation": how.deviation}


def _try(name: str, how: Preprocessing, model: Model, some: Source, options: InferenceOptions) -> Tried:
    other = copy.copy(model)  # which keeps its own card
    other.card = model.card.prepared({field: getattr(how, field) for field in FIELDS}, model.config.channels)
    found = answers(other, some, options.showing(f"trying preprocessing: {name}"))
    scored = score(found)
    losses = np.where(np.isfinite(found.losses), found.losses, np.inf)
    correct = scored.correct[scored.counted]
    loss = float(losses[scored.counted].mean())
    return Tried(name=name, preprocessing=how, accuracy=float(correct.mean()), loss=loss, correct=correct)
