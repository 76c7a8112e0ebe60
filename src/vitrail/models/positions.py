"""Positions of every kind (eq. 1, Appendix D.4): vectors added to the tokens, or keys for the attention's logits."""

from typing import assert_never

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.config import (
    AppliedAt,
    Grid,
    Learned2DPositions,
    LearnedPositions,
    NoPositions,
    RelativePositions,
    Resampling,
    Sinusoidal2DPositions,
    SinusoidalPositions,
    ViTConfig,
)
from vitrail.ops import resample_axis, resample_positions, sinusoidal_2d_table, sinusoidal_table


class TokenPositions(nn.Module):
    """What every kind has in common: the layers that it acts at, and no effect unless a kind has one."""

    def __init__(self, config: ViTConfig, at: AppliedAt) -> None:
        super().__init__()
        self.at, self.grid, self.leading, self.width = at, config.grid, config.class_tokens, config.width
        self.tables = config.layers if at == "layers" else 1

    def add(self, tokens: Float[Tensor, "B T D"], layer: int, grid: Grid) -> Float[Tensor, "B T D"]:
        """Give the tokens as they go into a layer."""
        return tokens

    def keys(self, layer: int, grid: Grid) -> Float[Tensor, "M D"] | None:
        """Give the relative keys of a layer, where there are any."""
        return None

    def table_of(self, layer: int) -> int | None:
        """Find the table that acts at a layer."""
        if self.at == "stem" and layer > 0:
            return None
        return layer if self.at == "layers" else 0


class AddedPositions(TokenPositions):
    """A vector for every token, added before a layer."""

    def add(self, tokens: Float[Tensor, "B T D"], layer: int, grid: Grid) -> Float[Tensor, "B T D"]:
        """Add the vectors where this layer has any."""
        table = self.table_of(layer)
        return tokens if table is None else tokens + self.vectors(table, grid, tokens)

    def vectors(self, table: int, grid: Grid, like: Tensor) -> Float[Tensor, "T D"]:
        """E_pos at this grid, on the device and in the precision of the tokens where it is not learned."""
        raise NotImplementedError


class Learned(AddedPositions):
    """One learned vector a token (1-D); resampled for another grid (Section 3.2), itself left alone."""

    def __init__(self, config: ViTConfig, at: AppliedAt, resampling: Resampling) -> None:
        super().__init__(config, at)
        self.resampling: Resampling = resampling
        self.table = nn.ParameterList(torch.empty(config.tokens, config.width) for _ in range(self.tables))

    def vectors(self, table: int, grid: Grid, like: Tensor) -> Float[Tensor, "T D"]:
        """Resample the table where the grid is another."""
        return resample_positions(self.table[table], self.grid, grid, self.resampling)


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
    """The fixed code of the original Transformer, by place in the sequence."""

    def vectors(self, table: int, grid: Grid, like: Tensor) -> Float[Tensor, "T D"]:
        """Evaluate the code at the places of the grid."""
        return sinusoidal_table(self.width, self.leading, self.grid, grid, like.device).to(like.dtype)


class Sinusoidal2D(AddedPositions):
    """The fixed code of the row and of the column."""

    def vectors(self, table: int, grid: Grid, like: Tensor) -> Float[Tensor, "T D"]:
        """Evaluate the code at the places of the grid."""
        return sinusoidal_2d_table(self.width, self.leading, self.grid, grid, like.device).to(like.dtype)


class Relative(TokenPositions):
    """A learned key for every offset of two tokens in the sequence (1-D), in the width of all heads."""

    def __init__(self, config: ViTConfig, at: AppliedAt) -> None:
        super().__init__(config, at)
        count = 2 * config.tokens - 1
        self.offsets = nn.ParameterList(torch.empty(count, config.width) for _ in range(self.tables))

    def keys(self, layer: int, grid: Grid) -> Float[Tensor, "M D"] | None:
        """Resample the offsets linearly for another number of tokens: none stays none, the farthest the farthest."""
        table = self.table_of(layer)
        count = 2 * (self.leading + grid[0] * grid[1]) - 1
        return None if table is None else resample_axis(self.offsets[table], 0, count)


def build_positions(config: ViTConfig) -> TokenPositions:
    """Make the positions that the configuration names."""
    match config.positions:
        case NoPositions():
            return TokenPositions(config, "stem")
        case LearnedPositions(at=at, resampling=resampling):
            return Learned(config, at, resampling)
        case Learned2DPositions(at=at):
            return Learned2D(config, at)
        case RelativePositions(at=at):
            return Relative(config, at)
        case SinusoidalPositions(at=at):
            return Sinusoidal(config, at)
        case Sinusoidal2DPositions(at=at):
            return Sinusoidal2D(config, at)
        case _:
            assert_never(config.positions)
