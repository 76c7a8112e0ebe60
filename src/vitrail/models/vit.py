"""The Vision Transformer, and the hybrids, which differ in the stem alone (Section 3.1)."""

from collections.abc import Sequence
from typing import assert_never

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail.config import Grid, HybridStem, PatchStem, ViTConfig
from vitrail.config.check import check_slice, pick_layers
from vitrail.models.axial import AxialBlock
from vitrail.models.base import Model, check_images
from vitrail.models.encoder import Blocks, Dropout, maybe_checkpoint
from vitrail.models.heads import build_head
from vitrail.models.parts import build_norm, build_pooling, build_projection, kind_of_block
from vitrail.models.position_kinds import build_positions
from vitrail.models.resnet import HybridEmbedding
from vitrail.ops.patches import patchify, same_size


class PatchEmbedding(nn.Module):
    """A linear projection E of every flat patch; equal to a convolution of stride P."""

    def __init__(self, patch: int, channels: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.projection = nn.Linear(patch * patch * channels, width)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        """Cut and project."""
        return self.project(patchify(images, self.patch))

    def project(self, patches: Float[Tensor, "B N PPC"]) -> Float[Tensor, "B N D"]:
        """Embed flat patches."""
        return self.projection(patches)


class NormedEmbedding(PatchEmbedding):
    """A projection with a norm before it, of a patch's values, and one after it (Kumar et al., 2023)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config.stem.patch, config.channels, config.width)
        self.values_norm = nn.LayerNorm(self.projection.in_features, eps=config.epsilon)
        self.embedding_norm = nn.LayerNorm(config.width, eps=config.epsilon)

    def project(self, patches: Float[Tensor, "B N PPC"]) -> Float[Tensor, "B N D"]:
        """Embed flat patches."""
        return self.embedding_norm(self.projection(self.values_norm(patches)))


def build_embedding(config: ViTConfig) -> PatchEmbedding | HybridEmbedding:
    """Make the stem that the configuration names."""
    match config.stem:
        case PatchStem(norms=True):
            return NormedEmbedding(config)
        case PatchStem(patch=patch):
            return PatchEmbedding(patch, config.channels, config.width)
        case HybridStem() as stem:
            return HybridEmbedding(stem, config, PatchEmbedding(stem.patch, stem.channels, config.width))
        case _:
            assert_never(config.stem)


class ViT(Model):
    """A Vision Transformer; takes any image size whose patches fit, not only the one that it was built for."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config: ViTConfig = config  # pyright: ignore[reportIncompatibleVariableOverride]
        self.layers = config.layers
        self.embedding = build_embedding(config)
        self.class_token = nn.Parameter(torch.empty(config.width)) if config.class_tokens else None
        self.registers = nn.Parameter(torch.empty(config.registers, config.width)) if config.registers else None
        self.positions = build_positions(config)
        self.dropout = Dropout(config.dropout)
        self.first_norm = build_norm(config, wanted=config.first_norm)
        block = AxialBlock if config.attention == "axial" else kind_of_block(config)
        self.blocks = Blocks(block(config, layer) for layer in range(config.layers))
        self.norm = build_norm(config, wanted=config.last_norm == "tokens")
        self.pooling = build_pooling(config)
        self.pooled_norm = build_norm(config, wanted=config.last_norm == "pooled")
        self.hidden = nn.Linear(config.pooled, config.pre_logits) if config.pre_logits else None
        self.projection = build_projection(config)
        self.head = build_head(config)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """Logits: the linear classifier of `represent`."""
        return self.head(self.represent(images))

    def represent(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B R"]:
        """What the linear classifier reads: eq. 4, and the tanh layer where there is one."""
        tokens = self.embed(images)  # eq. 1
        tokens = self.encode(tokens, self.grid_of(images))  # eqs. 2-3
        return self.read_out(tokens)  # eq. 4

    def tokens(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B T D"]:
        """Every token after the last block and the final norm; the class token first, and registers before patches."""
        return self.encode(self.embed(images), self.grid_of(images))

    def embed(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B T D"]:
        """Patches to tokens, class token, positions (eq. 1)."""
        return self.add_positions(self.embed_patches(images), self.grid_of(images))

    def embed_patches(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        """Every patch's embedding alone: x_p E of eq. 1."""
        check_images(images, self.config.channels, self.blocks[0].attention_norm.weight, self.card.preprocessing)
        self.grid_of(images)  # refuses sides that patches do not fill
        return self.embedding(images)

    def add_positions(
        self, patches: Float[Tensor, "B N D"], grid: Grid, visible: Int64[Tensor, "B N"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Put the class token and the registers before the patches, and add positions: the rest of eq. 1.

        `visible` numbers the patches of the grid that are given, where some are hidden.
        """
        tokens = patches
        for first in (self.registers, self.class_token):
            if first is not None:
                first = first if visible is None else first.to(tokens.dtype)  # bfloat16 stays so
                tokens = torch.cat([first.reshape(-1, tokens.shape[2]).expand(tokens.shape[0], -1, -1), tokens], dim=1)
        return self.first_norm(self.dropout(self.positions.add(tokens, 0, grid, visible)))

    def encode(
        self, tokens: Float[Tensor, "B T D"], grid: Grid, visible: Int64[Tensor, "B N"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """Every block (eqs. 2 and 3), then the final norm; `visible` as in `add_positions`."""
        for layer in range(len(self.blocks)):
            tokens = self.run_block(tokens, layer, grid, visible)
        return self.norm(tokens)

    def run_block(
        self, tokens: Float[Tensor, "B T D"], layer: int, grid: Grid, visible: Int64[Tensor, "B N"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """One block, with its positions."""
        tokens, keys = self.block_input(tokens, layer, grid, visible)
        return maybe_checkpoint(self.blocks[layer], tokens, grid, keys, checkpointing=self.config.checkpointing)

    def block_input(
        self, tokens: Float[Tensor, "B T D"], layer: int, grid: Grid, visible: Int64[Tensor, "B N"] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens and relative keys as a block reads them; `embed` has added the positions of the first already."""
        placed = tokens if layer == 0 else self.positions.add(tokens, layer, grid, visible)
        return placed, self.positions.keys(layer, grid)

    def grid_of(self, images: Float[Tensor, "B C H W"]) -> Grid:
        """Rows and columns of the patches of these images, which may be of another size than the model's own."""
        size = (images.shape[2], images.shape[3])
        return self.positions.grid if same_size(size, self.config.image_size) else self.config.stem.grid(*size)

    def read_out(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B R"]:
        """What the linear classifier reads of the tokens: eq. 4, and the tanh layer where there is one."""
        pooled = self.pooled_norm(self.pool(tokens))
        pooled = pooled if self.hidden is None else torch.tanh(self.hidden(pooled))
        return pooled if self.projection is None else self.projection(pooled)

    def pool(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B P"]:
        """The class token (eq. 4), the mean or maximum of the patches, or what a module of its own makes of them."""
        match self.config.pooling:
            case "token":
                return tokens[:, 0]
            case "mean":
                return tokens[:, self.config.leading :].mean(dim=1)
            case "max":
                return tokens[:, self.config.leading :].amax(dim=1)
            case _:
                assert self.pooling is not None
                return self.pooling(tokens)

    def maps_after(self, images: Float[Tensor, "B C H W"], wanted: list[int]) -> dict[int, Tensor]:
        """Patch tokens as maps, B D rows cols, after some blocks, each through the final norm."""
        tokens, grid = self.embed(images), self.grid_of(images)
        maps: dict[int, Tensor] = {}
        for layer in range(max(wanted) + 1):
            tokens = self.run_block(tokens, layer, grid)
            if layer in wanted:
                patches = self.norm(tokens)[:, self.config.leading :]  # B N D
                maps[layer] = patches.transpose(1, 2).unflatten(2, grid)  # B D rows cols
        return maps

    @torch.no_grad()
    def attention_maps(
        self, images: Float[Tensor, "B C H W"], layers: int | Sequence[int] | None = None, queries: slice = slice(None)
    ) -> list[Float[Tensor, "B h Q T"]]:
        """Attention weights of all layers or some (eq. 6), of all queries or some; holds no more than it returns."""
        check_slice(queries)
        wanted = pick_layers(range(len(self.blocks)) if layers is None else layers, len(self.blocks))
        tokens, grid = self.embed(images), self.grid_of(images)
        maps: dict[int, Tensor] = {}
        for layer, block in enumerate(self.blocks):
            tokens, keys = self.block_input(tokens, layer, grid)
            if layer in wanted:
                maps[layer] = block.attention.weights(block.attention_input(tokens), queries, grid, keys)
            if len(maps) == len(set(wanted)):
                break
            tokens = block(tokens, grid, keys)
        return [maps[layer] for layer in wanted]
