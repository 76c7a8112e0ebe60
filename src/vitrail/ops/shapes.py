"""The pixels of objects as run lengths, as COCO writes them, and how much of them two objects share; in numpy alone."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Shape(NamedTuple):
    """The pixels of an object: the lengths of runs down the columns of its image, in turn without and with."""

    size: tuple[int, int]  # height and width of the image
    runs: list[int]

    @property
    def area(self) -> int:
        """Pixels."""
        return sum(self.runs[1::2])

    def pixels(self) -> NDArray[np.bool_]:
        """Give them as a mask, H W."""
        return filled(self.runs, self.size)

    def document(self) -> dict[str, Any]:
        """Give it as COCO's JSON has it, packed."""
        return {"size": list(self.size), "counts": packed(self.runs)}


def shape_of(mask: NDArray[np.bool_]) -> Shape:
    """Give the pixels of a mask, H W."""
    return Shape((mask.shape[0], mask.shape[1]), runs_of(mask))


def runs_of(mask: NDArray[np.bool_]) -> list[int]:
    """Give the lengths of runs down the columns, in turn without and with."""
    flat = mask.T.reshape(-1).astype(np.int8)
    edges = np.flatnonzero(np.diff(flat, prepend=0, append=1 - flat[-1]))
    return np.diff(edges, prepend=0).tolist()


def filled(runs: Sequence[int], size: tuple[int, int]) -> NDArray[np.bool_]:
    """Give the mask of run lengths, H W."""
    values = np.arange(len(runs)) % 2 == 1
    return np.repeat(values, runs).reshape(size[1], size[0]).T


def packed(runs: Sequence[int]) -> str:
    """Write run lengths as COCO packs them: five bits a sign, lowest first, differences to the run before the last."""
    text = []
    for place, run in enumerate(runs):
        value = run - runs[place - 2] if place > 2 else run
        while True:
            bits, value = value & 31, value >> 5
            more = value != (-1 if bits & 16 else 0)
            text.append(chr((bits | 32 if more else bits) + 48))
            if not more:
                break
    return "".join(text)


def unpacked(text: str | bytes) -> list[int]:
    """Read run lengths as COCO packs them: five bits a sign, lowest first, differences to the run before the last."""
    runs: list[int] = []
    value, shift = 0, 0
    for sign in text if isinstance(text, bytes) else text.encode("ascii"):
        bits = sign - 48
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            value -= 1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value, shift = 0, 0
    return runs


def shape_overlaps(found: Sequence[Shape], truth: Sequence[Shape], crowd: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Give intersection over union of shapes of one image, found by true; over what was found where it is a crowd."""
    both = np.zeros((len(found), len(truth)))
    edges = [np.fromiter(accumulate(shape.runs), np.int64, len(shape.runs)) for shape in found]
    for col, shape in enumerate(truth):
        flat = shape.pixels().T.reshape(-1)
        before = np.concatenate([[0], np.cumsum(flat, dtype=np.int64)])  # pixels of it before each pixel
        for row, each in enumerate(edges):
            whole = len(each) // 2 * 2  # a last run without any is left out
            both[row, col] = (before[each[1:whole:2]] - before[each[0:whole:2]]).sum()
    mine, theirs = (np.array([shape.area for shape in shapes], dtype=np.float64) for shapes in (found, truth))
    either = np.where(crowd, mine[:, None], mine[:, None] + theirs - both)
    return np.divide(both, either, out=np.zeros_like(both), where=either > 0)
