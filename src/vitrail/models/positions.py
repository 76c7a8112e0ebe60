"""Positions (eq. 1): learned vectors that are added to the tokens. `position_kinds` has those of Appendix D.4."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail.config import AppliedAt, Grid, Resampling, ViTConfig
from vitrail.ops.attention_chunks import PairTerms
from vitrail.ops.patches import same_size
from vitrail.ops.positions import resample_positions


class TokenPositions(nn.Module):
    """What every kind has in common: the layers that it acts at, and no effect unless a kind has one."""

    def __init__(self, config: ViTConfig, at: AppliedAt) -> None:
        super().__init__()
        self.at, self.grid, self.leading, self.width = at, config.grid, config.leading, config.width
        self.tables = config.layers if at == "layers" else 1

    def add(
        self, tokens: Float[Tensor, "B T D"], layer: int, grid: Grid, visible: Int64[Tensor, "B V"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Give the tokens as they go into a layer; `visible` numbers their patches where they are not all of a grid."""
        return tokens

    def keys(self, layer: int, grid: Grid) -> PairTerms | None:
        """Give what pairs of tokens have in a layer, where they have any: relative keys, or biases of the logits."""
        return None

    def table_of(self, layer: int) -> int | None:
        """Find the table that acts at a layer."""
        if self.at == "stem" and layer > 0:
            return None
        return layer if self.at == "layers" else 0


class AddedPositions(TokenPositions):
    """A vector for every token, added before a layer."""

    def add(
        self, tokens: Float[Tensor, "B T D"], layer: int, grid: Grid, visible: Int64[Tensor, "B V"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Add the vectors where this layer has any."""
        table = self.table_of(layer)
        if table is None:
            return tokens
        vectors = self.vectors(table, grid, tokens)
        if visible is not None:
            leading = vectors[: self.leading].expand(len(tokens), -1, -1)
            vectors = torch.cat([leading, vectors[self.leading :][visible]], dim=1)  # B T D
        return tokens + vectors

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
        """The table; resampled where the grid is another."""
        own = self.table[table]
        return (
            own
            if same_size(grid, self.grid)
            else resample_positions(own, self.grid, grid, self.resampling, self.leading)
        )
