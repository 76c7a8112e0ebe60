"""How good and how sure a model is on corrupted images: the 15 corruptions of ImageNet-C beside the clean images."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from vitrail import __version__
from vitrail.data.corruptions import NAMES, CorruptedSource
from vitrail.data.splits import content_hashes
from vitrail.errors import CheckpointError, ConfigError
from vitrail.evaluation.answers import answers
from vitrail.evaluation.cached import digest_of
from vitrail.evaluation.report import Subject
from vitrail.evaluation.results import Result, last_part, write_document
from vitrail.files import cache_folder, fingerprint_of, read_json
from vitrail.models import Model
from vitrail.ops.metrics import calibration
from vitrail.runtime.inference import InferenceOptions
from vitrail.runtime.packing import PackedModel
from vitrail.runtime.reporter import harmless

FORMAT = 2  # of what is kept; another number forgets it all


@dataclass(frozen=True, kw_only=True)
class Point:
    """What was measured on images of one kind: the share of wrong answers, calibration error, and mean loss."""

    error: float
    calibration: float | None
    loss: float | None
    images: int


@dataclass(frozen=True, kw_only=True)
class Corrupted:
    """A model on clean and on corrupted images: by corruption, in the order of the severities."""

    name: str
    clean: Point
    severities: tuple[int, ...]
    found: Mapping[str, tuple[Point, ...]]

    def error(self, corruption: str) -> float:
        """Give the mean error of a corruption over its severities."""
        return fmean(point.error for point in self.found[corruption])

    def calibration(self, corruption: str) -> float | None:
        """Give its mean calibration error."""
        return _mean(point.calibration for point in self.found[corruption])

    @property
    def mean_error(self) -> float:
        """The mean over the corruptions, each counting alike."""
        return fmean(map(self.error, self.found))

    @property
    def mean_calibration(self) -> float | None:
        """The mean calibration error over the corruptions."""
        return _mean(map(self.calibration, self.found))

    def published(self, other: "Corrupted") -> dict[str, float | None]:
        """Give the two means of the paper, with another model in AlexNet's place: mCE, and relative mCE.

        A corruption's errors are divided by the other model's; of the second by how much both rise above the clean
        images' error. None where the other model makes no error, or no more errors than on clean images.
        """
        wrong = [(self.error(name), other.error(name)) for name in self.found]
        risen = [(mine - self.clean.error, its - other.clean.error) for mine, its in wrong]
        return {"mce": _mean_ratio(wrong), "relative_mce": _mean_ratio(risen)}

    def document(self, other: "Corrupted | None" = None) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        return {
            "model": self.name,
            "clean": asdict(self.clean),
            "mean_error": self.mean_error,
            "mean_calibration": self.mean_calibration,
            **({} if other is None else self.published(other)),
            "corruptions": {
                name: {
                    "error": self.error(name),
                    "calibration": self.calibration(name),
                    "severities": [
                        {"severity": severity, **asdict(point)}
                        for severity, point in zip(self.severities, points, strict=True)
                    ],
                }
                for name, points in self.found.items()
            },
        }


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Models on the same images, and the one that the others' errors are divided by, where one is asked for."""

    models: tuple[Corrupted, ...]
    against: Corrupted | None = None

    def document(self) -> dict[str, Any]:
        """Give them as plain values, for JSON."""
        said = {} if self.against is None else {"against": self.against.name}
        found = [model.document(self.against) for model in self.models]
        return {"severities": list(self.models[0].severities), **said, "models": found}

    def results(self, *, data: str) -> Iterator[Result]:
        """Give rows for pages that collect them."""
        for model in self.models:
            measured: Any = {"task": "evaluate", "model": model.name, "data": data, "images": model.clean.images}
            shared: dict[str, Any] = {"severities": list(model.severities)}
            for name in model.found:
                setting = {"corruption": name, **shared}
                yield Result(**measured, metric="error", value=model.error(name), setting=setting)
            shared = {"corruptions": len(model.found), **shared}
            yield Result(**measured, metric="mean_corruption_error", value=model.mean_error, setting=shared)
            if self.against is not None:
                for name, value in model.published(self.against).items():
                    if value is not None:
                        setting = {**shared, "against": self.against.name}
                        yield Result(**measured, metric=name, value=value, setting=setting)


