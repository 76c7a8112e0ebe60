"""BiT ResNets: v2 units, GroupNorm, standardised convolutions, the paper's baseline (Section 4.1)."""

from collections.abc import Iterable, Sequence
from typing import overload

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import BiTConfig
from vitrail.config.model import NORM_GROUPS
from vitrail.models.base import Model, build_head
from vitrail.models.encoder import maybe_checkpoint
from vitrail.models.inputs import check_images, pick_layers
from vitrail.models.resnet import Stages, plan_stages
from vitrail.ops.convolution import standardize_by_variance


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
        self._config = config
        self.root = PaddedConv(config.channels, config.width, 7, 2, config.filter_epsilon)
        self.stages = Stages(
            nn.ModuleList(BiTUnit(*unit, config=config) for unit in stage)
            for stage in plan_stages(config.units, config.width)
        )
        self.norm = nn.GroupNorm(NORM_GROUPS, config.representation, eps=config.epsilon)
        self.head = build_head(config)

    @property
    def config(self) -> BiTConfig:
        """What the model is."""
        return self._config

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """Logits: the linear classifier of `represent`."""
        return self.head(self.represent(images))

    def represent(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        """What the linear classifier reads: the mean of the last feature map."""
        return self.feature_map(images).mean(dim=(2, 3))

    @overload
    def feature_map(self, images: Tensor, layers: int = -1) -> Tensor: ...
    @overload
    def feature_map(self, images: Tensor, layers: Sequence[int]) -> list[Tensor]: ...
    def feature_map(self, images: Float[Tensor, "B C H W"], layers: int | Sequence[int] = -1) -> Tensor | list[Tensor]:
        """Feature maps, B D rows cols, after one stage or several; after the last with norm and activation."""
        check_images(images, self.config.channels, self.root.weight, self.card.preprocessing)
        wanted = pick_layers(layers, len(self.stages))
        maps: dict[int, Tensor] = {}
        # The authors pad the max-pool with zeros, not with minus infinity.
        features = F.max_pool2d(F.pad(self.root(images), (1, 1, 1, 1)), 3, 2)
        for index in range(max(wanted) + 1):
            for unit in self.stages[index]:
                features = maybe_checkpoint(unit, features, checkpointing=self.config.checkpointing)
            if index in wanted:
                maps[index] = F.relu(self.norm(features)) if index == len(self.stages) - 1 else features
        return [maps[index] for index in wanted] if isinstance(layers, Iterable) else maps[wanted[0]]
