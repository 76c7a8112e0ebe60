"""Average precision of boxes and masks, as COCO defines it (Lin et al., 2014): equal to pycocotools, in numpy alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of intersection over union, from which on a box is right
RECALLS = np.linspace(0.0, 1.0, 101)  # at which precision is read
MOST = 100  # boxes of a class in an image that count, the surest ones
FAR = 1e10  # more pixels than any box has
SIZES = {"all": (0.0, FAR), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, FAR)}  # pixels


class TrueBoxes(NamedTuple):
    """The objects of an image."""

    boxes: Reals  # M 4: left, top, right, bottom in pixels
    classes: NDArray[np.int64]  # M
    crowd: NDArray[np.bool_]  # M: what is found there is neither right nor wrong
    areas: Reals  # M: pixels of the object, by which its size is judged


class FoundBoxes(NamedTuple):
    """What a model finds in an image."""

    boxes: Reals  # M 4, in pixels
    classes: NDArray[np.int64]  # M
    scores: Reals  # M


class Overlaps(NamedTuple):
    """How far the pixels that were found in an image are those of its objects, and how many they are."""

    shared: Reals  # found by true
    areas: Reals  # of what was found


class _Judged(NamedTuple):
    """Boxes of a class in an image, the surest first, by size and threshold; and how many objects are to be found."""

    scores: Reals  # D
    right: NDArray[np.bool_]  # A T D
    ignored: NDArray[np.bool_]  # A T D
    objects: NDArray[np.int64]  # A


@dataclass(frozen=True, kw_only=True)
class Precisions:
    """Average precision by size, class and threshold; NaN where there is no such object."""

    table: Reals  # A K T
    objects: NDArray[np.int64]  # K

    def mean(self, size: str = "all", threshold: float | None = None) -> float:
        """Give the mean over the classes, of one threshold or of all ten; NaN where there is no such object."""
        found = self.of_classes(size, threshold)
        return float(np.nanmean(found)) if not np.isnan(found).all() else float("nan")

    def of_classes(self, size: str = "all", threshold: float | None = None) -> Reals:
        """Give that of every class."""
        rows = self.table[list(SIZES).index(size)]
        return rows.mean(axis=1) if threshold is None else rows[:, int(np.abs(THRESHOLDS - threshold).argmin())]

    def metrics(self) -> Mapping[str, float]:
        """Give AP, AP50, AP75, and AP by size where there are objects of it; 0 where there is no object at all."""
        found = {"ap": self.mean(), "ap50": self.mean(threshold=0.5), "ap75": self.mean(threshold=0.75)}
        found = {name: 0.0 if np.isnan(value) else value for name, value in found.items()}
        sized = {f"ap_{size}": self.mean(size) for size in SIZES if size != "all"}
        return found | {name: value for name, value in sized.items() if not np.isnan(value)}


def average_precision(
    truths: Sequence[TrueBoxes],
    found: Sequence[FoundBoxes],
    classes: int,
    overlaps: Sequence[Overlaps] | None = None,
) -> Precisions:
    """Compare what was found in images with what is there: boxes, or the pixels whose overlaps are given."""
    table = np.full((len(SIZES), classes, len(THRESHOLDS)), np.nan)
    for number in range(classes):
        rows = zip(truths, found, [None] * len(truths) if overlaps is None else overlaps, strict=True)
        judged = [_judge(truth, boxes, number, pixels) for truth, boxes, pixels in rows]
        some = [each for each in judged if each is not None]
        if some:
            table[:, number] = _precision(some)
    counts = [np.bincount(truth.classes[~truth.crowd], minlength=classes)[:classes] for truth in truths]
    return Precisions(table=table, objects=np.sum([np.zeros(classes, dtype=np.int64), *counts], axis=0))


def box_overlaps(found: Reals, truth: Reals, crowd: NDArray[np.bool_]) -> Reals:
    """Give intersection over union, found by true; over what was found where the truth is a crowd."""
    low = np.maximum(found[:, None, :2], truth[None, :, :2])
    high = np.minimum(found[:, None, 2:], truth[None, :, 2:])
    both = (high - low).clip(min=0).prod(axis=2)
    mine, theirs = ((boxes[:, 2:] - boxes[:, :2]).prod(axis=1) for boxes in (found, truth))
    either = np.where(crowd, mine[:, None], mine[:, None] + theirs - both)
    return np.divide(both, either, out=np.zeros_like(both), where=either > 0)


def _judge(truth: TrueBoxes, found: FoundBoxes, number: int, pixels: Overlaps | None) -> _Judged | None:
    """Give every object of a class to the surest box, or mask, that covers it best; None where there is neither."""
    mine, theirs = np.flatnonzero(found.classes == number), np.flatnonzero(truth.classes == number)
    if not len(mine) and not len(theirs):
        return None
    mine = mine[np.argsort(-found.scores[mine], kind="stable")][:MOST]
    boxes, crowd, areas = found.boxes[mine], truth.crowd[theirs], truth.areas[theirs]
    low, high = np.array(list(SIZES.values())).T[..., None]  # A 1 each
    passed = crowd | (areas < low) | (areas > high)  # A M: found or not, it counts for nothing
    own = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) if pixels is None else pixels.areas[mine]
    shape = (len(SIZES), len(THRESHOLDS), len(mine))
    right = np.zeros(shape, dtype=np.bool_)
    ignored = np.broadcast_to(((own < low) | (own > high))[:, None], shape).copy()
    if len(theirs):
        whole = None if pixels is None else pixels.shared[mine[:, None], theirs]
        shared = box_overlaps(boxes, truth.boxes[theirs], crowd) if whole is None else whole  # D M
        taken = np.zeros((*shape[:2], len(theirs)), dtype=np.bool_)
        least = np.minimum(THRESHOLDS, 1 - 1e-10)[:, None]  # T 1
        for place in np.flatnonzero(shared.max(axis=1) >= THRESHOLDS[0]):
            open_to = (shared[place] >= least) & (~taken | crowd)  # A T M
            # What counts comes before what is passed over, then the best; of equals the last.
            worth = np.where(open_to, shared[place] + 2.0 * ~passed[:, None], -1.0)
            best = len(theirs) - 1 - worth[..., ::-1].argmax(axis=2)  # A T
            hit = np.take_along_axis(open_to, best[..., None], axis=2)[..., 0]
            over = np.take_along_axis(passed, best, axis=1)
            taken |= hit[..., None] & (np.arange(len(theirs)) == best[..., None])
            right[..., place] = hit & ~over
            ignored[..., place] = np.where(hit, over, ignored[..., place])
    return _Judged(found.scores[mine], right, ignored, (~passed).sum(axis=1))


def _precision(judged: Sequence[_Judged]) -> Reals:
    """Give the mean precision at 101 recalls, A T; NaN where there is nothing to find."""
    order = np.argsort(-np.concatenate([each.scores for each in judged]), kind="stable")
    right = np.concatenate([each.right for each in judged], axis=2)[..., order]
    ignored = np.concatenate([each.ignored for each in judged], axis=2)[..., order]
    objects = np.sum([each.objects for each in judged], axis=0)
    made = np.full(right.shape[:2], np.nan)
    hits = right.cumsum(axis=2).astype(np.float64)
    wrong = (~right & ~ignored).cumsum(axis=2)
    precision = hits / (hits + wrong + np.spacing(1))
    precision = np.maximum.accumulate(precision[..., ::-1], axis=2)[..., ::-1]  # never less at a lower recall
    for place in np.ndindex(made.shape):
        if total := objects[place[0]]:
            at = np.searchsorted(hits[place] / total, RECALLS, side="left")
            made[place] = np.append(precision[place], 0.0)[at].mean()
    return made
