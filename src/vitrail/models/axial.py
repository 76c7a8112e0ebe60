"""Axial attention: each token attends along its row of the grid, or along its column (Appendix D.6)."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.config import Grid, ViTConfig
from vitrail.errors import ShapeError
from vitrail.models.encoder import SelfAttention
from vitrail.models.parts import PartedBlock
from vitrail.ops.attention import Pairs
from vitrail.ops.attention_chunks import attention_weights

Axis = Literal["row", "column"]  # along which a token attends


def to_lines(tokens: Float[Tensor, "B T D"], grid: tuple[int, int] | None, axis: Axis) -> Float[Tensor, "B2 T2 D"]:
    """Split the tokens into the sequences that attend to themselves."""
    lines = tokens.unflatten(1, _given(grid))  # B rows cols D
    return (lines if axis == "row" else lines.transpose(1, 2)).flatten(0, 1)


def from_lines(lines: Float[Tensor, "B2 T2 D"], grid: tuple[int, int] | None, axis: Axis) -> Float[Tensor, "B T D"]:
    """Put the sequences together again; the inverse of `to_lines`."""
    rows, cols = _given(grid)
    if axis == "row":
        return lines.unflatten(0, (lines.shape[0] // rows, rows)).flatten(1, 2)
    return lines.unflatten(0, (lines.shape[0] // cols, cols)).transpose(1, 2).flatten(1, 2)


def weights_of_lines(
    weights: Float[Tensor, "B2 h T2 T2"], grid: tuple[int, int] | None, axis: Axis, queries: slice
) -> Float[Tensor, "B h Q T"]:
    """The weights of lines as those of some tokens to all: zero wherever a token does not attend."""
    rows, cols = _given(grid)
    count = rows if axis == "row" else cols
    lines = weights.unflatten(0, (weights.shape[0] // count, count)).transpose(1, 2)  # B h lines T2 T2
    places = torch.arange(rows * cols, device=weights.device)[queries]  # Q
    row, col, each = places // cols, places % cols, torch.arange(len(places), device=weights.device)
    whole = weights.new_zeros(*lines.shape[:2], len(places), rows, cols)
    if axis == "row":
        whole[:, :, each, row, :] = lines[:, :, row, col]
    else:
        whole[:, :, each, :, col] = lines[:, :, col, row].permute(2, 0, 1, 3)
    return whole.flatten(3)


def _given(grid: tuple[int, int] | None) -> tuple[int, int]:
    if grid is None:
        raise ShapeError("axial attention runs along rows and columns; give the grid=(rows, cols) of the tokens.")
    return grid


class AxialAttention(SelfAttention):
    """Self-attention among the tokens of a row, or of a column."""

    def __init__(self, config: ViTConfig, axis: Axis) -> None:
        super().__init__(config)
        self.axis: Axis = axis

    def forward(
        self, tokens: Float[Tensor, "B T D"], grid: Grid | None = None, pairs: Pairs = None
    ) -> Float[Tensor, "B T D"]:
        """Mix the tokens of every line."""
        return from_lines(self.mix(*self.project(tokens, grid), pairs), grid, self.axis)

    def project(self, tokens: Float[Tensor, "B T D"], grid: Grid | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of every head (eq. 5), line by line."""
        return super().project(to_lines(tokens, grid, self.axis))

    def weigh(
        self, query: Tensor, key: Tensor, queries: slice, grid: Grid | None, relative: Tensor | None
    ) -> Float[Tensor, "B h Q T"]:
        """Weights of some queries (eq. 6): zero outside a token's own line."""
        return weights_of_lines(attention_weights(query, key), grid, self.axis, queries)


class AxialBlock(PartedBlock):
    """A block whose attention is along rows in even layers, along columns in odd ones."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.attention = AxialAttention(config, "row" if layer % 2 == 0 else "column")
