"""The Vision Transformer, and the hybrids, which differ in the stem alone (Section 3.1)."""

from collections.abc import Sequence
from typing import overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.config import ViTConfig
from vitrail.models.encoder import Block, Blocks
from vitrail.models.inputs import check_images, pick_layers
from vitrail.models.recompute import run
from vitrail.models.tokens import LearnedPositions, build_embedding


class ViT(nn.Module):
    """A Vision Transformer; takes any image size whose patches fit, not only the one that it was built for."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = build_embedding(config)
        self.class_token = nn.Parameter(torch.empty(config.width)) if config.class_tokens else None
        self.positions = LearnedPositions(config)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = Blocks(Block(config, index) for index in range(config.depth))
        self.norm = nn.LayerNorm(config.width, eps=config.epsilon)
        hidden = config.representation_width
        self.hidden = nn.Linear(config.width, hidden) if hidden else None
        self.head = nn.Linear(config.representation, config.classes)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """Logits: the linear classifier of `represent`."""
        return self.head(self.represent(images))

    def represent(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B R"]:
        """What the linear classifier reads: eq. 4, and the tanh layer where there is one."""
        tokens = self.embed(images)  # eq. 1
        tokens = self.encode(tokens)  # eqs. 2-3
        pooled = self.pool(tokens)  # eq. 4
        return pooled if self.hidden is None else torch.tanh(self.hidden(pooled))

    def tokens(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B T D"]:
        """Every token after the last block and the final norm; the class token first where there is one."""
        return self.encode(self.embed(images))

    def embed(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B T D"]:
        """Patches to tokens, class token, positions (eq. 1)."""
        check_images(images, self.config.channels)
        grid = self.config.stem.grid(*images.shape[2:])
        tokens = self.embedding(images)
        if self.class_token is not None:
            tokens = torch.cat([self.class_token.expand(tokens.shape[0], 1, -1), tokens], dim=1)  # B T D
        return self.dropout(tokens + self.positions(grid))

    def encode(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Every block (eqs. 2 and 3), then the final norm."""
        for block in self.blocks:
            tokens = run(block, tokens, checkpointing=self.config.checkpointing)
        return self.norm(tokens)

    def pool(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        """The class token (eq. 4), or the mean of all tokens where there is none."""
        return tokens[:, 0] if self.config.pooling == "token" else tokens.mean(dim=1)

    @overload
    def feature_map(self, images: Tensor, layers: int = -1) -> Tensor: ...
    @overload
    def feature_map(self, images: Tensor, layers: Sequence[int]) -> list[Tensor]: ...
    def feature_map(self, images: Float[Tensor, "B C H W"], layers: int | Sequence[int] = -1) -> Tensor | list[Tensor]:
        """Patch tokens as maps, B D rows cols, after one block or several, each through the final norm."""
        wanted = pick_layers([layers] if isinstance(layers, int) else layers, len(self.blocks))
        tokens = self.embed(images)
        grid = self.config.stem.grid(*images.shape[2:])
        maps: dict[int, Tensor] = {}
        for index in range(max(wanted) + 1):
            tokens = run(self.blocks[index], tokens, checkpointing=self.config.checkpointing)
            if index in wanted:
                patches = self.norm(tokens)[:, self.config.class_tokens :]  # B N D
                maps[index] = patches.transpose(1, 2).unflatten(2, grid)  # B D rows cols
        return maps[wanted[0]] if isinstance(layers, int) else [maps[index] for index in wanted]

    @torch.no_grad()
    def attention_maps(
        self, images: Float[Tensor, "B C H W"], layers: Sequence[int] | None = None, queries: slice = slice(None)
    ) -> list[Float[Tensor, "B h Q T"]]:
        """Attention weights of all layers or some (eq. 6), of all queries or some; holds no more than it returns."""
        wanted = pick_layers(range(len(self.blocks)) if layers is None else layers, len(self.blocks))
        tokens = self.embed(images)
        maps: dict[int, Tensor] = {}
        for index, block in enumerate(self.blocks):
            if index in wanted:
                maps[index] = block.attention.weights(block.attention_norm(tokens), queries)
            if len(maps) == len(set(wanted)):
                break
            tokens = block(tokens)
        return [maps[index] for index in wanted]
