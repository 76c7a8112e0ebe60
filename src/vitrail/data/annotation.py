"""What is known of an image beside its pixels: a class for every pixel, or objects with their boxes."""

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import ImageError
from vitrail.ops.shapes import Shape, shape_of

VOID = 255  # of a pixel that counts nowhere; classes of pixels are numbered below it
MOST = 254  # classes of pixels


@runtime_checkable
class Outline(Protocol):
    """The pixels of an object, however its file says them; read when they are asked for."""

    def pixels(self) -> NDArray[np.bool_]:
        """Give them as a mask, H W; what cannot be read raises `ImageError` with the reason."""
        ...


class Annotation(NamedTuple):
    """The classes of an image's pixels, or its objects, as their file says them; sizes are of the upright image.

    A box is (left, top, right, bottom), in pixels; `crowd` marks those that stand for many objects, or cannot be
    judged: nothing is learned of them, and what is found there is neither right nor wrong.
    """

    mask: NDArray[np.uint8] | None  # H W: the class of every pixel, or VOID
    boxes: NDArray[np.float64]  # M 4
    classes: NDArray[np.int64]  # M
    crowd: NDArray[np.bool_]  # M
    areas: NDArray[np.float64]  # M: pixels of each object, or of its box
    size: tuple[int, int] | None = None  # height and width, where the file says them
    shapes: tuple[Outline, ...] | None = None  # M: the pixels of each object, where the file says them of all


def of_mask(mask: NDArray[np.uint8]) -> Annotation:
    """Annotate with classes of pixels alone."""
    return of_boxes(np.zeros((0, 4)), [])._replace(mask=mask, size=(mask.shape[0], mask.shape[1]))


def of_boxes(
    boxes: object,
    classes: object,
    crowd: object = None,
    areas: object = None,
    size: tuple[int, int] | None = None,
    shapes: Sequence[Outline] | None = None,
) -> Annotation:
    """Annotate with objects alone; the area of one is its box's where nothing else is said."""
    found = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    box_areas = (found[:, 2] - found[:, 0]) * (found[:, 3] - found[:, 1])
    return Annotation(
        mask=None,
        boxes=found,
        classes=np.asarray(classes, dtype=np.int64).reshape(-1),
        crowd=np.zeros(len(found), dtype=np.bool_) if crowd is None else np.asarray(crowd, dtype=np.bool_),
        areas=box_areas if areas is None else np.asarray(areas, dtype=np.float64),
        size=size,
        shapes=None if shapes is None else tuple(shapes),
    )


def selected(found: Annotation, kept: NDArray[np.bool_]) -> Annotation:
    """Keep some of the objects."""
    rows = {name: getattr(found, name)[kept] for name in ("boxes", "classes", "crowd", "areas")}
    shapes = None if found.shapes is None else tuple(compress(found.shapes, kept))
    return found._replace(**rows, shapes=shapes)


def outlined(outline: Outline) -> Shape:
    """Give the pixels of an object as run lengths."""
    return outline if isinstance(outline, Shape) else shape_of(outline.pixels())


def with_shapes(found: Annotation, height: int, width: int) -> Annotation:
    """Read the pixels of all objects; refuses where some have none, or those of an image of another size."""
    if found.shapes is None:
        if len(found.boxes):
            raise ImageError("it has a box without the pixels of the object. Give them, or set head.masks=false")
        return found._replace(shapes=())
    shapes = tuple(outlined(each) for each in found.shapes)
    if wrong := [each.size for each in shapes if each.size != (height, width)]:
        tall, wide = wrong[0]
        raise ImageError(f"an object is drawn on {tall}x{wide} pixels; the image is {height}x{width}")
    return found._replace(shapes=shapes)


def checked(found: Annotation, height: int, width: int) -> Annotation:
    """Refuse what is known of an image of another size; leave out objects of classes that training does not name."""
    if found.mask is not None and found.mask.shape != (height, width):
        tall, wide = found.mask.shape
        raise ImageError(f"its mask is {tall}x{wide}, the image {height}x{width} (upright); expected the same size")
    if found.size not in (None, (height, width)):
        raise ImageError(f"its boxes are of {found.size[0]}x{found.size[1]} pixels; the image is {height}x{width}")
    return clipped(selected(found, found.classes >= 0), height, width)


def clipped(found: Annotation, height: int, width: int) -> Annotation:
    """Cut boxes at the edges of the image, and leave out those of which nothing is left."""
    high = np.array([width, height, width, height], dtype=np.float64)
    boxes = found.boxes.clip(0, high)
    kept = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    return selected(found._replace(boxes=boxes), kept)


def boxes_of(instances: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Give the number, the box and the area of every object in a map of numbers, in which 0 is none."""
    numbers, places = np.unique(instances, return_inverse=True)
    places = places.reshape(instances.shape)
    count = len(numbers)
    rows, cols = np.indices(instances.shape)
    low, high = np.full((count, 2), max(instances.shape)), np.full((count, 2), -1)
    for axis, along in ((0, cols), (1, rows)):
        np.minimum.at(low[:, axis], places.ravel(), along.ravel())
        np.maximum.at(high[:, axis], places.ravel(), along.ravel())
    areas = np.bincount(places.ravel(), minlength=count).astype(np.float64)
    boxes = np.concatenate([low, high + 1], axis=1).astype(np.float64)
    real = numbers != 0
    return numbers[real].astype(np.int64), boxes[real], areas[real]
