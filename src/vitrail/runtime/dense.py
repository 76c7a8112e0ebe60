"""What a model says of the pixels and the objects of images: whole images, or windows of larger ones."""

from collections.abc import Callable, Iterator, Sequence
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
from vitrail.data.annotation import VOID, Annotation, outlined
from vitrail.models import Model, eval_mode
from vitrail.models.dense_heads import Prediction
from vitrail.ops.average_precision import FoundBoxes, Overlaps, Precisions, TrueBoxes, average_precision, box_overlaps
from vitrail.ops.dense import class_scores
from vitrail.ops.pixel_metrics import PixelCounts, count_pixels
from vitrail.ops.shapes import Shape, shape_of, shape_overlaps

MOST_BOXES = 100  # of an image, the surest ones: as many as COCO counts
SAME = 0.65  # overlap from which on two boxes of a class are one object; queries seldom say one twice
FAINT = 0.001  # score under which nothing is found
Size = tuple[int, int]  # rows, cols of pixels
Autocast = Callable[[], AbstractContextManager[object]]


class DenseAnswer(NamedTuple):
    """What a model says of an image: the class of every pixel, or objects, in the image's own pixels."""

    mask: UInt8[Tensor, "H W"] | None
    found: FoundBoxes | None
    shapes: Sequence[Shape] | None = None  # of the boxes that were found, where the model draws them


def dense_task(model: Model) -> DenseTask | None:
    """Tell what is predicted of pixels or objects; None of a classifier of images."""
    head = getattr(model.config, "head", None)
    return None if head is None else head.task


def draws_objects(model: Model) -> bool:
    """Tell whether a model gives the pixels of objects too."""
    head = getattr(model.config, "head", None)
    return head is not None and head.shapes


def answers_of(said: Prediction, sizes: list[Size], task: DenseTask, seen: Size) -> list[DenseAnswer]:
    """Give what is said of each image, which is of this size, and was seen at another."""
    if task == "segment":
        parts = (each.split(1) for each in said[:2])
        rows = (class_scores(classes, masks, seen)[0] for classes, masks in zip(*parts, strict=True))
        return [DenseAnswer(mask_of(row, size), None) for row, size in zip(rows, sizes, strict=True)]
    shares, boxes = said.classes.float().softmax(dim=2)[:, :, :-1].cpu(), said.boxes.float().cpu()
    made: list[DenseAnswer] = []
    for share, box, masks, size in zip(shares, boxes, said.masks, sizes, strict=True):
        found, queries = boxes_of(share, box, size)
        made.append(DenseAnswer(None, found, shapes_of(masks, queries, size) if len(masks) else None))
    return made


def mask_of(scores: Float[Tensor, "K h w"], size: Size) -> UInt8[Tensor, "H W"]:
    """Give the class of every pixel, of scores on any grid."""
    whole = F.interpolate(scores[None].float(), size=size, mode="bilinear")[0]
    return whole.argmax(dim=0).to(torch.uint8)


def boxes_of(
    shares: Float[Tensor, "Q K"], boxes: Float[Tensor, "Q 4"], size: Size
) -> tuple[FoundBoxes, NDArray[np.int64]]:
    """Give the surest boxes, a class each, in the pixels of an image of this size, and their queries; surest first."""
    scores, order = shares.flatten().sort(descending=True, stable=True)
    kept = (scores >= FAINT).nonzero()[:, 0][:MOST_BOXES]
    place = order[kept]
    sides = torch.tensor([size[1], size[0], size[1], size[0]], dtype=torch.float64)
    queries = place // shares.shape[1]
    where = boxes[queries].double().clamp(0, 1) * sides
    found = FoundBoxes(where.numpy(), (place % shares.shape[1]).numpy(), scores[kept].double().numpy())
    single = without_doubles(found, same=SAME)
    return FoundBoxes(found.boxes[single], found.classes[single], found.scores[single]), queries.numpy()[single]


def shapes_of(masks: Float[Tensor, "Q h w"], queries: NDArray[np.int64], size: Size) -> list[Shape]:
    """Give the pixels that queries draw in an image of this size; one may be asked for several classes."""
    made: dict[int, Shape] = {}
    for query in dict.fromkeys(queries.tolist()):
        whole = F.interpolate(masks[query][None, None].float(), size=size, mode="bilinear")[0, 0]
        made[query] = shape_of((whole > 0).cpu().numpy())
    return [made[query] for query in queries.tolist()]


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
    """Answers compared with what is there: pixels as counts that add, boxes as they are, shapes as they overlap."""

    classes: int
    pixels: NDArray[np.int64] = field(init=False)
    boxes: dict[int, tuple[TrueBoxes, FoundBoxes]] = field(default_factory=dict)  # by the image's number
    overlaps: dict[int, Overlaps] = field(default_factory=dict)  # of the images whose shapes are known and said

    def __post_init__(self) -> None:
        self.pixels = np.zeros((self.classes, self.classes), dtype=np.int64)

    def add(self, sample: int, known: Annotation, answer: DenseAnswer) -> NDArray[np.int64] | None:
        """Take an image's answer; gives the pixels of it by true class and answer, where they have classes."""
        if answer.mask is None or known.mask is None:
            assert answer.found is not None
            self.boxes[sample] = truth_of(known), answer.found
            if answer.shapes is not None and known.shapes is not None:
                shared = shape_overlaps(answer.shapes, [outlined(each) for each in known.shapes], known.crowd)
                areas = np.array([shape.area for shape in answer.shapes], dtype=np.float64)
                self.overlaps[sample] = Overlaps(shared, areas)
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
            made.overlaps |= other.overlaps
        return made

    def result(self, task: DenseTask) -> PixelCounts | Precisions:
        """Give what is measured of all."""
        if task == "segment":
            return PixelCounts(confusion=self.pixels)
        rows = [self.boxes[sample] for sample in sorted(self.boxes)]
        return average_precision([truth for truth, _ in rows], [found for _, found in rows], self.classes)

    def shapes_result(self) -> Precisions | None:
        """Give what is measured of the pixels of objects; None where no image has such."""
        samples = sorted(self.overlaps)
        rows, overlaps = [self.boxes[sample] for sample in samples], [self.overlaps[sample] for sample in samples]
        if not samples:
            return None
        return average_precision([truth for truth, _ in rows], [found for _, found in rows], self.classes, overlaps)

    def metrics(self, task: DenseTask) -> dict[str, float]:
        """Give all numbers by their names: those of boxes first, then those of masks."""
        drawn = self.shapes_result()
        masks = {} if drawn is None else {f"mask_{name}": value for name, value in drawn.metrics().items()}
        return {**self.result(task).metrics(), **masks}


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
