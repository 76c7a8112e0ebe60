"""Parquet files with a column of masks, and synthetic scenes, of which all is known."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from vitrail.config.dense import DenseTask
from vitrail.data.annotated.classes import MaskClasses, find_classes, read_classes
from vitrail.data.annotation import Annotation, of_boxes, of_mask
from vitrail.data.decode import Pixels
from vitrail.data.mask_files import decode_mask
from vitrail.data.sources.parquet import ParquetSource, parquet_splits, shards_of
from vitrail.data.sources.synthetic import SHAPES, Scene, SyntheticSource
from vitrail.errors import DataError
from vitrail.files.columns import LABELS
from vitrail.files.tables import column_names
from vitrail.ops.shapes import shape_of

COLUMNS = ("mask", "annotation", "label", "segmentation_mask", "segmentation")  # of masks, by their usual names
SCENES = {"train": 2000, "test": 1000}  # of 64 pixels
KEPT = 4000  # scenes of a source that are kept in memory


class SceneSource(SyntheticSource):
    """Scenes of shapes: the class of every pixel is its shape's, after the background; or each shape is an object."""

    def __init__(self, count: int, image_size: int | tuple[int, int], *, seed: int, task: DenseTask) -> None:
        super().__init__(count, image_size, seed=seed)
        self.kind = task
        self.class_names = ("background", *SHAPES) if task == "segment" else SHAPES
        self._labels = np.full(count, -1, dtype=np.int64)
        self._fingerprint = f"{task} {self._fingerprint}"
        self._drawn: dict[int, tuple[Pixels, Annotation]] = {}

    def read(self, index: int) -> Pixels:
        """Give the pixels of a scene."""
        return self._kept(index)[0]

    def annotation(self, index: int) -> Annotation:
        """Give what was drawn."""
        return self._kept(index)[1]

    def _kept(self, index: int) -> tuple[Pixels, Annotation]:
        """Draw a scene once: drawing costs more than all else that is done with it before a model sees it."""
        if index not in self._drawn:
            scene = self.scene(index)
            drawn = scene.pixels, self._annotate(scene)
            if len(self._drawn) >= KEPT:
                return drawn
            self._drawn[index] = drawn
        return self._drawn[index]

    def _annotate(self, scene: Scene) -> Annotation:
        number, boxes = SHAPES.index(scene.shape), scene.boxes
        if self.kind == "segment":
            return of_mask(np.where(scene.masks.any(axis=0), number + 1, 0).astype(np.uint8))
        edges = np.stack([boxes[:, 1], boxes[:, 0], boxes[:, 1] + boxes[:, 3], boxes[:, 0] + boxes[:, 2]], axis=1)
        areas, shapes = scene.masks.sum(axis=(1, 2)), [shape_of(mask) for mask in scene.masks]
        size = self.height, self.width
        return of_boxes(edges, np.full(len(boxes), number), areas=areas, size=size, shapes=shapes)


class ParquetMasks(ParquetSource):
    """Rows with an image and a mask."""

    def __init__(self, rows: ParquetSource, masks: ParquetSource, classes: MaskClasses) -> None:
        vars(self).update(vars(rows))
        self.masks, self.classes = masks, classes
        self.class_names = classes.names
        self._labels = np.full(len(rows), -1, dtype=np.int64)
        self._fingerprint = f"masks {rows.fingerprint} {classes.values}"

    def annotation(self, index: int) -> Annotation:
        """Read the mask of a row."""
        return of_mask(self.classes.read(decode_mask(self.masks.read(index))))


def scene_splits(task: DenseTask) -> dict[str, SceneSource]:
    """Open the scenes: 2,000 to train on, 1,000 to test."""
    return {split: SceneSource(count, 64, seed=seed, task=task) for seed, (split, count) in enumerate(SCENES.items())}


def has_masks(place: Path) -> bool:
    """Tell whether parquet files have a column of masks and none of labels: those of labels are of whole images."""
    names = column_names(next(iter(shards_of(place).values()))[0])
    return not names & {*LABELS} and bool(names & {*COLUMNS})


def parquet_mask_splits(
    place: Path, task: DenseTask, progress: Callable[[int, int], None] | None
) -> dict[str, ParquetMasks]:
    """Open every split of parquet files with a column of images and one of masks."""
    if task == "detect":
        raise DataError(f"{place}: parquet files are read with masks, for task=segment. Give boxes as COCO's JSON.")
    column, found = None, {}
    for name in COLUMNS:
        try:
            column, found = name, parquet_splits(place, image=name, unlabeled=True)
            break
        except DataError:
            continue
    if column is None:
        raise DataError(f"{place} has no column of masks; looked for images in {', '.join(COLUMNS)}. Name it mask.")
    rows = parquet_splits(place, unlabeled=True)
    if next(iter(rows.values())).table.image == column:
        raise DataError(f"{place} has one column of images, {column}: expected one of images and one of masks.")
    split = next(iter(found))
    classes = read_classes(place if place.is_dir() else place.parent)
    if classes is None:
        first = found[split]
        classes = find_classes(lambda index: decode_mask(first.read(index)), len(first), str(place), progress)
    return {split: ParquetMasks(each, found[split], classes) for split, each in rows.items()}
