"""The v1 ResNet under the hybrids: standardised convolutions, GroupNorm, SAME padding (Section 4.1)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import HybridStem, ViTConfig
from vitrail.config.model import NORM_GROUPS
from vitrail.models.encoder import maybe_checkpoint
from vitrail.ops.convolution import convolve_same, max_pool_same, standardize_by_deviation, standardize_by_variance


def plan_stages(units: tuple[int, ...], root: int) -> list[list[tuple[int, int, int]]]:
    """Give every unit's input channels, inner width and stride, stage by stage; a unit writes four times its width."""
    stages, inward = [], root
    for index, count in enumerate(units):
        width, stage = root * 2**index, []
        for unit in range(count):
            stage.append((inward, width, 2 if index > 0 and unit == 0 else 1))
            inward = 4 * width
        stages.append(stage)
    return stages


class Stages(nn.ModuleList):
    """Stages of units, as a list that knows what is in it."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[nn.ModuleList]: ...
        def __getitem__(self, idx: int) -> nn.ModuleList: ...  # pyright: ignore[reportIncompatibleMethodOverride]


STANDARDIZE = {"deviation": standardize_by_deviation, "variance": standardize_by_variance}


class SameConv(nn.Conv2d):
    """A standardised convolution with SAME padding and no bias."""

    def __init__(self, inward: int, outward: int, kernel: int, stride: int, stem: HybridStem) -> None:
        super().__init__(inward, outward, kernel, stride=stride, bias=False)
        self.standardize = STANDARDIZE[stem.filter_rule]
        self.epsilon = stem.filter_epsilon

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        """Standardise the filters, then convolve."""
        return convolve_same(input, self.standardize(self.weight, self.epsilon), self.stride[0])


class HybridUnit(nn.Module):
    """A bottleneck with the activation after the sum (v1); its last norm starts at zero."""

    def __init__(self, inward: int, width: int, stride: int, stem: HybridStem) -> None:
        super().__init__()
        outward = 4 * width
        self.conv1 = SameConv(inward, width, 1, 1, stem)
        self.norm1 = nn.GroupNorm(NORM_GROUPS, width, eps=stem.epsilon)
        self.conv2 = SameConv(width, width, 3, stride, stem)
        self.norm2 = nn.GroupNorm(NORM_GROUPS, width, eps=stem.epsilon)
        self.conv3 = SameConv(width, outward, 1, 1, stem)
        self.norm3 = nn.GroupNorm(NORM_GROUPS, outward, eps=stem.epsilon)
        self.shortcut: nn.Module = nn.Identity()
        if inward != outward or stride != 1:
            norm = nn.GroupNorm(NORM_GROUPS, outward, eps=stem.epsilon)
            self.shortcut = nn.Sequential(SameConv(inward, outward, 1, stride, stem), norm)

    def forward(self, features: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        """Add the bottleneck to the shortcut, then rectify."""
        residual = F.relu(self.norm1(self.conv1(features)))
        residual = F.relu(self.norm2(self.conv2(residual)))
        return F.relu(self.shortcut(features) + self.norm3(self.conv3(residual)))


class HybridResNet(nn.Module):
    """Root block and stages, without a head."""

    def __init__(self, stem: HybridStem, config: ViTConfig) -> None:
        super().__init__()
        self.checkpointing = config.checkpointing
        self.root = SameConv(config.channels, stem.width, 7, 2, stem)
        self.root_norm = nn.GroupNorm(NORM_GROUPS, stem.width, eps=stem.epsilon)
        self.stages = Stages(
            nn.ModuleList(HybridUnit(*unit, stem=stem) for unit in stage)
            for stage in plan_stages(stem.units, stem.width)
        )

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        """Give the last stage's feature map."""
        features = max_pool_same(F.relu(self.root_norm(self.root(images))), 3, 2)
        for stage in self.stages:
            for unit in stage:
                features = maybe_checkpoint(unit, features, checkpointing=self.checkpointing)
        return features


class HybridEmbedding(nn.Module):
    """The patch embedding of a ResNet's feature map; what is left over beside whole patches is not read."""

    def __init__(self, stem: HybridStem, config: ViTConfig, patches: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.resnet = HybridResNet(stem, config)
        self.patches = patches

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        """Convolve, cut and project."""
        rows, cols = self.stem.grid(*images.shape[2:])
        features = self.resnet(images)[:, :, : rows * self.stem.patch, : cols * self.stem.patch]
        return self.patches(features)
