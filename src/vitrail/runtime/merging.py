"""A ViT that merges tokens on its way (Bolya et al., 2023): faster, and nearly the same answers."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.config import BiTConfig, Grid, ViTConfig
from vitrail.config.check import merging_share
from vitrail.config.positions import PairPositions
from vitrail.errors import ConfigError
from vitrail.models import Model, ViT
from vitrail.models.encoder import Block
from vitrail.ops.attention import fused_attention
from vitrail.ops.merging import match_tokens, merge_tokens, merging_schedule, proportional_attention

PLAIN = "Leave token_merging out."


class MergedModel(Model):
    """A ViT whose layers merge a share of its patches; called alike, for its representation and its logits alone.

    `compiled` compiles what is around the mergers, once for all layers and numbers of tokens.
    """

    merging: Tensor  # tokens that each layer merges at the model's own size; rows that are kept hang on it

    def __init__(self, source: Model, share: float, *, compiled: bool = False) -> None:
        super().__init__()
        self.source, self.share = check_merging(source, share), share
        self.config, self.card, self.layers = source.config, source.card, source.layers
        self.trained_on = source.trained_on
        self.attend, self.think = attend, think
        if compiled:
            self.attend = torch.compile(attend, dynamic=True, fullgraph=True)
            self.think = torch.compile(think, dynamic=True, fullgraph=True)
        self.register_buffer("merging", torch.tensor(self.schedule(self.source.config.grid)))

    def schedule(self, grid: Grid) -> tuple[int, ...]:
        """How many tokens each layer merges at this grid."""
        return merging_schedule(grid[0] * grid[1], self.layers, self.share)

    def said(self) -> dict[str, Any]:
        """Say what is merged, for documents."""
        return {"token_merging": self.share, "tokens_merged": self.merging.tolist()}

    def forward(self, images: Float[Tensor, "B C H W"]) -> Tensor:
        """Logits; of a model without a classifier, its representation."""
        features, logits = self.outputs(images)
        return features if logits is None else logits

    def outputs(self, images: Float[Tensor, "B C H W"]) -> tuple[Tensor, Tensor | None]:
        """What the linear classifier reads, and its logits."""
        features = self.represent(images)
        return features, self.source.head(features) if self.config.classes else None

    def represent(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B R"]:
        """What the linear classifier reads; a mean counts each token as often as it stands for patches."""
        plain, leading = self.source, self.source.config.class_tokens
        tokens, schedule = plain.embed(images), self.schedule(plain.grid_of(images))
        sizes: Tensor | None = None  # patches that each token stands for; one each where nothing is merged yet
        for layer, block in enumerate(plain.blocks):
            alone = leading > 0 and layer == len(plain.blocks) - 1  # of the last layer the class token alone is read
            tokens = self.attend(block, tokens, sizes, alone=alone)
            if schedule[layer]:
                tokens, sizes = merge_patches(block, tokens, sizes, schedule[layer], leading)
            tokens = self.think(block, tokens)
        tokens = plain.norm(tokens)
        if plain.config.pooling == "mean" and sizes is not None:
            shares = sizes / sizes.sum(dim=1, keepdim=True)
            tokens = torch.einsum("bt,btd->bd", shares.to(tokens.dtype), tokens)[:, None]
        return plain.read_out(tokens)

    def tokens(self, images: Tensor) -> Tensor:
        """Refuse: tokens that were merged are no longer those of patches."""
        raise ConfigError(f"merged tokens have no places in the image. {PLAIN}")

    def maps_after(self, images: Tensor, wanted: list[int]) -> dict[int, Tensor]:
        """Refuse, for the same reason."""
        return {0: self.tokens(images)}

    def attention_maps(
        self, images: Tensor, layers: int | Sequence[int] | None = None, queries: slice = slice(None)
    ) -> list[Tensor]:
        """Refuse, for the same reason."""
        return [self.tokens(images)]


def attend(block: Block, tokens: Tensor, sizes: Float[Tensor, "B T"] | None, *, alone: bool) -> Tensor:
    """Eq. 2, each token counting as often as it stands for patches; `alone` gives the first token alone."""
    query, key, value = block.attention.project(block.attention_input(tokens))
    if alone:
        query, tokens = query[:, :, :1], tokens[:, :1]
    if sizes is None:
        mixed = fused_attention(query, key, value, None, 0.0)
    else:
        mixed = proportional_attention(query, key, value, sizes)
    return tokens + block.attention_scale(block.attention.out(mixed.transpose(1, 2).flatten(2)))


def merge_patches(
    block: Block, tokens: Tensor, sizes: Float[Tensor, "B T"] | None, count: int, leading: int
) -> tuple[Tensor, Tensor]:
    """Merge so many tokens of patches by what the MLP reads of them; the class token stays first and alone."""
    if sizes is None:
        sizes = torch.ones(tokens.shape[:2], device=tokens.device)
    first, patches = tokens[:, :leading], tokens[:, leading:]
    matches = match_tokens(block.mlp_norm(patches), sizes[:, leading:], count)
    patches, grown = merge_tokens(patches, sizes[:, leading:], matches)
    return torch.cat([first, patches], dim=1), torch.cat([sizes[:, :leading], grown], dim=1)


def think(block: Block, tokens: Tensor) -> Tensor:
    """Eq. 3."""
    return tokens + block.mlp_scale(block.mlp(block.mlp_norm(tokens)))


def check_merging(model: Model, share: float) -> ViT:
    """Refuse a model whose tokens cannot be merged, and a share that is none, before anything is computed."""
    merging_share("token_merging", share)
    if not isinstance(model, ViT):
        what = "a BiT has none" if isinstance(model.config, BiTConfig) else "what runs this model does not give them"
        raise ConfigError(f"token_merging merges the tokens of a Vision Transformer, and {what}. {PLAIN}")
    config: ViTConfig = model.config
    reasons = {
        "its axial attention runs along rows and columns of the grid": config.attention == "axial",
        "its tokens see only those before them": config.causal,
        "its norms come after attention and MLP": config.norm != "pre",
        "its classifier reads other tokens than those of patches, or several": not config.reads_plainly,
        "its relative positions are of pairs of patches": isinstance(config.positions, PairPositions),
        "its positions are added before every layer": getattr(config.positions, "at", "stem") != "stem",
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise ConfigError(f"this model's tokens cannot be merged: {found[0]}. {PLAIN}")
    return model
