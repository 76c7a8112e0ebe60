"""Parts that the paper's ViT lacks and others have, of its blocks and around them; a plain one enters none of them."""

from typing import assert_never

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import Grid, RotaryPositions, ViTConfig
from vitrail.models.encoder import Block, Mlp, SelfAttention
from vitrail.ops.attention import Pairs, attend
from vitrail.ops.rotary import rotary_table, rotate


class PartedAttention(SelfAttention):
    """Self-attention of another width, with norms of queries and keys, rotary positions, or a norm before its end."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        width, head = config.head_width * config.heads, config.head_width
        self.leading, self.grid = config.leading, config.grid
        self.qkv = nn.Linear(config.width, 3 * width, bias=config.qkv_bias)
        self.query_norm = nn.LayerNorm(head, eps=config.epsilon) if config.qk_norm else nn.Identity()
        self.key_norm = nn.LayerNorm(head, eps=config.epsilon) if config.qk_norm else nn.Identity()
        self.rotary = config.positions if isinstance(config.positions, RotaryPositions) else None
        self.inner_norm = nn.LayerNorm(width, eps=config.epsilon) if config.inner_norm == "both" else nn.Identity()
        self.out = nn.Linear(width, config.width)

    def project(self, tokens: Float[Tensor, "B T D"], grid: Grid | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of every head (eq. 5), each B h T d; queries and keys normed, then turned."""
        query, key, value = super().project(tokens, grid)
        query, key = self.query_norm(query), self.key_norm(key)
        if self.rotary is not None:
            rows, cols = grid or self.grid
            table = rotary_table(self.rotary, query.shape[3], rows, cols, tokens.device)
            query, key = (rotate(part, table, self.leading, self.rotary.pairs) for part in (query, key))
        return query, key, value

    def mix(self, query: Tensor, key: Tensor, value: Tensor, pairs: Pairs) -> Float[Tensor, "B T D"]:
        """Mix the values of every head (eqs. 6 and 7), norm them, and mix the heads (eq. 8)."""
        dropout = self.attention_dropout if self.training else 0.0
        mixed = attend(query, key, value, dropout=dropout, pairs=pairs, causal=self.causal)
        return self.out(self.inner_norm(mixed.transpose(1, 2).flatten(2)))


class PartedMlp(Mlp):
    """An MLP that is gated, or has a norm before its last layer (Shazeer, 2020; Fang et al., 2023)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.gated = config.mlp == "gated"
        if self.gated:
            self.expand = nn.Linear(config.width, 2 * config.mlp_width)  # the gate's half first
        self.inner_norm = (
            nn.Identity() if config.inner_norm == "none" else nn.LayerNorm(config.mlp_width, eps=config.epsilon)
        )

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Transform every token on its own."""
        hidden = self.expand(tokens)
        if self.gated:
            gate, value = hidden.chunk(2, dim=2)
            hidden = self.activation(gate) * value
        else:
            hidden = self.activation(hidden)
        return self.contract(self.inner_norm(self.dropout(hidden)))


class PartedBlock(Block):
    """A block with whatever its configuration has beside the paper's parts."""

    def __init__(self, config: ViTConfig, layer: int) -> None:
        super().__init__(config, layer)
        rotary = isinstance(config.positions, RotaryPositions)
        if rotary or config.qk_norm or config.attention_width or config.inner_norm == "both":
            self.attention = PartedAttention(config)
        if config.mlp == "gated" or config.inner_norm != "none":
            self.mlp = PartedMlp(config)


class BranchBlock(PartedBlock):
    """A block whose norms come after attention and MLP, before the residual sums (Liu et al., 2022)."""

    def forward(
        self, tokens: Float[Tensor, "B T D"], grid: Grid | None = None, pairs: Pairs = None
    ) -> Float[Tensor, "B T D"]:
        """Eqs. 2 and 3, with the norms of what is added."""
        mixed = self.attention_norm(self.attention_output_dropout(self.attention(tokens, grid, pairs)))
        tokens = tokens + self.attention_stochastic_depth(self.attention_scale(mixed))
        thought = self.mlp_norm(self.mlp_output_dropout(self.mlp(tokens)))
        return tokens + self.mlp_stochastic_depth(self.mlp_scale(thought))


def kind_of_block(config: ViTConfig) -> type[PartedBlock]:
    """Choose the block by where its norms are."""
    return BranchBlock if config.norm == "branch" else PartedBlock


class AttentionPool(nn.Module):
    """A learned query's attention to the patches, then an MLP beside a residual (Zhai et al., 2022, Appendix E)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width = config.width
        self.heads, self.leading = config.heads, config.leading
        self.probe = nn.Parameter(torch.empty(width))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width, eps=config.epsilon)
        self.mlp = Mlp(config)

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        """What the query takes of the patches, and the MLP's word on it."""
        width = len(self.probe)
        weight, bias = self.qkv.weight, self.qkv.bias
        query = F.linear(self.probe[None], weight[:width], bias[:width]).unflatten(1, (self.heads, -1))[0]  # h d
        both = F.linear(tokens[:, self.leading :], weight[width:], bias[width:])  # B N 2D
        key, value = both.unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # B h N d
        query = query[:, None].expand(key.shape[0], -1, -1, -1)  # B h 1 d
        pooled = self.out(attend(query, key, value, dropout=0.0, pairs=None).flatten(1))  # B D
        return pooled + self.mlp(self.mlp_norm(pooled)[:, None])[:, 0]


class TokenAndMean(nn.Module):
    """The class token, and the mean of the patches, side by side."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.leading = config.leading

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B D2"]:
        """Put both together."""
        return torch.cat([tokens[:, 0], tokens[:, self.leading :].mean(dim=1)], dim=1)


class MeanOfAll(nn.Module):
    """The mean of all tokens, the class token and the registers too."""

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        """Take it."""
        return tokens.mean(dim=1)


class TwoTokens(nn.Module):
    """The class token and the first register: side by side for two classifiers, else their mean."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.classified = config.classes is not None

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B D2"]:
        """Take both."""
        return tokens[:, :2].flatten(1) if self.classified else tokens[:, :2].mean(dim=1)


def build_pooling(config: ViTConfig) -> nn.Module | None:
    """Make what reads the tokens, where that is not one token or a mean or maximum."""
    match config.pooling:
        case "token" | "mean" | "max":
            return None
        case "token+mean":
            return TokenAndMean(config)
        case "mean-all":
            return MeanOfAll()
        case "distilled":
            return TwoTokens(config)
        case "attention":
            return AttentionPool(config)
        case _:
            assert_never(config.pooling)


def build_norm(config: ViTConfig, *, wanted: bool) -> nn.LayerNorm | nn.Identity:
    """Make a norm of vectors of the width, or nothing in its place."""
    return nn.LayerNorm(config.width, eps=config.epsilon) if wanted else nn.Identity()


def build_projection(config: ViTConfig) -> nn.Linear | None:
    """Make the last linear layer before the classifier, where there is one."""
    if config.projection is None:
        return None
    return nn.Linear(config.pre_logits or config.pooled, config.projection, bias=False)
