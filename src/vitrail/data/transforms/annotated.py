"""Images with their masks and boxes, moved together: cropped, scaled and flipped; no class is ever interpolated."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Num, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation
from vitrail.data.annotation import Annotation, checked, selected, with_shapes
from vitrail.data.decode import Box, OpenImage, Pixels
from vitrail.data.pixels import Range
from vitrail.data.source import Batch, Source
from vitrail.data.transforms.finish import BatchTransform
from vitrail.data.transforms.geometry import SLOTS, inception_box
from vitrail.data.transforms.resize import evaluation_image, resize, to_tensor
from vitrail.ops.constants import upload
from vitrail.ops.random import Purpose, draws

LEAST_LEFT = 0.3  # share of an object's box that a crop must leave of it


class Annotated(NamedTuple):
    """An image as a model reads it, and what is known of it, moved alike."""

    image: Num[Tensor, "C H W"]  # levels
    mask: UInt8[Tensor, "H W"] | None
    objects: Float[Tensor, "M 5"]  # class + 1 and box, in shares of the sides
    shapes: Bool[Tensor, "M H W"] | None = None  # the pixels of each object, where these are learned
    truth: Annotation | None = None  # as it is in the file, to measure by


@dataclass
class AnnotatedTransform:
    """A random part of an image and of what is known of it, or all of it, resized; of (seed, epoch, sample) alone."""

    source: Source
    size: tuple[int, int]
    augmentation: Augmentation
    seed: int
    channels: int = 3
    value_range: Range | None = None
    shapes: bool = False  # of objects, to be learned too

    def __call__(self, data: bytes | Pixels, sample: int, epoch: int) -> Annotated:
        """Cut both, resize the image, and take of masks the nearest pixel."""
        image, (height, width) = _opened(data)
        found = checked(self.source.annotation(sample), height, width)
        found = with_shapes(found, height, width) if self.shapes else found
        box = Box(0, 0, height, width)
        if self.augmentation.crop == "inception":
            u = draws(np.array([sample]), SLOTS, self.seed, epoch, Purpose.CROP)[0]
            box = inception_box(height, width, u, self.augmentation.crop_area, self.augmentation.aspect)
        if isinstance(image, OpenImage):
            part = image.pixels(box, self.size, self.channels, self.value_range)
        else:
            part = image[box.top : box.top + box.height, box.left : box.left + box.width]
        mask = None if found.mask is None else cut_mask(found.mask, box, self.size)
        levels = resize(to_tensor(part, self.channels), self.size, "antialias")
        if self.shapes:
            return Annotated(levels, mask, *cut_shapes(found, box, self.size))
        return Annotated(levels, mask, cut_boxes(found, box))

    def join(self, made: list[Annotated]) -> dict[str, Any]:
        """Put the images of a batch together; there are as many rows of objects as the richest image has."""
        found = join(made, (self.channels, *self.size))
        return {**found, "shapes": join_shapes(made, self.size)} if self.shapes else found


@dataclass
class WholeTransform:
    """The whole image, squashed to what the model reads, with what is known of it as it is in its file."""

    source: Source
    size: tuple[int, int]
    preprocessing: Preprocessing
    channels: int = 3
    shapes: bool = False  # of objects, to measure by too, where they are known

    def __call__(self, data: bytes | Pixels, sample: int, epoch: int) -> Annotated:
        """Decode and resize; the same whatever the epoch."""
        image, (height, width) = _opened(data)
        found = checked(self.source.annotation(sample), height, width)
        whole = Box(0, 0, height, width)
        mask = None if found.mask is None else cut_mask(found.mask, whole, self.size)
        made = evaluation_image(image, self.size, squashed(self.preprocessing), None, self.channels)
        truth = known_shapes(found, height, width) if self.shapes else found._replace(shapes=None)
        return Annotated(made, mask, cut_boxes(found, whole), truth=truth._replace(size=(height, width)))

    def join(self, made: list[Annotated]) -> dict[str, Any]:
        """Put the images of a batch together."""
        truths = [each.truth for each in made if each.truth is not None]
        return {**join(made, (self.channels, *self.size)), "truths": truths}


def squashed(preprocessing: Preprocessing) -> Preprocessing:
    """Give a way to read images that leaves nothing of them out."""
    return preprocessing.changed({"resize": "squash", "crop_share": 1.0})


def join(made: list[Annotated], shape: tuple[int, int, int]) -> dict[str, Any]:
    """Put images together, their masks where they have some, and their objects, filled up with none."""
    if not made:
        empty = torch.empty(0, *shape, dtype=torch.uint8)
        return {"images": empty, "masks": empty[:, 0], "objects": torch.zeros(0, 0, 5)}
    most = max(len(each.objects) for each in made)
    objects = torch.zeros(len(made), most, 5)
    for row, each in zip(objects, made, strict=True):
        row[: len(each.objects)] = each.objects
    masks = [each.mask for each in made if each.mask is not None]
    images = torch.stack([each.image for each in made])
    return {"images": images, "masks": torch.stack(masks) if masks else None, "objects": objects}


def join_shapes(made: list[Annotated], size: tuple[int, int]) -> Bool[Tensor, "B M H W"]:
    """Put the pixels of objects together, filled up with objects of none."""
    shapes = [each.shapes for each in made if each.shapes is not None]
    joined = torch.zeros(len(shapes), max(map(len, shapes), default=0), *size, dtype=torch.bool)
    for row, each in zip(joined, shapes, strict=True):
        row[: len(each)] = each
    return joined


def known_shapes(found: Annotation, height: int, width: int) -> Annotation:
    """Read the pixels of all objects where the file says them."""
    return found if found.shapes is None else with_shapes(found, height, width)


def cut_mask(mask: NDArray[np.uint8], box: Box, size: tuple[int, int]) -> UInt8[Tensor, "H W"]:
    """Take a part of a mask at another size, the nearest pixel to each new one's center."""
    rows = box.top + _nearest(box.height, size[0])
    cols = box.left + _nearest(box.width, size[1])
    return torch.from_numpy(mask[rows[:, None], cols])


