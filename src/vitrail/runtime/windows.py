"""Images larger than a model's size, seen through windows that overlap: scores averaged, boxes joined."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.decode import Box, OpenImage, Pixels
from vitrail.data.overlays import nearest
from vitrail.data.transforms.finish import scale
from vitrail.data.transforms.resize import resize, to_tensor
from vitrail.models import Model
from vitrail.models.dense_heads import Prediction
from vitrail.ops.average_precision import FoundBoxes
from vitrail.ops.dense import class_scores
from vitrail.ops.shapes import Shape, shape_of
from vitrail.runtime.dense import MOST_BOXES, DenseAnswer, Size, boxes_of, dense_task, shapes_of, without_doubles

OVERLAP = 1 / 3  # of neighbouring windows, at least, as a share of a window's side
SAME, INSIDE = 0.5, 0.8  # intersection over union, and over the smaller box, from which on two boxes are one object
EDGE = 0.01  # share of a window's side: a box that is so near to an inner edge goes on in the next window
AT_ONCE = 16  # windows


def answer_windows(model: Model, data: bytes | Pixels) -> DenseAnswer:
    """Give what a model says of an image, window by window, each as large as the images that it reads."""
    task, like, side = dense_task(model), next(model.parameters()), model.config.image_size
    levels = levels_of(model, data)
    size = levels.shape[1], levels.shape[2]
    larger = enlarged(levels, side)
    places = [*windows(larger.shape[1:], side)]
    rows: list[Prediction] = []
    for start in range(0, len(places), AT_ONCE):
        some = places[start : start + AT_ONCE]
        parts = torch.stack([larger[:, top : top + side[0], left : left + side[1]] for top, left in some])
        said = Prediction(*model(scale(parts.to(like.device), model.card.preprocessing).to(like.dtype)))
        rows += [Prediction(*(each[place : place + 1] for each in said)) for place in range(len(some))]
    if task == "segment":
        return DenseAnswer(_joined_mask(rows, places, side, larger.shape[1:], size), None)
    return _joined_boxes(rows, places, side, larger.shape[1:], size)


def levels_of(model: Model, data: bytes | Pixels) -> Num[Tensor, "C H W"]:
    """Decode all pixels of an image."""
    channels, value_range = model.config.channels, model.card.preprocessing.value_range
    if not isinstance(data, bytes):
        return to_tensor(data, channels)
    image = OpenImage(data)
    whole = Box(0, 0, image.height, image.width)
    return to_tensor(image.pixels(whole, (image.height, image.width), channels, value_range), channels)


def enlarged(levels: Num[Tensor, "C H W"], side: Size) -> Num[Tensor, "C H2 W2"]:
    """Give an image that a window fits into."""
    height, width = levels.shape[1:]
    factor = max(side[0] / height, side[1] / width, 1.0)
    return resize(levels, (max(round(height * factor), side[0]), max(round(width * factor), side[1])), "antialias")


def windows(size: tuple[int, ...] | torch.Size, side: Size) -> Iterator[Size]:
    """Give top and left of the fewest windows that cover an image and overlap enough, evenly spread."""
    starts: list[list[int]] = []
    for length, window in zip(size, side, strict=True):
        count = 1 + int(np.ceil((length - window) / (window * (1 - OVERLAP))))
        starts.append(np.linspace(0, length - window, count).round().astype(np.int64).tolist())
    yield from ((top, left) for top in starts[0] for left in starts[1])


def _joined_mask(rows: list[Prediction], places: list[Size], side: Size, whole: torch.Size, size: Size) -> Tensor:
    total: Float[Tensor, "1 K H W"] | None = None
    for row, (top, left) in zip(rows, places, strict=True):
        scores = class_scores(row.classes, row.masks, side)
        total = scores.new_zeros(1, scores.shape[1], *whole) if total is None else total
        total[:, :, top : top + side[0], left : left + side[1]] += scores
    assert total is not None
    counts = torch.zeros(whole, device=total.device)
    for top, left in places:
        counts[top : top + side[0], left : left + side[1]] += 1
    return F.interpolate(total / counts, size=size, mode="bilinear")[0].argmax(dim=0).to(torch.uint8)


def _joined_boxes(rows: list[Prediction], places: list[Size], side: Size, whole: torch.Size, size: Size) -> DenseAnswer:
    found: list[FoundBoxes] = []
    drawn_by: list[tuple[int, int]] = []  # of each box its window and query
    for place, (row, (top, left)) in enumerate(zip(rows, places, strict=True)):
        shares = row.classes[0].float().softmax(dim=1)[:, :-1].cpu()
        part, queries = boxes_of(shares, row.boxes[0].float().cpu(), side)
        inner = np.array([left > 0, top > 0, left + side[1] < whole[1], top + side[0] < whole[0]])
        near = np.array([EDGE * side[1], EDGE * side[0]])
        low, high = part.boxes[:, :2] <= near, part.boxes[:, 2:] >= np.array([side[1], side[0]]) - near
        small = (part.boxes[:, 2:] - part.boxes[:, :2]) <= OVERLAP * np.array([side[1], side[0]])  # whole in another
        cut = (np.concatenate([low, high], axis=1) & inner & np.concatenate([small, small], axis=1)).any(axis=1)
        moved = part.boxes + np.array([left, top, left, top])
        found.append(FoundBoxes(moved[~cut], part.classes[~cut], part.scores[~cut]))
        drawn_by += [(place, query) for query in queries[~cut].tolist()]
    every = FoundBoxes(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    kept = without_doubles(every, same=SAME, inside=INSIDE)[:MOST_BOXES]
    shrink = np.array([size[1] / whole[1], size[0] / whole[0]] * 2)
    joined = FoundBoxes(every.boxes[kept] * shrink, every.classes[kept], every.scores[kept])
    if not rows[0].masks.shape[1]:
        return DenseAnswer(None, joined)
    shapes: list[Shape] = []
    for place, query in (drawn_by[number] for number in kept.tolist()):  # as the surest window draws it
        (shape,) = shapes_of(rows[place].masks[0], np.array([query]), side)
        (top, left), large = places[place], np.zeros(tuple(whole), dtype=np.uint8)
        large[top : top + side[0], left : left + side[1]] = shape.pixels()
        shapes.append(shape_of(nearest(large, size) > 0))
    return DenseAnswer(None, joined, shapes)
