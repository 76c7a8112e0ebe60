"""What a model says of the pixels and the objects of images: whole images, or windows of larger ones."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.config.dense import DenseTask
from vitrail.data.annotation import VOID, Annotation
from vitrail.models import Model, eval_mode
from vitrail.models.dense_heads import Prediction
from vitrail.ops.average_precision import FoundBoxes, Precisions, TrueBoxes, average_precision, box_overlaps
from vitrail.ops.dense import class_scores
from vitrail.ops.pixel_metrics import PixelCounts, count_pixels

MOST_BOXES = 100  # of an image, the surest ones: as many as COCO counts
SAME = 0.65  # overlap from which on two boxes of a class are one object; queries seldom say one twice
FAINT = 0.001  # score under which nothing is found
Size = tuple[int, int]  # rows, cols of pixels
Autocast = Callable[[], AbstractContextManager[object]]


class DenseAnswer(NamedTuple):
    """What a model says of an image: the class of every pixel, or boxes, in the image's own pixels."""

    mask: UInt8[Tensor, "H W"] | None
    found: FoundBoxes | None


def dense_task(model: Model) -> DenseTask | None:
    """Tell what is predicted of pixels or objects; None of a classifier of images."""
    head = getattr(model.config, "head", None)
    return None if head is None else head.task


def answers_of(said: Prediction, sizes: list[Size], task: DenseTask, seen: Size) -> list[DenseAnswer]:
    """Give what is said of each image, which is of this size, and was seen at another."""
    if task == "segment":
        parts = (each.split(1) for each in said[:2])
        rows = (class_scores(classes, masks, seen)[0] for classes, masks in zip(*parts, strict=True))
        return [DenseAnswer(mask_of(row, size), None) for row, size in zip(rows, sizes, strict=True)]
    shares, boxes = said.classes.float().softmax(dim=2)[:, :, :-1].cpu(), said.boxes.float().cpu()
    rows = zip(shares, boxes, sizes, strict=True)
    return [DenseAnswer(None, boxes_of(share, box, size)) for share, box, size in rows]


def mask_of(scores: Float[Tensor, "K h w"], size: Size) -> UInt8[Tensor, "H W"]:
    """Give the class of every pixel, of scores on any grid."""
    whole = F.interpolate(scores[None].float(), size=size, mode="bilinear")[0]
    return whole.argmax(dim=0).to(torch.uint8)


def boxes_of(shares: Float[Tensor, "Q K"], boxes: Float[Tensor, "Q 4"], size: Size) -> FoundBoxes:
    """Give the surest boxes, a class each, in the pixels of an image of this size; the surest first."""
    scores, order = shares.flatten().sort(descending=True, stable=True)
    kept = (scores >= FAINT).nonzero()[:, 0][:MOST_BOXES]
    place = order[kept]
    sides = torch.tensor([size[1], size[0], size[1], size[0]], dtype=torch.float64)
    where = boxes[place // shares.shape[1]].double().clamp(0, 1) * sides
    found = FoundBoxes(where.numpy(), (place % shares.shape[1]).numpy(), scores[kept].double().numpy())
    single = without_doubles(found, same=SAME)
    return FoundBoxes(found.boxes[single], found.classes[single], found.scores[single])


def without_doubles(found: FoundBoxes, *, same: float, inside: float = 2.0) -> NDArray[np.int64]:
    """Give the numbers of boxes, the surest first, without those that a surer one of their class covers.

    `same` is the intersection over union, `inside` that over the smaller box, from which on two boxes are one object.
    """
    kept: list[int] = []
    areas = (found.boxes[:, 2:] - found.boxes[:, :2]).prod(axis=1)
    for place in np.argsort(-found.scores, kind="stable").tolist():
        rivals = [other for other in kept if found.classes[other] == found.classes[place]]
        if rivals:
            mine, theirs = found.boxes[place : place + 1], found.boxes[rivals]
            shared = box_overlaps(mine, theirs, np.zeros(len(rivals), dtype=np.bool_))[0]
            both = shared / (1 + shared) * (areas[place] + areas[rivals])
            if (shared >= same).any() or (both >= inside * np.minimum(areas[place], areas[rivals])).any():
                continue
        kept.append(place)
    return np.array(kept, dtype=np.int64)


def answer_images(
    model: Model,
    images: Tensor,
    sizes: list[Size],
    *,
    forward: Callable[..., Any] | None = None,
    autocast: Autocast = nullcontext,
) -> list[DenseAnswer]:
    """Give what a model says of finished images, which were of these sizes."""
    task = dense_task(model)
    assert task is not None
    with autocast():
        said = Prediction(*(model if forward is None else forward)(images))
    seen = images.shape[2], images.shape[3]
    return answers_of(Prediction(*(part[: len(sizes)] for part in said)), sizes, task, seen)


def truth_of(known: Annotation) -> TrueBoxes:
    """Give the objects of an image as they are measured by."""
    return TrueBoxes(known.boxes, known.classes, known.crowd, known.areas)


@dataclass
class DenseTally:
    """Answers compared with what is there: pixels as counts that add, boxes as they are."""

    classes: int
    pixels: NDArray[np.int64] = field(init=False)
    boxes: dict[int, tuple[TrueBoxes, FoundBoxes]] = field(default_factory=dict)  # by the image's number

    def __post_init__(self) -> None:
        self.pixels = np.zeros((self.classes, self.classes), dtype=np.int64)

    def add(self, sample: int, known: Annotation, answer: DenseAnswer) -> NDArray[np.int64] | None:
        """Take an image's answer; gives the pixels of it by true class and answer, where they have classes."""
        if answer.mask is None or known.mask is None:
            assert answer.found is not None
            self.boxes[sample] = truth_of(known), answer.found
            return None
        counts = count_pixels(torch.from_numpy(known.mask), answer.mask.cpu(), self.classes, VOID).numpy()
        self.pixels += counts
        return counts

    def join(self, others: list["DenseTally"]) -> "DenseTally":
        """Give the tallies of all processes as one."""
        made = DenseTally(self.classes)
        for other in others:
            made.pixels += other.pixels
            made.boxes |= other.boxes
        return made

    def result(self, task: DenseTask) -> PixelCounts | Precisions:
        """Give what is measured of all."""
        if task == "segment":
            return PixelCounts(confusion=self.pixels)
        rows = [self.boxes[sample] for sample in sorted(self.boxes)]
        return average_precision([truth for truth, _ in rows], [found for _, found in rows], self.classes)


def go_through(
    model: Model,
    batches: Iterator[Any],
    *,
    forward: Callable[..., Any] | None = None,
    autocast: Autocast = nullcontext,
    pad: Callable[[Any], Any] = lambda batch: batch,
) -> Iterator[tuple[Any, list[tuple[int, Annotation, DenseAnswer]]]]:
    """Give every batch of images with what is known of them, and what the model says of each."""
    with eval_mode(model):
        for batch in batches:
            truths = batch.truths or []
            sizes = [size for truth in truths if (size := truth.size) is not None]
            # A rank without images runs too: the others may wait for it.
            found = answer_images(model, pad(batch).images, sizes, forward=forward, autocast=autocast)
            yield batch, list(zip(batch.samples.tolist(), truths, found, strict=True))
