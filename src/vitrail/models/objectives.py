"""Models around a Vision Transformer that learn without labels: masked autoencoder, masked patches, next pixels."""

from typing import assert_never

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail.config import Grid, Sinusoidal2DPositions, ViTConfig
from vitrail.config.objective import STEP, MaskedAutoencoder, MaskedPatches
from vitrail.models.build import OBJECTIVE, draw
from vitrail.models.encoder import Block, Blocks, maybe_checkpoint
from vitrail.models.position_kinds import build_positions
from vitrail.models.vit import PatchEmbedding, ViT
from vitrail.ops.masking import COLORS, SMALL, corrupt, take
from vitrail.ops.patches import patchify

WIDEST = 512  # a decoder, where its width is not said


class MaskedAutoencoderModel(nn.Module):
    """An encoder that reads the visible patches alone, and a decoder of those and of a mask for every other."""

    def __init__(self, encoder: ViT, objective: MaskedAutoencoder, *, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        config = decoder_config(encoder.config, objective)
        self.checkpointing = config.checkpointing
        self.projection = nn.Linear(encoder.config.width, config.width)
        self.mask = nn.Parameter(torch.empty(config.width))
        self.positions = build_positions(config)
        self.blocks = Blocks(Block(config, layer) for layer in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.epsilon)
        self.predictor = nn.Linear(config.width, config.stem.stride**2 * config.channels)
        for name, parameter in self.named_parameters():
            if not name.startswith("encoder."):
                parameter.data.copy_(draw(OBJECTIVE + name, parameter.shape, seed))

    def forward(
        self, images: Float[Tensor, "B C H W"], visible: Int64[Tensor, "B V"], hidden: Int64[Tensor, "B M"]
    ) -> Float[Tensor, "B M PPC"]:
        """Predict the pixels of the hidden patches from the visible ones."""
        grid = self.encoder.grid_of(images)
        return self.decode(encode_visible(self.encoder, images, visible, grid), visible, hidden, grid)

    def decode(
        self, seen: Float[Tensor, "B S D"], visible: Int64[Tensor, "B V"], hidden: Int64[Tensor, "B M"], grid: Grid
    ) -> Float[Tensor, "B M PPC"]:
        """Read the visible patches and a mask for every hidden one, each with its own position; predict the hidden.

        Attention knows no order but that of the positions, so the hidden ones stay last, and nothing is moved about.
        """
        known = self.projection(seen)
        tokens = torch.cat([known, self.mask.to(known.dtype).expand(*hidden.shape, -1)], dim=1)  # B T W
        tokens = self.positions.add(tokens, 0, grid, torch.cat([visible, hidden], dim=1))
        for block in self.blocks:
            tokens = maybe_checkpoint(block, tokens, checkpointing=self.checkpointing)
        return self.predictor(self.norm(tokens[:, -hidden.shape[1] :]))


def encode_visible(
    encoder: ViT, images: Float[Tensor, "B C H W"], visible: Int64[Tensor, "B V"], grid: Grid
) -> Float[Tensor, "B S D"]:
    """Encode these patches as if there were no others: each with its own position, the class token before them."""
    embedding = encoder.embedding
    assert isinstance(embedding, PatchEmbedding)
    patches = embedding.project(take(patchify(images, embedding.patch), visible))  # B V D
    return encoder.encode(encoder.add_positions(patches, grid, visible), grid, visible)


def decoder_config(config: ViTConfig, objective: MaskedAutoencoder) -> ViTConfig:
    """Give the decoder's shape: as wide as the authors' where nothing is said, and narrower beside a narrow encoder."""
    width = objective.decoder_width or min(-(-2 * config.width // 3 // STEP) * STEP, WIDEST)
    return ViTConfig(
        stem=config.stem,
        depth=objective.decoder_depth,
        width=width,
        mlp_width=4 * width,
        heads=width // objective.decoder_head_width,
        classes=None,
        image_size=config.image_size,
        channels=config.channels,
        positions=Sinusoidal2DPositions(at="stem"),
        pooling=config.pooling,
        checkpointing=config.checkpointing,
    )


class MaskedPatchModel(nn.Module):
    """An encoder, the mask that stands in the place of patches, and a linear prediction from each corrupted one."""

    def __init__(self, encoder: ViT, objective: MaskedPatches, *, seed: int) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.config.width
        self.mask = nn.Parameter(draw("objective.mask", (width,), seed))
        self.predictor = nn.Linear(width, outputs_of(encoder.config, objective))
        for parameter in self.predictor.parameters():
            nn.init.zeros_(parameter)

    def forward(
        self,
        images: Float[Tensor, "B C H W"],
        patches: Int64[Tensor, "B M"],
        kinds: Int64[Tensor, "B M"],
        others: Int64[Tensor, "B M"],
    ) -> Float[Tensor, "B M K"]:
        """Predict from each of these patches, whose embeddings are corrupted before positions are added."""
        encoder = self.encoder
        grid = encoder.grid_of(images)
        embeddings = corrupt(encoder.embed_patches(images), self.mask, patches, kinds, others)
        tokens = encoder.encode(encoder.add_positions(embeddings, grid), grid)[:, encoder.config.leading :]
        return self.predictor(take(tokens, patches))


def outputs_of(config: ViTConfig, objective: MaskedPatches) -> int:
    """Count what is predicted of a patch: scores of colours, or values."""
    match objective.target:
        case "mean-color":
            return COLORS
        case "small-colors":
            return SMALL * SMALL * COLORS
        case "pixels":
            return config.stem.stride**2 * config.channels
        case _:
            assert_never(objective.target)


class NextPixelModel(nn.Module):
    """An encoder whose patches are pixels, and a linear prediction of the next one from each token."""

    def __init__(self, encoder: ViT, palette: Float[Tensor, "K C"]) -> None:
        super().__init__()
        self.encoder = encoder
        self.palette = nn.Parameter(palette, requires_grad=False)  # in the numbers that the encoder reads
        self.first = nn.Parameter(torch.zeros(len(palette)))  # scores of the first pixel, which has none before it
        self.predictor = nn.Linear(encoder.config.width, len(palette))
        for parameter in self.predictor.parameters():
            nn.init.zeros_(parameter)

    def forward(self, colors: Int64[Tensor, "B H W"]) -> Float[Tensor, "B N K"]:
        """Score every colour of the palette for each pixel, row by row, given those before it."""
        encoder = self.encoder
        images = self.palette[colors].permute(0, 3, 1, 2)  # B C H W
        tokens = encoder.tokens(images)  # B N D
        later = self.predictor(tokens[:, :-1])  # B N-1 K
        return torch.cat([self.first.to(later.dtype).expand(len(later), 1, -1), later], dim=1)
