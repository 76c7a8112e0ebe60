"""Masks and boxes as COCO's JSON has them: the rows of a document of truths, and of one of predictions."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.annotated.coco import CocoSource
from vitrail.data.annotation import VOID, Annotation, Outline, outlined
from vitrail.data.source import Source, Subset
from vitrail.ops.shapes import Shape, shape_of


class CocoNames:
    """The numbers of images and categories of a source: its document's own, or from 1 on."""

    def __init__(self, source: Source) -> None:
        self.source, places = source, None
        if isinstance(source, Subset):
            places, source = source.indices, source.source
        ids = source.image_ids if isinstance(source, CocoSource) else range(1, len(source) + 1)
        self.images = [ids[place] for place in (range(len(source)) if places is None else places.tolist())]
        own = source.category_ids if isinstance(source, CocoSource) and source.task == "detect" else None
        self.categories = own or [*range(1, len(source.class_names) + 1)]

    def document(self, sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Give images and categories, without annotations yet."""
        images = [
            {"id": number, "file_name": self.source.name(place), "height": height, "width": width}
            for place, (number, (height, width)) in enumerate(zip(self.images, sizes, strict=True))
        ]
        names = zip(self.categories, self.source.class_names, strict=True)
        return {"images": images, "annotations": [], "categories": [{"id": id, "name": name} for id, name in names]}

    def truths(self, sample: int, known: Annotation) -> Iterator[dict[str, Any]]:
        """Give what is known of an image; without their numbers, which are of the whole document."""
        if known.mask is not None:
            for row in self.masks(sample, known.mask):
                yield {**row, "iscrowd": 0}
            return
        rows = zip(known.boxes, known.classes, known.crowd, known.areas, strict=True)
        for place, (box, number, crowd, area) in enumerate(rows):
            said = {"bbox": xywh(box), "area": float(area), "iscrowd": int(crowd)}
            yield {**self._row(sample, int(number)), **said, **_drawn(known.shapes, place)}

    def boxes(
        self,
        sample: int,
        boxes: NDArray[np.float64],
        classes: NDArray[np.int64],
        scores: NDArray[np.float64],
        shapes: Sequence[Shape] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Give the boxes that were found in an image, and the shapes where some were drawn."""
        for place, (box, number, score) in enumerate(zip(boxes, classes, scores, strict=True)):
            said = {"bbox": xywh(box), "score": round(float(score), 9)}
            yield {**self._row(sample, int(number)), **said, **_drawn(shapes, place)}

    def masks(self, sample: int, mask: NDArray[np.uint8]) -> Iterator[dict[str, Any]]:
        """Give the pixels of each class of an image."""
        for number in np.unique(mask[mask != VOID]):
            where = mask == number
            rows, cols = np.flatnonzero(where.any(axis=1)), np.flatnonzero(where.any(axis=0))
            box = [int(cols[0]), int(rows[0]), int(cols[-1] - cols[0] + 1), int(rows[-1] - rows[0] + 1)]
            said = {"segmentation": shape_of(where).document(), "area": int(where.sum()), "bbox": box}
            yield {**self._row(sample, int(number)), **said}

    def _row(self, sample: int, number: int) -> dict[str, Any]:
        return {"image_id": self.images[sample], "category_id": self.categories[number]}


def _drawn(shapes: Sequence[Outline] | None, place: int) -> dict[str, Any]:
    return {} if shapes is None else {"segmentation": outlined(shapes[place]).document()}


def xywh(box: NDArray[np.float64]) -> list[float]:
    """Give left, top, width and height of a box."""
    left, top, right, bottom = box.tolist()
    return [round(edge, 3) for edge in (left, top, right - left, bottom - top)]
