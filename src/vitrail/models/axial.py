"""Axial attention: each token attends along its row of the grid, or along its column (Appendix D.6)."""

from jaxtyping import Float
from torch import Tensor

from vitrail.config import Grid, ViTConfig
from vitrail.models.encoder import Block, SelfAttention
from vitrail.ops import attention_weights
from vitrail.ops.lines import Axis, from_lines, to_lines, weights_of_lines


class AxialAttention(SelfAttention):
    """Self-attention among the tokens of a row, or of a column."""

    def __init__(self, config: ViTConfig, axis: Axis) -> None:
        super().__init__(config)
        self.axis: Axis = axis

    def forward(
        self, tokens: Float[Tensor, "B T D"], grid: Grid | None = None, relative: Float[Tensor, "M h d"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Mix the tokens of every line."""
        return from_lines(self.mix(*self.project(tokens, grid), relative), grid, self.axis)

    def project(self, tokens: Float[Tensor, "B T D"], grid: Grid | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of every head (eq. 5), line by line."""
        return super().project(to_lines(tokens, grid, self.axis))

    def weigh(
        self, query: Tensor, key: Tensor, queries: slice, grid: Grid | None, relative: Tensor | None
    ) -> Float[Tensor, "B h Q T"]:
        """Weights of some queries (eq. 6): zero outside a token's own line."""
        return weights_of_lines(attention_weights(query, key), grid, self.axis, queries)


class AxialBlock(Block):
    """A block whose attention is along rows in even layers, along columns in odd ones."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.attention = AxialAttention(config, "row" if layer % 2 == 0 else "column")
