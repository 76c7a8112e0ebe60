"""From images to tokens: the patch embedding, the hybrid's, and the learned positions (eq. 1)."""

from typing import assert_never

from jaxtyping import Float
from torch import Tensor, empty, nn

from vitrail.config import Grid, HybridStem, PatchStem, ViTConfig
from vitrail.models.resnet import HybridResNet
from vitrail.ops import patchify, resample_positions


class PatchEmbedding(nn.Module):
    """A linear projection E of every flat patch; equal to a convolution of stride P."""

    def __init__(self, patch: int, channels: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.projection = nn.Linear(patch * patch * channels, width)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        """Cut and project."""
        return self.projection(patchify(images, self.patch))


class HybridEmbedding(nn.Module):
    """The patch embedding of a ResNet's feature map; what is left over beside whole patches is not read."""

    def __init__(self, stem: HybridStem, config: ViTConfig) -> None:
        super().__init__()
        self.stem = stem
        self.resnet = HybridResNet(stem, config)
        self.patches = PatchEmbedding(stem.patch, stem.channels, config.width)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        """Convolve, cut and project."""
        rows, cols = self.stem.grid(*images.shape[2:])
        features = self.resnet(images)[:, :, : rows * self.stem.patch, : cols * self.stem.patch]
        return self.patches(features)


def build_embedding(config: ViTConfig) -> PatchEmbedding | HybridEmbedding:
    """Make the stem that the configuration names."""
    match config.stem:
        case PatchStem(patch=patch):
            return PatchEmbedding(patch, config.channels, config.width)
        case HybridStem() as stem:
            return HybridEmbedding(stem, config)
        case _:
            assert_never(config.stem)


class LearnedPositions(nn.Module):
    """A learned vector for every token, on a grid of patches; resampled on the fly for any other grid."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid = config.grid
        self.table = nn.Parameter(empty(config.tokens, config.width))

    def forward(self, grid: Grid) -> Float[Tensor, "T D"]:
        """E_pos at this grid (Section 3.2); the table itself is left alone."""
        return resample_positions(self.table, self.grid, grid)
