"""How good predicted classes of pixels are: counts that add, over images and ranks; void pixels are in none."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitrail.ops.metrics import divide_counts


def count_pixels(
    truth: UInt8[Tensor, "*pixels"], answers: Int[Tensor, "*pixels"] | UInt8[Tensor, "*pixels"], classes: int, void: int
) -> Int[Tensor, "K K"]:
    """Count pixels by their true class (rows) and their predicted one (columns)."""
    known = truth != void
    cells = truth[known].long() * classes + answers[known].long()
    return torch.bincount(cells, minlength=classes * classes).reshape(classes, classes)


@dataclass(frozen=True, kw_only=True)
class PixelCounts:
    """Pixels by their true class (rows) and their predicted one (columns)."""

    confusion: NDArray[np.int64]

    @property
    def iou(self) -> NDArray[np.float64]:
        """Intersection over union of every class; NaN where it is neither there nor predicted."""
        both = np.diag(self.confusion)
        return divide_counts(both, self.confusion.sum(axis=0) + self.confusion.sum(axis=1) - both)

    @property
    def recall(self) -> NDArray[np.float64]:
        """The share of a class's pixels that are predicted as it; NaN where there are none."""
        return divide_counts(np.diag(self.confusion), self.confusion.sum(axis=1))

    @property
    def mean_iou(self) -> float:
        """The mean over the classes that are there or predicted; 0 where no pixel counts."""
        found = self.iou
        return float(np.nanmean(found)) if not np.isnan(found).all() else 0.0

    @property
    def accuracy(self) -> float:
        """The share of the pixels that are right; 0 where no pixel counts."""
        return float(np.diag(self.confusion).sum() / max(self.confusion.sum(), 1))

    def metrics(self) -> dict[str, float]:
        """Give the two numbers that stand for all."""
        return {"mean_iou": self.mean_iou, "pixel_accuracy": self.accuracy}
