"""The images of a run by what they are for: to train on, to choose by, to report on; and those of earlier runs."""

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.checkpoint.run_folder import BEGUN, SAVED, read_document
from vitrail.data.source import Source, Subset
from vitrail.data.splits import SomeClasses, hold_out, split
from vitrail.errors import WITHOUT_LABELS, CheckpointError, DataError
from vitrail.files import replacing

CUT = "split.npz"
DEV_SEED = 0  # one dev split for all seeds of a run
Cut = tuple[NDArray[np.int64], NDArray[np.int64]]  # numbers of the images to train on, and of those kept back


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The splits by what they are for."""

    train: Source
    val: Source | None  # to choose by
    test: Source | None  # to report on, once


def training_split(splits: Mapping[str, Source]) -> Source:
    """Find the images to train on: the train split, or the only one where it has no name."""
    found = splits.get("train", splits.get("all"))
    if found is None:
        raise DataError(
            f"expected a train split, or one without a name; there is only {', '.join(splits)}. "
            "Name the folder train, or give the folder inside it."
        )
    return found


def cut_dev(
    splits: Mapping[str, Source], share: float, kept: Path, progress: Callable[[int, int], None] | None = None
) -> Cut | None:
    """Cut images to choose by from the training images, by content, where there is no split for that.

    The numbers are kept in a file, so that a run that goes on need not hash the images again.
    """
    whole = training_split(splits)
    if share <= 0 or splits.keys() & {"val", "dev"}:
        return None
    shares = {"train": 1 - share, "dev": share}
    cut = remember_cut(whole, share, kept, lambda: split(whole, shares, seed=DEV_SEED, progress=progress))
    return cut if len(cut[0]) and len(cut[1]) else None


def remember_cut(source: Source, share: float, kept: Path, draw: Callable[[], Mapping[str, Subset]]) -> Cut:
    """Give the numbers of `train` and `dev` that were drawn from a source before, or draw and keep them."""
    cut = _read_cut(kept, source, share)
    if cut is None:
        parts = draw()
        cut = parts["train"].indices, parts["dev"].indices
        _keep_cut(kept, source, share, cut)
    return cut


def kept_back(run: Path, source: Source) -> tuple[Subset, Subset] | None:
    """Give the images of a source that a run was trained on, and those that it kept back; None where it kept none."""
    cut = _read_cut(folder_of(run) / CUT, source, None)
    return None if cut is None or not len(cut[1]) else (Subset(source, cut[0]), Subset(source, cut[1]))


def was_trained_on(run: Path, source: Source) -> bool:
    """Tell whether a run was given these images, or others of the same classes in one split, to train on."""
    try:
        prints = read_document(folder_of(run) / BEGUN)["fingerprints"]
        names = read_document(folder_of(run) / "classes.json")["names"]
    except (CheckpointError, KeyError):
        return False
    return source.fingerprint in prints.values() or (len(prints) == 1 and tuple(names) == source.class_names)


def folder_of(run: Path) -> Path:
    """Give the folder of a run, also for one of its checkpoints."""
    return run.parent.parent if run.parent.name == SAVED else run


def keep_classes(splits: Mapping[str, Source], share: float) -> Mapping[str, Source]:
    """Keep a share of the training split's classes out of every split, whole: nothing of them is learned."""
    if not share:
        return splits
    gone = set(hold_out(training_split(splits).class_names, share))
    return {name: SomeClasses(source, [*(set(source.class_names) - gone)]) for name, source in splits.items()}


def describe_held_out(splits: Mapping[str, Source], parts: Parts) -> str:
    """Say how many classes are kept out, and what is left."""
    every, left = len(training_split(splits).class_names), len(parts.train.class_names)
    return f"{every - left} of {every} classes kept out whole: {len(parts.train):,} images of {left} to train on"


def without_held_out(run: Path, source: Source) -> Source:
    """Give a source without the classes that a run kept out of its training; as it is where it kept none."""
    try:
        share = float(read_document(folder_of(run) / BEGUN)["training"]["held_out"])
        names = set(read_document(run / "classes.json")["names"])
    except (CheckpointError, KeyError, TypeError, ValueError):
        return source
    left = [name for name in source.class_names if name in names]
    return SomeClasses(source, left) if share and 0 < len(left) < len(source.class_names) else source


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


def choose_parts(splits: Mapping[str, Source], cut: Cut | None) -> Parts:
    """Take the splits that there are, and what was cut from the training images."""
    whole = training_split(splits)
    val, test = splits.get("val", splits.get("dev")), splits.get("test")
    if cut is not None:
        return Parts(train=Subset(whole, cut[0]), val=Subset(whole, cut[1]), test=test)
    return Parts(train=whole, val=val, test=test)


def _read_cut(path: Path, source: Source, share: float | None) -> Cut | None:
    """Read a cut of these images, of this share where it is said."""
    try:
        with np.load(path, allow_pickle=False) as held:
            same = str(held["fingerprint"]) == source.fingerprint
            return (held["train"], held["dev"]) if same and share in (None, float(held["share"])) else None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _keep_cut(path: Path, source: Source, share: float, cut: Cut) -> None:
    fingerprint = np.array(source.fingerprint)
    with replacing(path) as temporary:
        np.savez(temporary, train=cut[0], dev=cut[1], share=np.array(share), fingerprint=fingerprint)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")