def measure_corrupted(
    subject: Subject,
    model: Model,
    severities: Sequence[int],
    options: InferenceOptions,
    *,
    seed: int = 0,
    whose: str = "",
) -> Corrupted:
    """Measure a model that was asked on clean images on corrupted ones too; what was measured before is kept on disk.

    Images are corrupted as large as the model reads them. `whose` begins the lines that say how far it is.
    """
    check_corruptible(model)
    source, card, found = subject.source, model.card, dict[str, tuple[Point, ...]]()
    reading = copy.copy(model)  # which keeps its own card: what it is given is resized and cropped already
    reading.card = replace(card, preprocessing=card.preprocessing.changed({"resize": "squash", "crop_share": 1.0}))
    kept = _Kept(subject, model, options) if options.cache else None
    total = len(NAMES) * len(severities)
    for name in NAMES:
        points: list[Point] = []
        for severity in severities:
            done = len(found) * len(severities) + len(points)
            place = f"{name}-{severity}-{seed}.json"
            point = None if kept is None else kept.read(place)
            if point is None:
                images = CorruptedSource(
                    source,
                    name,
                    severity,
                    size=model.config.image_size,
                    preprocessing=card.preprocessing,
                    channels=model.config.channels,
                    seed=seed,
                )
                showing = options.showing(f"{whose}{name} {severity}, {done + 1} of {total}")
                asked = answers(reading, images, replace(showing, cache=False), labeled=subject.labeled)
                point = point_of(replace(subject, found=asked))
                if kept is not None:
                    kept.write(place, point)
            points.append(point)
        found[name] = tuple(points)
    return Corrupted(name=subject.title, clean=point_of(subject), severities=tuple(severities), found=found)


def measure_side_by_side(
    subjects: Sequence[Subject],
    models: Sequence[Model],
    severities: Sequence[int],
    options: InferenceOptions,
    *,
    against: Subject | None = None,
) -> SideBySide:
    """Measure models that were asked on clean images, one after the other; all of them can be, before any is.

    One of them may be what the others' errors are divided by.
    """
    for model in models:
        check_corruptible(model)
    found: list[Corrupted] = []
    for subject, model in zip(subjects, models, strict=True):
        whose = f"{harmless(last_part(subject.title))}: " if len(models) > 1 else ""
        found.append(measure_corrupted(subject, model, severities, options, whose=whose))
    base = next((each for each, subject in zip(found, subjects, strict=True) if subject is against), None)
    return SideBySide(models=tuple(found), against=base)


def check_corruptible(model: Model) -> None:
    """Refuse a model that does not read images of 8 bits at one size."""
    if isinstance(model, PackedModel):
        raise ConfigError("corruptions are of images of one size. Leave keep_aspect_ratio out, or corruptions.")
    if model.card.preprocessing.value_range is not None:
        raise ConfigError("corruptions are of images of 8 bits; the model reads values of a range. Leave one out.")


def point_of(subject: Subject) -> Point:
    """Measure answers: images without a label do not count, and what has no answer is wrong."""
    scored, found = subject.score, subject.found
    images, correct = int(scored.counted.sum()), int((scored.correct & scored.counted).sum())
    sure = scored.counted & found.has_answer
    losses = found.losses[sure & (found.losses == found.losses)]  # NaN is none
    return Point(
        error=1 - correct / max(images, 1),
        calibration=calibration(found.confidence[sure], scored.correct[sure]).error if sure.any() else None,
        loss=float(losses.mean(dtype="f8")) if len(losses) else None,
        images=images,
    )


class _Kept:
    """What was measured, on disk: under the weights, how they are run, and the contents and labels of the images."""

    def __init__(self, subject: Subject, model: Model, options: InferenceOptions) -> None:
        def key() -> str:
            said = f"{FORMAT} {__version__} {options.precision} {subject.given} {model.config.image_size}"
            said += f" {model.card.temperature:.9g}"  # of which calibration error and loss are
            hashes = content_hashes(subject.source, reuse=True)
            return fingerprint_of(said, digest_of(model), hashes, np.asarray(subject.source.labels))

        self.group = options.group
        self.folder = cache_folder() / "corrupted" / self.group.on_main(key)

    def read(self, name: str) -> Point | None:
        def held() -> Point | None:
            try:
                return Point(**read_json(self.folder / name))
            except (OSError, ValueError, TypeError):
                return None

        return self.group.on_main(held)

    def write(self, name: str, point: Point) -> None:
        def keep() -> None:
            with suppress(CheckpointError):
                write_document(self.folder / name, asdict(point))

        self.group.on_main(keep)


def _mean_ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Give the mean of quotients; none where one is by nothing."""
    return fmean(one / other for one, other in pairs) if all(other > 0 for _, other in pairs) else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
