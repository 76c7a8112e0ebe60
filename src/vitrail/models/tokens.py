"""From images to the vectors of patches: the patch embedding, and the hybrid's (eq. 1)."""

from typing import assert_never

from jaxtyping import Float
from torch import Tensor, nn

from vitrail.config import HybridStem, PatchStem, ViTConfig
from vitrail.models.resnet import HybridResNet
from vitrail.ops import patchify


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
