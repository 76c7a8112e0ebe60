"""ResNets of standardised convolutions and GroupNorm (Section 4.1): v1 under the hybrids, v2 as BiT, the baseline."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import BiTConfig, HybridStem, ViTConfig
from vitrail.config.model import NORM_GROUPS
from vitrail.models.base import Model, check_images
from vitrail.models.encoder import maybe_checkpoint
from vitrail.models.heads import build_head


def standardize_by_deviation(weight: Float[Tensor, "out in kh kw"], epsilon: float) -> Float[Tensor, "out in kh kw"]:
    """Centre each filter and divide by its deviation plus epsilon, as the hybrids' stem does."""
    deviation, mean = torch.std_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    return (weight - mean) / (deviation + epsilon)


def standardize_by_variance(weight: Float[Tensor, "out in kh kw"], epsilon: float) -> Float[Tensor, "out in kh kw"]:
    """Centre each filter and divide by the root of its variance plus epsilon, as BiT does."""
    variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    return (weight - mean) / (variance + epsilon).sqrt()


def convolve_same(
    images: Float[Tensor, "B C H W"], weight: Float[Tensor, "out C kh kw"], stride: int
) -> Float[Tensor, "B out H2 W2"]:
    """Convolve with SAME padding: an output of ceil(side / stride), the odd pixel of padding last."""
    rows = same_padding(images.shape[2], weight.shape[2], stride)
    cols = same_padding(images.shape[3], weight.shape[3], stride)
    if rows[0] == rows[1] and cols[0] == cols[1]:
        return F.conv2d(images, weight, stride=stride, padding=(rows[0], cols[0]))
    return F.conv2d(F.pad(images, (*cols, *rows)), weight, stride=stride)


def max_pool_same(images: Float[Tensor, "B C H W"], window: int, stride: int) -> Float[Tensor, "B C H2 W2"]:
    """Take maxima with SAME padding, which never wins."""
    rows, cols = same_padding(images.shape[2], window, stride), same_padding(images.shape[3], window, stride)
    return F.max_pool2d(F.pad(images, (*cols, *rows), value=-torch.inf), window, stride)


def border_of_zeros(images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H2 W2"]:
    """Put a pixel of zeros around images.

    An exported graph has it in pieces: onnxruntime takes padding before a max-pool for one that never wins.
    """
    if not torch.compiler.is_exporting():
        return F.pad(images, (1, 1, 1, 1))
    row = torch.zeros_like(images[:, :, :1])
    tall = torch.cat([row, images, row], dim=2)
    col = torch.zeros_like(tall[:, :, :, :1])
    return torch.cat([col, tall, col], dim=3)


def same_padding(side: int, window: int, stride: int) -> tuple[int, int]:
    """Give the pixels of SAME padding before and after a side."""
    total = window - ((side - 1) % stride + 1)
    if isinstance(total, int):  # on torch 2.11 convolutions were compiled apart, as it seems for sym_max of these
        total = max(total, 0)
    else:
        total: int = torch.sym_max(total, 0)
    return total // 2, total - total // 2


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


class SameConv(nn.Conv2d):
    """A standardised convolution with SAME padding and no bias."""

    def __init__(self, inward: int, outward: int, kernel: int, stride: int, stem: HybridStem) -> None:
        super().__init__(inward, outward, kernel, stride=stride, bias=False)
        rules = {"deviation": standardize_by_deviation, "variance": standardize_by_variance}
        self.standardize = rules[stem.filter_rule]
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


class PaddedConv(nn.Conv2d):
    """A standardised convolution, padded alike on all sides, without bias."""

    def __init__(self, inward: int, outward: int, kernel: int, stride: int, epsilon: float) -> None:
        super().__init__(inward, outward, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.epsilon = epsilon

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        """Standardise the filters, then convolve."""
        filters = standardize_by_variance(self.weight, self.epsilon)
        return F.conv2d(input, filters, stride=self.stride, padding=self.padding)


class BiTUnit(nn.Module):
    """A bottleneck with norm and activation before each convolution (v2)."""

    def __init__(self, inward: int, width: int, stride: int, config: BiTConfig) -> None:
        super().__init__()
        outward, small = 4 * width, config.filter_epsilon
        self.norm1 = nn.GroupNorm(NORM_GROUPS, inward, eps=config.epsilon)
        self.conv1 = PaddedConv(inward, width, 1, 1, small)
        self.norm2 = nn.GroupNorm(NORM_GROUPS, width, eps=config.epsilon)
        self.conv2 = PaddedConv(width, width, 3, stride, small)
        self.norm3 = nn.GroupNorm(NORM_GROUPS, width, eps=config.epsilon)
        self.conv3 = PaddedConv(width, outward, 1, 1, small)
        self.shortcut = PaddedConv(inward, outward, 1, stride, small) if inward != outward or stride != 1 else None

    def forward(self, features: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        """Add the bottleneck to the shortcut, which a projection reads after the first activation."""
        active = F.relu(self.norm1(features))
        residual = self.conv1(active)
        residual = self.conv2(F.relu(self.norm2(residual)))
        residual = self.conv3(F.relu(self.norm3(residual)))
        return residual + (features if self.shortcut is None else self.shortcut(active))


class BiT(Model):
    """A BiT ResNet; takes images of any size."""

    def __init__(self, config: BiTConfig) -> None:
        super().__init__()
        self.config: BiTConfig = config  # pyright: ignore[reportIncompatibleVariableOverride]
        self.layers = len(config.units)
        self.root = PaddedConv(config.channels, config.width, 7, 2, config.filter_epsilon)
        self.stages = Stages(
            nn.ModuleList(BiTUnit(*unit, config=config) for unit in stage)
            for stage in plan_stages(config.units, config.width)
        )
        self.norm = nn.GroupNorm(NORM_GROUPS, config.representation, eps=config.epsilon)
        self.head = build_head(config)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """Logits: the linear classifier of `represent`."""
        return self.head(self.represent(images))

    def represent(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        """What the linear classifier reads: the mean of the last feature map."""
        return self.feature_map(images).mean(dim=(2, 3))

    def maps_after(self, images: Float[Tensor, "B C H W"], wanted: list[int]) -> dict[int, Tensor]:
        """Feature maps, B D rows cols, after some stages; after the last with norm and activation."""
        check_images(images, self.config.channels, self.root.weight, self.card.preprocessing)
        maps: dict[int, Tensor] = {}
        # The authors pad the max-pool with zeros, not with minus infinity.
        features = F.max_pool2d(border_of_zeros(self.root(images)), 3, 2)
        for index in range(max(wanted) + 1):
            for unit in self.stages[index]:
                features = maybe_checkpoint(unit, features, checkpointing=self.config.checkpointing)
            if index in wanted:
                maps[index] = F.relu(self.norm(features)) if index == len(self.stages) - 1 else features
        return maps
