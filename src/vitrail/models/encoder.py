"""The Transformer encoder's block (eqs. 2, 3 and 5 to 8)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.config import Grid, ViTConfig
from vitrail.models.dropout import Dropout, StochasticDepth
from vitrail.ops import Reach, attend, attention_weights, from_lines, query_chunks, to_lines, weights_of_lines

ACTIVATIONS = {
    "gelu-tanh": lambda: nn.GELU(approximate="tanh"),
    "gelu": lambda: nn.GELU(approximate="none"),
    "relu": nn.ReLU,
}


class SelfAttention(nn.Module):
    """Multi-head self-attention (eqs. 5 to 8); query, key and value in one matrix."""

    def __init__(self, config: ViTConfig, reach: Reach) -> None:
        super().__init__()
        self.heads = config.heads
        self.reach: Reach = reach
        self.causal = config.causal
        self.attention_dropout = config.attention_dropout  # inside the fused kernels, which draw from torch's generator
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.out = nn.Linear(config.width, config.width)

    def forward(
        self, tokens: Float[Tensor, "B T D"], grid: Grid | None = None, relative: Float[Tensor, "M D"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Mix the tokens; the fused kernel never forms the matrix of weights."""
        query, key, value = self.project(tokens, grid)
        dropout = self.attention_dropout if self.training else 0.0
        positions = self._by_head(relative)
        mixed = attend(query, key, value, dropout=dropout, relative=positions, causal=self.causal)  # eqs. 6-7: B h T d
        return from_lines(self.out(mixed.transpose(1, 2).flatten(2)), grid, self.reach)  # eq. 8: B T D

    def project(self, tokens: Float[Tensor, "B T D"], grid: Grid | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of every head (eq. 5), each B h T d; of every row or column where attention is axial."""
        lines = to_lines(tokens, grid, self.reach)
        split = self.qkv(lines).unflatten(2, (3, self.heads, tokens.shape[2] // self.heads))  # B T 3 h d
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        return query, key, value

    def weights(
        self,
        tokens: Float[Tensor, "B T D"],
        queries: slice = slice(None),
        grid: Grid | None = None,
        relative: Float[Tensor, "M D"] | None = None,
    ) -> Float[Tensor, "B h Q T"]:
        """What `forward` weighs the values with (eq. 6), for all or some of the queries, computed in chunks."""
        query, key, _ = self.project(tokens, grid)
        if self.reach != "all":
            return weights_of_lines(attention_weights(query, key), grid, self.reach, queries)
        return attention_weights(query, key, queries=queries, relative=self._by_head(relative), causal=self.causal)

    def weights_in_parts(
        self,
        tokens: Float[Tensor, "B T D"],
        grid: Grid | None = None,
        relative: Float[Tensor, "M D"] | None = None,
    ) -> Iterator[tuple[int, Float[Tensor, "B h Q T"]]]:
        """Give `weights` some queries at a time, with the first one's number; the whole matrix is never formed."""
        query, key, _ = self.project(tokens, grid)
        lines = None if self.reach == "all" else attention_weights(query, key)
        for rows in query_chunks(tokens.shape[1], tokens.shape[0] * self.heads * tokens.shape[1]):
            queries = slice(rows.start, rows.stop)
            if lines is None:
                yield (
                    rows.start,
                    attention_weights(
                        query, key, queries=queries, relative=self._by_head(relative), causal=self.causal
                    ),
                )
            else:
                yield rows.start, weights_of_lines(lines, grid, self.reach, queries)

    def _by_head(self, relative: Float[Tensor, "M D"] | None) -> Float[Tensor, "M h d"] | None:
        return None if relative is None else relative.unflatten(1, (self.heads, relative.shape[1] // self.heads))


class Mlp(nn.Module):
    """Two dense layers with an activation between (Section 3.1)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.width, config.mlp_width)
        self.activation = ACTIVATIONS[config.activation]()
        self.dropout = Dropout(config.dropout)
        self.contract = nn.Linear(config.mlp_width, config.width)

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Transform every token on its own."""
        return self.contract(self.dropout(self.activation(self.expand(tokens))))


class LayerScale(nn.Module):
    """A learned factor for every feature of a residual branch (Touvron et al., 2021)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, branch: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Scale the branch, feature by feature."""
        return branch * self.weight


class Block(nn.Module):
    """One layer of the encoder: attention, then MLP, each beside a residual, with a norm before it or after the sum."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.norm = config.norm
        self.attention_norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.attention = SelfAttention(config, _reach(config, layer))
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.mlp = Mlp(config)
        self.attention_output_dropout = Dropout(config.dropout)
        self.mlp_output_dropout = Dropout(config.dropout)
        scaled = config.layer_scale is not None
        self.attention_scale = LayerScale(config.width) if scaled else nn.Identity()
        self.mlp_scale = LayerScale(config.width) if scaled else nn.Identity()
        rate = config.stochastic_depth * layer / max(config.layers - 1, 1)
        self.attention_stochastic_depth = StochasticDepth(rate)
        self.mlp_stochastic_depth = StochasticDepth(rate)

    def forward(
        self, tokens: Float[Tensor, "B T D"], grid: Grid | None = None, relative: Float[Tensor, "M D"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Eqs. 2 and 3; after the original Transformer where norms come last."""
        mixed = self.attention_output_dropout(self.attention(self.attention_input(tokens), grid, relative))
        tokens = tokens + self.attention_stochastic_depth(self.attention_scale(mixed))
        if self.norm == "pre":
            thought = self.mlp_output_dropout(self.mlp(self.mlp_norm(tokens)))
            return tokens + self.mlp_stochastic_depth(self.mlp_scale(thought))
        tokens = self.attention_norm(tokens)
        thought = self.mlp_output_dropout(self.mlp(tokens))
        return self.mlp_norm(tokens + self.mlp_stochastic_depth(self.mlp_scale(thought)))

    def attention_input(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """What attention reads of the block's tokens."""
        return self.attention_norm(tokens) if self.norm == "pre" else tokens


class Blocks(nn.ModuleList):
    """The layers of the encoder, as a list that knows what is in it."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Block]: ...
        def __getitem__(self, idx: int) -> Block: ...  # pyright: ignore[reportIncompatibleMethodOverride]


def _reach(config: ViTConfig, layer: int) -> Reach:
    """What a layer attends to: everything, or turn by turn its row and its column (Appendix D.6)."""
    if config.attention == "full":
        return "all"
    return "row" if layer % 2 == 0 else "column"