def _nearest(old: int, new: int) -> NDArray[np.int64]:
    return np.minimum(((np.arange(new) + 0.5) * (old / new)).astype(np.int64), old - 1)


def cut_boxes(found: Annotation, part: Box) -> Float[Tensor, "M 5"]:
    """Give the objects of which a part still shows enough, in shares of its sides; none that is a crowd."""
    return _rows(*_cut(found, part))


def cut_shapes(
    found: Annotation, part: Box, size: tuple[int, int]
) -> tuple[Float[Tensor, "M 5"], Bool[Tensor, "M H W"]]:
    """Give the objects of a part with their pixels at another size, the nearest ones; what has no pixel there is none.

    The box of an object that the part cuts ends where its pixels do.
    """
    kept, boxes = _cut(found, part)
    rows, cols = part.top + _nearest(part.height, size[0]), part.left + _nearest(part.width, size[1])
    edges = np.array([part.left, part.top, part.left + part.width, part.top + part.height])
    outside = np.concatenate([kept.boxes[:, :2] < edges[:2], kept.boxes[:, 2:] > edges[2:]], axis=1)  # M 4
    there, made = np.zeros(len(boxes), dtype=np.bool_), np.zeros((len(boxes), *size), dtype=np.bool_)
    for place, outline in enumerate(kept.shapes or ()):
        pixels = outline.pixels()
        inside = pixels[part.top : edges[3], part.left : edges[2]]
        there[place] = inside.any()
        made[place] = pixels[rows[:, None], cols]
        if there[place] and outside[place].any():
            for axis, side in ((0, part.width), (1, part.height)):
                seen = np.flatnonzero(inside.any(axis=axis))
                boxes[place, axis] = max(boxes[place, axis], seen[0] / side)
                boxes[place, axis + 2] = min(boxes[place, axis + 2], (seen[-1] + 1) / side)
    there = there & (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
    return _rows(selected(kept, there), boxes[there]), torch.from_numpy(made[there])


def _cut(found: Annotation, part: Box) -> tuple[Annotation, NDArray[np.float64]]:
    """Choose the objects of which a part still shows enough; gives their boxes there too, in shares of its sides."""
    found = selected(found, ~found.crowd)
    corner = np.array([part.left, part.top, part.left, part.top], dtype=np.float64)
    sides = np.array([part.width, part.height, part.width, part.height], dtype=np.float64)
    boxes = ((found.boxes - corner) / sides).clip(0, 1)
    area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    before = np.prod((found.boxes[:, 2:] - found.boxes[:, :2]) / sides[:2], axis=1)
    kept = area > LEAST_LEFT * before
    return selected(found, kept), boxes[kept]


def _rows(found: Annotation, boxes: NDArray[np.float64]) -> Float[Tensor, "M 5"]:
    rows = np.concatenate([found.classes[:, None] + 1.0, boxes], axis=1)
    return torch.from_numpy(rows.astype(np.float32))


@dataclass
class AnnotatedBatchTransform(BatchTransform):
    """Flips, jitters and scales a batch of images, and flips what is known of them alike."""

    def augment(self, batch: Batch) -> Batch:
        """Augment the images in whole levels, and flip the rest."""
        return self._flipped(super().augment(batch))

    def __call__(self, batch: Batch, *, augmented: bool = False) -> Batch:
        """Give float images; `augmented` ones, and what is known of them, are flipped already."""
        made = super().__call__(batch, augmented=augmented)
        return made if augmented else self._flipped(made)

    def _flipped(self, batch: Batch) -> Batch:
        if not self.config.flip or not len(batch.labels):
            return batch
        which = draws(batch.samples.numpy(), 1, self.seed, batch.epoch, Purpose.FLIP)[:, 0] < 0.5  # as `mirror`
        turned = upload(which, batch.images.device)
        masks, objects, shapes = batch.masks, batch.objects, batch.shapes
        if masks is not None:
            masks = torch.where(turned[:, None, None], masks.flip(2), masks)
        if objects is not None:
            mirrored = torch.stack([objects[..., 0], 1 - objects[..., 3], objects[..., 2], 1 - objects[..., 1]], dim=2)
            mirrored = torch.cat([mirrored, objects[..., 4:]], dim=2) * (objects[..., :1] > 0)
            objects = torch.where(turned[:, None, None], mirrored, objects)
        if shapes is not None:
            shapes = torch.where(turned[:, None, None, None], shapes.flip(3), shapes)
        return batch._replace(masks=masks, objects=objects, shapes=shapes)


def _opened(data: bytes | Pixels) -> tuple[OpenImage | Pixels, tuple[int, int]]:
    if isinstance(data, bytes):
        image = OpenImage(data)
        return image, (image.height, image.width)
    return data, (data.shape[0], data.shape[1])
