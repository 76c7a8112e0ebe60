"""The other kinds of positions that Appendix D.4 compares, and the choice of one."""

from collections.abc import Callable
from typing import assert_never

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.config import AppliedAt, Grid, Resampling, ViTConfig, positions as kinds
from vitrail.models.positions import AddedPositions, Learned, TokenPositions
from vitrail.ops.attention_chunks import PairTerms
from vitrail.ops.positions import (
    count_offsets,
    offset_numbers,
    resample_axis,
    resample_offsets,
    simple_2d_table,
    sinusoidal_2d_table,
    sinusoidal_table,
)


class Learned2D(AddedPositions):
    """A learned D/2 for the row and one for the column, concatenated; a class token has a vector of its own."""

    def __init__(self, config: ViTConfig, at: AppliedAt) -> None:
        super().__init__(config, at)
        rows, cols = config.grid
        self.rows = nn.ParameterList(torch.empty(rows, config.width // 2) for _ in range(self.tables))
        self.cols = nn.ParameterList(torch.empty(cols, config.width // 2) for _ in range(self.tables))
        self.first = nn.ParameterList(
            torch.empty(self.leading, config.width) for _ in range(self.tables * self.leading)
        )

    def vectors(self, table: int, grid: Grid, like: Tensor) -> Float[Tensor, "T D"]:
        """Resample rows and columns, each along itself, and put them together."""
        rows = resample_axis(self.rows[table], 0, grid[0])[:, None].expand(-1, grid[1], -1)  # rows cols D/2
        cols = resample_axis(self.cols[table], 0, grid[1]).expand(grid[0], -1, -1)  # rows cols D/2
        patches = torch.cat([rows, cols], dim=2).flatten(0, 1)  # N D
        return torch.cat([self.first[table], patches]) if self.leading else patches


class Sinusoidal(AddedPositions):
    """A fixed code of sines and cosines, by place in the sequence or by row and column."""

    def __init__(self, config: ViTConfig, at: AppliedAt, code: Callable[..., Tensor]) -> None:
        super().__init__(config, at)
        self.code = code

    def vectors(self, table: int, grid: Grid, like: Tensor) -> Float[Tensor, "T D"]:
        """Evaluate the code at the places of the grid."""
        return self.code(self.width, self.leading, self.grid, grid, like.device).to(like.dtype)


class Relative(TokenPositions):
    """A learned key of every head for every offset of two tokens in the sequence (1-D)."""

    def __init__(self, config: ViTConfig, at: AppliedAt) -> None:
        super().__init__(config, at)
        self.heads, count = config.heads, 2 * config.tokens - 1
        self.offsets = nn.ParameterList(torch.empty(count, config.width) for _ in range(self.tables))

    def keys(self, layer: int, grid: Grid) -> PairTerms | None:
        """Resample the offsets linearly for another number of tokens: none stays none, the farthest the farthest."""
        table = self.table_of(layer)
        if table is None:
            return None
        keys = resample_axis(self.offsets[table], 0, 2 * (self.leading + grid[0] * grid[1]) - 1)
        return keys.unflatten(1, (self.heads, self.width // self.heads))


class OffsetBiases(nn.ParameterList):
    """A learned number of every head for every offset of two patches in rows and columns, and the class token's."""

    def __init__(self, config: ViTConfig, how: kinds.BiasPositions) -> None:
        numbers, tables = count_offsets(config.grid, config.leading), config.layers if how.at == "layers" else 1
        super().__init__(torch.empty(numbers, config.heads) for _ in range(tables))
        self.how, self.grid, self.leading = how, config.grid, config.leading

    def logits(self, layer: int, grid: Grid) -> Float[Tensor, "1 h T T"] | None:
        """What pairs of tokens add to the logits of a layer; resampled for another grid, itself left alone."""
        if self.how.at == "stem" and layer > 0:
            return None
        own = self[layer if self.how.at == "layers" else 0]
        table = resample_offsets(own, self.grid, grid, self.how.resampling)
        pairs = offset_numbers((grid[0], grid[1]), self.leading, table.device)
        return table[pairs].permute(2, 0, 1)[None]


class Biased(TokenPositions):
    """Biases of offsets alone."""

    def __init__(self, config: ViTConfig, how: kinds.BiasPositions) -> None:
        super().__init__(config, how.at)
        self.biases = OffsetBiases(config, how)

    def keys(self, layer: int, grid: Grid) -> PairTerms | None:
        """Give the biases of a layer."""
        return self.biases.logits(layer, grid)


class BiasedTable(Learned):
    """Biases of offsets, and a table that is added to the tokens."""

    def __init__(self, config: ViTConfig, how: kinds.BiasPositions, resampling: Resampling) -> None:
        super().__init__(config, "stem", resampling)
        self.biases = OffsetBiases(config, how)

    def keys(self, layer: int, grid: Grid) -> PairTerms | None:
        """Give the biases of a layer."""
        return self.biases.logits(layer, grid)


def build_positions(config: ViTConfig) -> TokenPositions:
    """Make the positions that the configuration names."""
    match config.positions:
        case kinds.NoPositions():
            return TokenPositions(config, "stem")
        case kinds.LearnedPositions(at=at, resampling=resampling):
            return Learned(config, at, resampling)
        case kinds.RotaryPositions(table=table):  # attention itself turns queries and keys
            return TokenPositions(config, "stem") if table is None else Learned(config, "stem", table)
        case kinds.Learned2DPositions(at=at):
            return Learned2D(config, at)
        case kinds.RelativePositions(at=at):
            return Relative(config, at)
        case kinds.BiasPositions(table=table) as how:
            return Biased(config, how) if table is None else BiasedTable(config, how, table)
        case kinds.SinusoidalPositions(at=at):
            return Sinusoidal(config, at, sinusoidal_table)
        case kinds.Sinusoidal2DPositions(at=at, code=code):
            return Sinusoidal(config, at, sinusoidal_2d_table if code == "transformer" else simple_2d_table)
        case _:
            assert_never(config.positions)
