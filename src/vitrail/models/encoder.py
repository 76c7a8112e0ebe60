"""The Transformer encoder's block (eqs. 2, 3 and 5 to 8), and what is random in it while training.

Masks of dropout and of stochastic depth are functions of the sample, where its key is given.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitrail.config import Grid, ViTConfig
from vitrail.errors import ShapeError
from vitrail.models.activations import ACTIVATIONS
from vitrail.ops.attention import Pairs, attend
from vitrail.ops.attention_chunks import PairTerms, attention_weights, query_chunks
from vitrail.ops.random import keep_mask, salted


class SelfAttention(nn.Module):
    """Multi-head self-attention (eqs. 5 to 8); query, key and value in one matrix."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.causal = config.causal
        self.attention_dropout = config.attention_dropout  # inside the fused kernels, which draw from torch's generator
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.out = nn.Linear(config.width, config.width)

    def forward(
        self, tokens: Float[Tensor, "B T D"], grid: Grid | None = None, pairs: Pairs = None
    ) -> Float[Tensor, "B T D"]:
        """Mix the tokens, each with those that it may attend to; the fused kernel never forms the matrix of weights."""
        return self.mix(*self.project(tokens, grid), pairs)

    def project(self, tokens: Float[Tensor, "B T D"], grid: Grid | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of every head (eq. 5), each B h T d."""
        split = self.qkv(tokens).unflatten(2, (3, self.heads, -1))  # B T 3 h d
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        return query, key, value

    def mix(self, query: Tensor, key: Tensor, value: Tensor, pairs: Pairs) -> Float[Tensor, "B T D"]:
        """Mix the values of every head (eqs. 6 and 7), and the heads (eq. 8)."""
        dropout = self.attention_dropout if self.training else 0.0
        mixed = attend(query, key, value, dropout=dropout, pairs=pairs, causal=self.causal)  # eqs. 6-7: B h T d
        return self.out(mixed.transpose(1, 2).flatten(2))  # eq. 8: B T D

    def weights(
        self,
        tokens: Float[Tensor, "B T D"],
        queries: slice = slice(None),
        grid: Grid | None = None,
        relative: PairTerms | None = None,
    ) -> Float[Tensor, "B h Q T"]:
        """What `forward` weighs the values with (eq. 6), for all or some of the queries, computed in chunks."""
        query, key, _ = self.project(tokens, grid)
        return self.weigh(query, key, queries, grid, relative)

    def weights_in_parts(
        self, tokens: Float[Tensor, "B T D"], grid: Grid | None = None, relative: PairTerms | None = None
    ) -> Iterator[tuple[int, Float[Tensor, "B h Q T"]]]:
        """Give `weights` some queries at a time, with the first one's number; the whole matrix is never formed."""
        query, key, _ = self.project(tokens, grid)
        for queries in query_chunks(tokens.shape[1], tokens.shape[0] * self.heads * tokens.shape[1]):
            yield queries.start, self.weigh(query, key, queries, grid, relative)

    def weigh(
        self, query: Tensor, key: Tensor, queries: slice, grid: Grid | None, relative: Tensor | None
    ) -> Float[Tensor, "B h Q T"]:
        """Weights of some queries (eq. 6)."""
        return attention_weights(query, key, queries=queries, relative=relative, causal=self.causal)


class SampleRandom(nn.Module):
    """A module that draws while training: by the samples' keys, or from torch's generator where there are none."""

    keys: Tensor | None = None  # the module's own of the batch's samples, from `give_keys`; in no state dict

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def kept(self, keys: Tensor, features: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Say what of these samples is kept."""
        if keys.shape[0] != features.shape[0]:
            raise ShapeError(
                f"a batch of {features.shape[0]} needs a key for each of its samples; got {keys.shape[0]} keys. "
                "Give those of this batch first: give_keys(model, keys); or none: give_keys(model, None)."
            )
        return keep_mask(keys, shape, self.rate)

    def extra_repr(self) -> str:
        """Show the rate."""
        return f"rate={self.rate:g}"


class Dropout(SampleRandom):
    """Leave random features out while training (Srivastava et al., 2014)."""

    def forward(self, features: Float[Tensor, "B ..."]) -> Float[Tensor, "B ..."]:
        """Give each feature, or nothing; the expectation stays."""
        if not self.training or self.rate == 0:
            return features
        if self.keys is None:
            return F.dropout(features, self.rate)
        kept = self.kept(self.keys, features, features.shape[1:])
        return torch.where(kept, features, 0).mul_(1 / (1 - self.rate))  # autograd keeps the truths alone


class StochasticDepth(SampleRandom):
    """Leave a residual branch out for a random part of the images while training (Huang et al., 2016)."""

    def forward(self, branch: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Give the branch, or nothing, by image; the expectation stays."""
        if not self.training or self.rate == 0:
            return branch
        if self.keys is None:
            kept = torch.empty_like(branch[:, :1, :1]).bernoulli_(1 - self.rate)
        else:
            kept = self.kept(self.keys, branch, (1, 1)).to(branch.dtype)
        return branch * (kept / (1 - self.rate))


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
        self.attention = SelfAttention(config)
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
        self, tokens: Float[Tensor, "B T D"], grid: Grid | None = None, pairs: Pairs = None
    ) -> Float[Tensor, "B T D"]:
        """Eqs. 2 and 3; after the original Transformer where norms come last."""
        mixed = self.attention_output_dropout(self.attention(self.attention_input(tokens), grid, pairs))
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


def maybe_checkpoint(module: nn.Module, features: Tensor, *others: object, checkpointing: bool) -> Tensor:
    """Call the module; with checkpointing, its activations are made again in the backward pass."""
    if checkpointing and torch.is_grad_enabled() and not torch.compiler.is_exporting():
        return checkpoint(module, features, *others, use_reentrant=False)
    return module(features, *others)


def give_keys(model: nn.Module, keys: Int64[Tensor, " B"] | None) -> None:
    """Let everything random in a model, wrapped or not, depend on these keys of the next batch's samples alone.

    Gradient checkpointing draws again in the backward pass: the keys must stay until it is done. Dropout inside
    attention's fused kernels goes on with torch's generator.
    """
    # Salts are counted here, so that none is there twice: names change with wrappers, a copied layer has its twin's.
    # They go into the keys, since a number on a module is a constant to torch.compile: every block would be another.
    for salt, module in enumerate(part for part in model.modules() if isinstance(part, SampleRandom)):
        module.keys = None if keys is None or module.rate == 0 else salted(keys, salt)
