"""Frozen features of a model, and what few images of every class, or all of them, are worth with them (Section 4.1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.source import Source, Subset
from vitrail.data.sources.remote import RemoteShards
from vitrail.data.splits import split
from vitrail.errors import DataError
from vitrail.evaluation.cached import cached_outputs
from vitrail.evaluation.results import Result, over_seeds
from vitrail.evaluation.shots import Settings, choose_shots, measure_probes
from vitrail.models import Model
from vitrail.runtime.inference import InferenceOptions, Outputs
from vitrail.runtime.reporter import SILENT, Reporter
from vitrail.train.gaps import check_classes
from vitrail.train.task import kept_back, training_split, was_trained_on

Sets = tuple[Source, Source]  # to learn from, and to test on
FeatureSets = tuple[Outputs, Outputs]  # of both


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What so many images of every class give, by probe and by l2: one number for each seed."""

    shots: int | None  # None: all images
    images: tuple[int, ...]  # that were learned from
    accuracy: dict[str, list[float]]
    sweep: dict[float, list[float]]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Everything that was measured."""

    cells: tuple[Cell, ...]
    classes: int
    test_images: int
    short: int  # classes that have fewer training images than the most shots asked for
    left_out: int  # images that could not be decoded
    reused: int  # images whose features were kept from before
    computed: int


def read_features(model: Model, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Give what the linear classifier reads."""
    return {"features": model.represent(images)}


def features_of(
    model: Model, source: Source, options: InferenceOptions, samples: NDArray[np.int64] | None = None
) -> Outputs:
    """Give the features of a source, or of some samples of it; kept on disk."""
    return cached_outputs(model, source, "features", read_features, options, samples)


def choose_sets(splits: Mapping[str, Source], run: Path | Model | None) -> tuple[Sets, str]:
    """Find the images to learn from and those to test on; one split alone as the run cut it, or else by content."""
    train = training_split(splits)
    if isinstance(train, RemoteShards):
        raise DataError("few shots are drawn from all images, and a stream cannot be read by number. Fetch it first.")
    check_classes(splits)
    name = next((name for name in ("test", "val", "dev") if name in splits), None)
    known = run is not None and was_trained_on(run, train)
    if name is not None:
        seen = ", and the model was trained on the images of train" if known else ""
        return (train, splits[name]), f"learned from train, tested on {name}{seen}"
    if run is not None and (cut := kept_back(run, train)) is not None:
        return cut, "learned from the images that the run was trained on, tested on those that it kept back"
    parts = split(train, {"train": 0.8, "test": 0.2}, seed=0)
    if not len(parts["train"]) or not len(parts["test"]):
        raise DataError(f"{len(train)} images are too few to learn from some and test on others.")
    said = "learned from 80 % of the images, tested on the other 20 %"
    return (parts["train"], parts["test"]), said + (", which the model was trained on too" if known else "")


def read_sets(model: Model, sets: Sets, options: InferenceOptions, settings: Settings) -> FeatureSets:
    """Give the features of the training images that the settings need, and of the test images with a label."""
    train, test = sets
    wanted = wanted_samples(np.asarray(train.labels), len(train.class_names), settings)
    known = features_of(model, train, options.showing("features of the training images"), wanted)
    labeled = np.flatnonzero(np.asarray(test.labels) >= 0)
    others = features_of(model, test, options.showing("features of the test images"), labeled)
    if not all(np.isfinite(rows.values["features"]).all() for rows in (known, others)):
        raise DataError("some features are not finite: the model has diverged, or bfloat16 is too coarse for it.")
    return known, others


def measure_cells(rows: FeatureSets, train: Source, settings: Settings, report: Reporter = SILENT) -> list[Cell]:
    """Measure all shots and seeds, of features that `read_sets` gave."""
    known, others = rows
    classes, labels = len(train.class_names), np.asarray(train.labels)
    features, answers = torch.from_numpy(known.values["features"]), torch.from_numpy(known.labels)
    measured = torch.from_numpy(others.values["features"]), torch.from_numpy(others.labels)
    cells = []
    for done, shots in enumerate(settings.shots):
        report.progress("classifiers of the features", done, len(settings.shots))
        found: list[tuple[int, dict[str, float], dict[float, float]]] = []
        for seed in settings.seeds_of(shots):
            chosen = np.isin(known.samples, choose_shots(labels, classes=classes, shots=shots, seed=seed))
            some = torch.from_numpy(np.flatnonzero(chosen))
            probes = measure_probes((features[some], answers[some]), measured, classes=classes, settings=settings)
            found.append((len(some), *probes))
        cells.append(
            Cell(
                shots=shots,
                images=tuple(count for count, _, _ in found),
                accuracy={probe: [accuracy[probe] for _, accuracy, _ in found] for probe in found[0][1]},
                sweep={l2: [sweep[l2] for _, _, sweep in found] for l2 in found[0][2]},
            )
        )
    report.progress("classifiers of the features", len(cells), len(cells))
    return cells


