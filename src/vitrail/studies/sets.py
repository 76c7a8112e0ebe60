"""The sets of images that studies name: in the box, drawn, or folders beside each other under --data."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np

from vitrail.data.open import open_data
from vitrail.data.source import Source, Subset
from vitrail.data.sources.memory import sample_splits
from vitrail.data.sources.packed import PackedSource, pack
from vitrail.data.sources.synthetic import CLASSES, SyntheticSource, Task
from vitrail.data.splits import SomeClasses
from vitrail.errors import DataError
from vitrail.runtime.reporter import SILENT, Reporter
from vitrail.studies.table import Images

SCENES = "scenes-"  # and what of a scene is its label
DRAWN = {"train": 2000, "test": 1000}  # scenes
SEEDS = {"train": 0, "test": 1}
SPLITS = ("train", "test")


class Known(NamedTuple):
    """How many training images and classes a set has, for what a run of it costs before it is there."""

    images: int
    classes: int
    words: str


KNOWN = {
    "sample": Known(2000, 10, "in the box"),
    **{f"{SCENES}{task}": Known(DRAWN["train"], len(names), "drawn") for task, names in CLASSES.items()},
    "tiny-imagenet": Known(50_000, 200, "250 training images of each class, 64 pixels"),
    "oxford-iiit-pet": Known(3_680, 37, "37 breeds"),
    "cifar10": Known(50_000, 10, ""),
    "cifar100": Known(50_000, 100, ""),
    "oxford-flowers": Known(2_040, 102, ""),
    "imagenet": Known(1_281_167, 1000, "ILSVRC-2012"),
    "imagenet-21k": Known(14_197_122, 21_843, ""),
    "jft-300m": Known(303_000_000, 18_291, "not public"),
}


def classes_of(images: Images) -> int:
    """Give the number of classes of a set, or of a half of it."""
    every = KNOWN[images.name].classes
    return every if images.half is None else -(-every // 2) if images.half == "first" else every // 2


def count_of(images: Images) -> int:
    """Give the number of training images."""
    known, classes = KNOWN[images.name], classes_of(images)
    every = known.images * classes // known.classes
    return every if images.per_class is None else min(images.per_class * classes, every)


def prepare(images: Images, data: Path | None, folder: Path, report: Reporter = SILENT) -> None:
    """Decode a set once, at its size, where it is not packed at that size already."""
    if _packed(folder, images) is not None or (data is not None and _packed(data, images) is not None):
        return
    for split, source in _open(images, data).items():
        target = folder / _folder(images) / split
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            progress = partial(report.progress, f"packing {images.name}")
            pack(source, target, images.image_size, overwrite=False, progress=progress)


def open_set(images: Images, data: Path | None, folder: Path | None) -> dict[str, Source]:
    """Give the train and test images of a set; of those to train on so many of each class as are asked for.

    `folder` is where `prepare` put them; without it they are read from where they are.
    """
    splits = None
    for place in (folder, data):
        splits = splits or (None if place is None else _packed(place, images))
    splits = splits or _open(images, data)
    if images.half is not None:
        splits = {name: half_of(source, images.half) for name, source in splits.items()}
    return {**splits, "train": few_of_each(splits["train"], images.per_class)}


def check_sets(needed: list[Images], data: Path | None) -> None:
    """Refuse, before anything runs, sets that are not there, all of them at once, with where they are looked for."""
    missing = sorted({each.name for each in needed if not _is_there(each, data)})
    if not missing:
        return
    listed = "; ".join(f"{name} ({words})" if (words := KNOWN[name].words) else name for name in missing)
    where = "Give the folder that holds them, a folder each, with --data." if data is None else f"Looked in {data}."
    raise DataError(
        f"these sets of images are not here: {listed}. {where} Each is anything that vitrail data check reads, with a "
        "train and a test or val split."
    )


def check_counts(name: str, train: Source) -> None:
    """Refuse a set whose training images are not those that a study counts with."""
    known, classes = KNOWN[name], len(train.class_names)
    if not name.startswith(SCENES) and (len(train), classes) != known[:2]:
        raise DataError(
            f"{name} has {len(train):,} training images of {classes:,} classes, and the studies count with "
            f"{known.images:,} of {known.classes:,}{f' ({known.words})' if known.words else ''}. Give that set."
        )


def half_of(source: Source, half: Literal["first", "second"]) -> Source:
    """Give the images of every second class, by name, or of the others."""
    names = sorted(source.class_names)
    return SomeClasses(source, names[0::2] if half == "first" else names[1::2])


def few_of_each(source: Source, count: int | None) -> Source:
    """Give the first so many images of every class, in the source's order; all of them where none is said."""
    if count is None:
        return source
    labels = np.asarray(source.labels)
    kept = [np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]
    return Subset(source, np.sort(np.concatenate(kept)))


def _open(images: Images, data: Path | None) -> dict[str, Source]:
    """Open the train and test images of a set where it is."""
    if images.name == "sample":
        splits: Mapping[str, Source] = sample_splits()
    elif images.name.startswith(SCENES):
        splits = _scenes(images)
    else:
        check_sets([images], data)
        assert data is not None
        splits = open_data(data / images.name)
    test = next((splits[name] for name in ("test", "val") if name in splits), None)
    if "train" in splits:
        check_counts(images.name, splits["train"])
    if "train" not in splits or test is None:
        raise DataError(f"{images.name} needs a train split and a test or val split; there are: {', '.join(splits)}.")
    return {"train": splits["train"], "test": test}


def _scenes(images: Images) -> dict[str, Source]:
    """Draw scenes of a task; no more than are asked for, and half as many to test on."""
    task = cast(Task, images.name.removeprefix(SCENES))
    counts = DRAWN
    if images.per_class is not None:
        count = images.per_class * len(CLASSES[task])
        counts = {"train": count, "test": max(count // 2, 1)}
    return {split: SyntheticSource(counts[split], images.image_size, seed=SEEDS[split], task=task) for split in SPLITS}


def _is_there(images: Images, data: Path | None) -> bool:
    inside = images.name == "sample" or images.name.startswith(SCENES)
    return inside or (data is not None and ((data / images.name).is_dir() or _packed(data, images) is not None))


def _folder(images: Images) -> str:
    return f"{images.name}-{images.image_size}"


def _packed(place: Path, images: Images) -> dict[str, Source] | None:
    """Give the packed splits of a set at its size, where they are."""
    for name in (_folder(images), images.name):
        found = {split: place / name / split for split in SPLITS}
        if not found["test"].is_dir():
            found["test"] = place / name / "val"
        if all((path / "packed.json").is_file() for path in found.values()):
            made = {split: PackedSource(path) for split, path in found.items()}
            if all(source.shape[:2] == (images.image_size,) * 2 for source in made.values()):
                check_counts(images.name, made["train"])
                return dict(made)
    return None
