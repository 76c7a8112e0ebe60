"""What training images lack, and what is done about uneven classes: refused or said before anything is computed."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from vitrail.config.recipe import Training
from vitrail.data.source import Source
from vitrail.data.sources.remote import RemoteShards
from vitrail.data.splits import hold_out
from vitrail.errors import WITHOUT_LABELS, ConfigError, DataError, some_of
from vitrail.ops.uneven import HELPS, UNEVEN, imbalance
from vitrail.train.objective import Objective
from vitrail.train.task import NAMED, Parts, training_split


def describe_held_out(splits: Mapping[str, Source], parts: Parts) -> str:
    """Say how many classes are kept out, and what is left."""
    every, left = len(training_split(splits).class_names), len(parts.train.class_names)
    return f"{every - left} of {every} classes kept out whole: {len(parts.train):,} images of {left} to train on"


def describe_gaps(parts: Parts) -> Iterator[str]:
    """Say, by name, what the images cannot teach, or cannot tell of what was learned; nothing where all is well."""
    names, counts = parts.train.class_names, _images_of(parts.train)
    if len(names) == 1:
        yield f"there is one class alone, {names[0]}: nothing to learn from it"
    if gone := [name for name in names if not counts[name]]:
        yield f"no image to train on of {some_of(gone, NAMED)}: the model cannot learn {_them(gone)}"
    if parts.val is None or not len(parts.val):
        return
    held = _images_of(parts.val)
    for single, words in ((True, "one image to train on"), (False, "no image")):
        lacking = [name for name in names if counts[name] and not held[name] and (counts[name] == 1) == single]
        if lacking:
            yield f"{words}{' and none' * single} to validate with of {some_of(lacking, NAMED)}"


def count_classes(source: Source) -> NDArray[np.int64]:
    """Count the images of every class."""
    labels = np.asarray(source.labels)
    return np.bincount(labels[labels >= 0], minlength=len(source.class_names))


def _images_of(source: Source) -> dict[str, int]:
    """Count the images of every class, by its name."""
    return dict(zip(source.class_names, count_classes(source).tolist(), strict=True))


def _them(names: Sequence[str]) -> str:
    return "it" if len(names) == 1 else "them"


def check_classes(splits: Mapping[str, Source]) -> None:
    """Refuse training images without labels, and splits of other classes than theirs."""
    whole = training_split(splits)
    val, test = splits.get("val", splits.get("dev")), splits.get("test")
    if not whole.class_names:
        raise DataError(
            "the training images have no labels. Expected a folder for each class, or a column of labels; "
            f"{WITHOUT_LABELS}"
        )
    for name, other in (("val", val), ("test", test)):
        if other is not None and other.class_names != whole.class_names:
            raise DataError(
                f"the classes of {name} are not those of train: {_some(other.class_names)} against "
                f"{_some(whole.class_names)}. Each split needs a folder for every class."
            )


def check_uneven(training: Training, objective: Objective | None, splits: Mapping[str, Source]) -> None:
    """Refuse weights that are not one for each class, and what is of labels beside an objective of one's own."""
    if not splits:  # of several tasks, each of which has images of its own
        return
    source = training_split(splits)
    asked = [*training.corrections, *(["class_weights"] if isinstance(training.class_weights, tuple) else [])]
    asked += ["focal"] if training.focal else []
    if objective is not None and (own := [name for name in asked if not name.startswith("sampling")]):
        raise ConfigError(f"an objective of one's own weighs its losses itself; got {', '.join(own)}. Leave it out.")
    if isinstance(source, RemoteShards) and training.corrections:
        raise ConfigError(
            f"{', '.join(training.corrections)} needs every label first, and of a stream they are not known. "
            "Fetch the shards, or give class_weights as numbers."
        )
    names = source.class_names
    left = len(names) - len(hold_out(names, training.held_out)) if training.held_out else len(names)
    if isinstance(training.class_weights, tuple) and left and len(training.class_weights) != left:
        raise ConfigError(
            f"class_weights must be one number for each of the {left} classes, in their order "
            f"({some_of(names, NAMED)}); got {len(training.class_weights)}. Give as many, or class_weights=balanced."
        )


def describe_uneven(training: Training, source: Source) -> Iterator[str]:
    """Say how uneven the classes are, and what helps; or that several corrections are asked for at once."""
    asked = training.corrections
    if len(asked) > 1:
        yield f"{' and '.join(asked)} each make up for uneven classes: together they do it twice"
    counts = count_classes(source)
    some = counts[counts > 0]
    if not asked and training.class_weights is None and imbalance(some.tolist()) >= UNEVEN:
        yield f"classes are uneven, from {some.min():,} to {some.max():,} images each. {HELPS}"


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")
