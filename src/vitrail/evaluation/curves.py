"""What the frozen features of a model that learns are worth on labelled images, again and again (Section 4.1)."""

from collections.abc import Mapping
from statistics import fmean

import numpy as np

from vitrail.data.source import Subset
from vitrail.errors import DataError
from vitrail.evaluation.features import Sets, measure_cells, read_sets, wanted_samples
from vitrail.evaluation.shots import Settings, choose_shots
from vitrail.models import Model
from vitrail.runtime.group import Group
from vitrail.runtime.inference import InferenceOptions

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


def probe_features(
    sets: Sets, model: Model, *, group: Group, batch: int, workers: int, limit: float
) -> Mapping[str, float]:
    """Give the accuracy of least squares from ten images of every class, and of a linear probe; nothing is kept."""
    options = InferenceOptions(group=group, batch_size=batch, workers=workers, bad_image_limit=limit, cache=False)
    rows = read_sets(model, sets, options, ALL)
    few, every = (measure_cells(rows, sets[0], settings)[0].accuracy for settings in (FEW, ALL))
    return {
        f"fewshot_{SHOTS}": fmean(few["ridge"]),
        "linear": fmean(every["logistic"]),
        "images": len(rows[1].samples),
    }
