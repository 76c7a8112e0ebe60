"""From what a person names to images with masks or boxes: recognized by what is there."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from vitrail.config.dense import DenseTask
from vitrail.config.given import check_data
from vitrail.data.annotated.coco import coco_places, coco_splits
from vitrail.data.annotated.folder import mask_places, mask_splits
from vitrail.data.annotated.others import has_masks, parquet_mask_splits, scene_splits
from vitrail.data.annotated.voc import voc_pairs, voc_splits
from vitrail.data.open import usual_splits
from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.files import home_path
from vitrail.files.reading import refusing

Progress = Callable[[int, int], None]
KINDS = (
    "train/images/ with train/masks/ of the same names (and instances/), COCO's JSON, Pascal VOC's folders, parquet "
    "with a column mask, or synthetic"
)


def open_annotated(data: object, task: DenseTask, *, progress: Progress | None = None) -> Mapping[str, Source]:
    """Open every split of images with masks, or with boxes: a folder, COCO's JSON, Pascal VOC, parquet, synthetic.

    Or of what a program holds: a source that has annotations, or a mapping from split to such.
    """
    if isinstance(data, Mapping):
        found = {str(split): part for split, part in data.items()}
        if wrong := [split for split, part in found.items() if not isinstance(part, Source)]:
            raise DataError(f"{wrong[0]}: expected a source with annotations; got {type(found[wrong[0]]).__name__}.")
        return usual_splits(found)
    if isinstance(data, Source):
        return {"all": data}
    if not isinstance(data, str | os.PathLike):
        raise DataError(f"task={task} needs {KINDS}; got {type(data).__name__}. docs/dense.md shows each.")
    text = os.fspath(data)
    if text == "synthetic":
        return scene_splits(task)
    path = home_path(text)
    with refusing(path, DataError, "cannot be read as images with masks or boxes", " Check the path."):
        check_data(text)
        if path.is_dir() and (places := mask_places(path)) and (task == "segment" or not voc_pairs(path)):
            return mask_splits(path, places, task, progress)
        if is_table(path):
            return usual_splits(parquet_mask_splits(path, task, progress))
        if places := coco_places(path):
            return coco_splits(places, task)
        pairs = voc_pairs(path) if path.is_dir() else {}
    if pairs and task == "segment":
        raise DataError(f"{path} has boxes and no masks (SegmentationClass/). Take task=detect.")
    if not pairs:
        raise DataError(
            f"task={task} found no masks and no boxes in {path}: expected {KINDS}. docs/dense.md shows each."
        )
    return voc_splits(pairs)


def kind_of(data: object) -> DenseTask | None:
    """Tell whether a path names images with masks or with boxes; None where it is data of another kind."""
    if not isinstance(data, str | os.PathLike):
        return None
    path = home_path(os.fspath(data))
    with refusing(path, DataError, "cannot be read as images with masks or boxes"):
        if path.suffix.lower() == ".json" and path.is_file():
            return "detect"
        if is_table(path):
            return "segment" if has_masks(path) else None
        if not path.is_dir():
            return None
        if places := mask_places(path):
            first = next(iter(places.values()))
            return "segment" if first.masks is not None else "detect"
        return "detect" if coco_places(path) or voc_pairs(path) else None


def is_table(path: Path) -> bool:
    """Tell whether a path names parquet files."""
    if path.suffix.lower() == ".parquet":
        return path.is_file()
    return path.is_dir() and any(any(folder.glob("*.parquet")) for folder in (path, path / "data"))
