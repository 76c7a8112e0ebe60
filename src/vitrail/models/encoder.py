"""The Transformer encoder's block (eqs. 2, 3 and 5 to 8)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import ViTConfig
from vitrail.ops import attention_weights


class SelfAttention(nn.Module):
    """Multi-head self-attention (eqs. 5 to 8); query, key and value in one matrix."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_dropout = config.attention_dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Mix the tokens; the fused kernel never forms the matrix of weights."""
        query, key, value = self.project(tokens)
        dropout = self.attention_dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)  # eqs. 6-7: B h T d
        return self.out(mixed.transpose(1, 2).flatten(2))  # eq. 8: B T D

    def project(self, tokens: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of every head (eq. 5), each B h T d."""
        split = self.qkv(tokens).unflatten(2, (3, self.heads, tokens.shape[2] // self.heads))  # B T 3 h d
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        return query, key, value

    def weights(self, tokens: Float[Tensor, "B T D"], queries: slice = slice(None)) -> Float[Tensor, "B h Q T"]:
        """What `forward` weighs the values with (eq. 6), for all or some of the queries, computed in chunks."""
        query, key, _ = self.project(tokens)
        return attention_weights(query[:, :, queries], key)


class Mlp(nn.Module):
    """Two dense layers with a GELU between (Section 3.1)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.width, config.mlp_width)
        self.gelu = nn.GELU(approximate="tanh" if config.gelu == "tanh" else "none")
        self.dropout = nn.Dropout(config.dropout)
        self.contract = nn.Linear(config.mlp_width, config.width)

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Transform every token on its own."""
        return self.contract(self.dropout(self.gelu(self.expand(tokens))))


class StochasticDepth(nn.Module):
    """Leave a residual branch out for a random part of the images while training (Huang et al., 2016)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Give the branch, or nothing, by image; the expectation stays."""
        if not self.training or self.rate == 0:
            return branch
        kept = torch.empty_like(branch[:, :1, :1]).bernoulli_(1 - self.rate)
        return branch * (kept / (1 - self.rate))

    def extra_repr(self) -> str:
        """Show the rate."""
        return f"rate={self.rate:g}"


class Block(nn.Module):
    """One layer of the encoder: attention, then MLP, each after a norm and beside a residual."""

    def __init__(self, config: ViTConfig, index: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.attention = SelfAttention(config)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.mlp = Mlp(config)
        self.dropout = nn.Dropout(config.dropout)
        self.depth = StochasticDepth(config.stochastic_depth * index / max(config.depth - 1, 1))

    def forward(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Eqs. 2 and 3."""
        tokens = tokens + self.depth(self.dropout(self.attention(self.attention_norm(tokens))))
        return tokens + self.depth(self.dropout(self.mlp(self.mlp_norm(tokens))))


class Blocks(nn.ModuleList):
    """The layers of the encoder, as a list that knows what is in it."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Block]: ...
        def __getitem__(self, idx: int) -> Block: ...  # pyright: ignore[reportIncompatibleMethodOverride]
