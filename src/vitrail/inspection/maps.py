"""What every patch attends to, in a byte a weight: small enough to be carried by a page."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config import Grid
from vitrail.inspection.attention import AttentionShape, Weights

LEVELS = 255


class MapPlan(NamedTuple):
    """How much of the weights is kept: cells of so many patches a side; all heads of the first images."""

    cell: int
    all_heads: int


class Maps(NamedTuple):
    """The weights of one image: bytes, and what the largest of each map stands for."""

    grid: Grid
    levels: NDArray[np.uint8]  # L h N N, of queries and keys; one head where their mean is kept
    peaks: NDArray[np.float32]  # L h N


def plan_maps(images: int, layers: int, heads: int, grid: Grid, most: int) -> MapPlan:
    """Choose the finest grid at which all images' means fit into so many bytes, one of them with all its heads."""
    for cell in range(1, max(grid) + 1):
        cells = _cells(grid, cell)
        count = cells[0] * cells[1]
        mean = layers * count * (count + 4)
        room = most - images * mean
        if room >= (heads - 1) * mean or (count == 1 and room >= 0):
            return MapPlan(cell, min(images, max(room // max((heads - 1) * mean, 1), 0)))
    return MapPlan(max(grid), 0)


class QueryMaps:
    """Keeps every patch's attention to every other, of all heads or their mean, in cells of several patches."""

    def __init__(self, shape: AttentionShape, cell: int, *, all_heads: bool) -> None:
        self.shape, self.cell, self.all_heads = shape, cell, all_heads
        self.grid = _cells(shape.grid, cell)
        rows, cols = (torch.arange(side, device=shape.device) // cell for side in shape.grid)
        cells = (rows[:, None] * self.grid[1] + cols).flatten()  # the cell of every patch
        self.members = torch.nn.functional.one_hot(cells, self.grid[0] * self.grid[1]).float()  # patches by cells
        self._sums: Tensor | None = None
        self._levels: list[Tensor] = []
        self._peaks: list[Tensor] = []

    def see(self, layer: int, first: int, weights: Weights) -> None:
        """Add the patches among these queries to their cells; after the layer's last one, write bytes."""
        leading = self.shape.leading
        skip = max(leading - first, 0)
        heads = weights.by_head if self.all_heads else weights.mean[:, None]
        kept = heads[:, :, skip:, leading:]
        start = first + skip - leading
        if self.cell == 1:
            some = kept
        else:
            queries = self.members[start : start + kept.shape[2]] / self.members.sum(dim=0)  # the mean of a cell's
            some = queries.T @ (kept @ self.members)  # keys are added up: what a cell's patches get
        if self._sums is None:
            self._sums = some.new_zeros(*kept.shape[:2], len(self.members.T), len(self.members.T))
        if self.cell == 1:
            self._sums[:, :, start : start + kept.shape[2]] = some
        else:
            self._sums += some
        if first + heads.shape[2] == self.shape.tokens:
            self._finish(self._sums)
            self._sums = None

    def _finish(self, weights: Float[Tensor, "B h N N"]) -> None:
        peaks = weights.amax(dim=3)
        scaled = weights / peaks.clamp(min=torch.finfo(weights.dtype).tiny)[..., None] * LEVELS
        self._levels.append(scaled.round().to(torch.uint8).cpu())
        self._peaks.append(peaks.float().cpu())

    def each(self) -> list[Maps]:
        """Give the maps of every image."""
        levels, peaks = torch.stack(self._levels, dim=1), torch.stack(self._peaks, dim=1)
        return [Maps(self.grid, one.numpy(), two.numpy()) for one, two in zip(levels, peaks, strict=True)]


def to_levels(weights: NDArray[np.float32], grid: Grid, cell: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Turn maps of patches (..., rows, cols) into bytes of cells (..., N), and what the largest of each stands for."""
    cells = _cells(grid, cell)
    padded = np.zeros((*weights.shape[:-2], cells[0] * cell, cells[1] * cell), dtype=np.float32)
    padded[..., : grid[0], : grid[1]] = weights
    summed = padded.reshape(*weights.shape[:-2], cells[0], cell, cells[1], cell).sum(axis=(-3, -1))
    flat = summed.reshape(*weights.shape[:-2], cells[0] * cells[1])
    peaks = np.asarray(flat.max(axis=-1))
    scaled = flat / np.maximum(peaks, np.finfo(np.float32).tiny)[..., None] * LEVELS
    return np.rint(scaled).astype(np.uint8), peaks


def _cells(grid: Grid, cell: int) -> Grid:
    return -(-grid[0] // cell), -(-grid[1] // cell)