def few_shot_table(model: Model, sets: Sets, options: InferenceOptions, settings: Settings) -> Table:
    """Measure all shots and seeds; of the training images no more are read than they need."""
    known, others = rows = read_sets(model, sets, options, settings)
    classes, labels = len(sets[0].class_names), np.asarray(sets[0].labels)
    most = max((shots for shots in settings.shots if shots is not None), default=0)
    return Table(
        cells=tuple(measure_cells(rows, sets[0], settings, options.report)),
        classes=classes,
        test_images=len(others.samples),
        short=int((np.bincount(labels[labels >= 0], minlength=classes) < most).sum()),
        left_out=len(known.skipped) + len(others.skipped),
        reused=known.reused + others.reused,
        computed=len(known.samples) + len(others.samples) - known.reused - others.reused,
    )


def wanted_samples(labels: NDArray[np.int64], classes: int, settings: Settings) -> NDArray[np.int64]:
    """Give the training images that any shots and seed take; fewer shots are the first of more."""
    if not (labels >= 0).any():
        raise DataError("the training images have no labels. Expected a folder for each class, or a column of labels.")
    if classes < 2:
        raise DataError("there is one class alone: nothing to tell apart. Give images of two classes or more.")
    if None in settings.shots:
        return np.flatnonzero(labels >= 0)
    most = max(shots for shots in settings.shots if shots is not None)
    drawn = [choose_shots(labels, classes=classes, shots=most, seed=seed) for seed in settings.seeds]
    return np.unique(np.concatenate(drawn))


def results_of(table: Table, model: str, data: str, settings: Settings) -> list[Result]:
    """Give a row for each number of shots and probe, and for each l2 of least squares."""
    rows, extra = [], {"knn": {"neighbours": settings.neighbors}, "logistic": {"l2": settings.logistic_l2}}
    measured: Any = {"task": "fewshot", "model": model, "data": data, "metric": "accuracy", "images": table.test_images}
    for cell in table.cells:
        base, seeds = {"shots": "all" if cell.shots is None else cell.shots}, settings.seeds_of(cell.shots)
        every = [({"probe": "ridge", "l2": l2}, values) for l2, values in cell.sweep.items()]
        every += [({"probe": name, **extra[name]}, cell.accuracy[name]) for name in cell.accuracy if name != "ridge"]
        for setting, values in every:
            mean, spread = over_seeds(values)
            rows.append(Result(**measured, value=mean, spread=spread, setting={**base, **setting}, seeds=seeds))
    return rows


MOST, MOST_TESTED = 10_000, 5_000  # images, so that it stays quick
SHOTS = 10
FEW = Settings(shots=(SHOTS,), probes=("ridge",))
ALL = Settings(shots=(None,), probes=("logistic",))


def draw_sets(sets: Sets) -> Sets:
    """Draw the images to learn from and to test on, once: of many as many of every class, ten at least."""
    train, test = sets
    classes, labels = len(train.class_names), np.asarray(train.labels)
    known = wanted_samples(labels, classes, ALL)
    if len(known) > MOST:
        known = np.sort(choose_shots(labels, classes=classes, shots=max(MOST // classes, SHOTS), seed=0))
    asked = np.flatnonzero(np.asarray(test.labels) >= 0)
    if not len(asked):
        raise DataError(
            "the images to test on have no labels. Expected a folder for each class, or a column of labels."
        )
    if len(asked) > MOST_TESTED:
        asked = np.sort(np.random.default_rng(0).permutation(asked)[:MOST_TESTED])
    return Subset(train, known), Subset(test, asked)


def probe_features(sets: Sets, model: Model, options: InferenceOptions) -> Mapping[str, float]:
    """Give the accuracy of least squares from ten images of every class, and of a linear probe; nothing is kept."""
    rows = read_sets(model, sets, options, ALL)
    few, every = (measure_cells(rows, sets[0], settings)[0].accuracy for settings in (FEW, ALL))
    return {f"fewshot_{SHOTS}": fmean(few["ridge"]), "linear": fmean(every["logistic"]), "images": len(rows[1].samples)}
