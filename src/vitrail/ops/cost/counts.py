"""Parameters and multiply-accumulates of a model, by part, from its configuration alone."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import assert_never

from vitrail.config import (
    BiTConfig,
    HybridStem,
    Learned2DPositions,
    LearnedPositions,
    ModelConfig,
    NoPositions,
    PatchStem,
    RelativePositions,
    Sinusoidal2DPositions,
    SinusoidalPositions,
    ViTConfig,
)

EXA = 10**18


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A number for every part of a model."""

    convolutions: int = 0
    embedding: int = 0
    positions: int = 0
    attention: int = 0
    mlp: int = 0
    norms: int = 0
    head: int = 0

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def backbone(self) -> int:
        """All parts but the head: what the paper's Table 6 counts."""
        return self.total - self.head


@dataclass(frozen=True)
class Convolution:
    """One standardised convolution, with the feature map that it reads."""

    unit: int  # of the network, from 1; the root block is 0
    part: str  # root, first, second, third or shortcut
    inward: int
    outward: int
    kernel: int
    stride: int
    height: int
    width: int
    same: bool  # SAME padding, or kernel // 2 on every side

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the map that it writes."""
        return -(-self.height // self.stride), -(-self.width // self.stride)

    @property
    def parameters(self) -> int:
        """Weights; there is no bias."""
        return self.inward * self.outward * self.kernel**2

    @property
    def macs(self) -> int:
        """Multiply-accumulates with every tap, also those on padding."""
        return self.parameters * self.out[0] * self.out[1]

    @property
    def real_macs(self) -> int:
        """Multiply-accumulates whose tap falls on the image and not on zero padding."""
        return self.inward * self.outward * self._taps(self.height) * self._taps(self.width)

    def _taps(self, side: int) -> int:
        total = max(self.kernel - (side % self.stride or self.stride), 0) if self.same else 2 * (self.kernel // 2)
        first = -(total // 2)
        starts = range(first, first + -(-side // self.stride) * self.stride, self.stride)
        return sum(min(start + self.kernel, side) - max(start, 0) for start in starts)


def convolutions(config: ModelConfig) -> Iterator[Convolution]:
    """List the convolutions of a hybrid's stem or of a BiT, in order; a plain ViT has none."""
    if isinstance(config, BiTConfig):
        units, root, same = config.units, config.width, False
    elif isinstance(config.stem, HybridStem):
        units, root, same = config.stem.units, config.stem.width, True
    else:
        return
    height, width = config.image_size

    def conv(part: str, unit: int, inward: int, outward: int, kernel: int, stride: int) -> Convolution:
        return Convolution(unit, part, inward, outward, kernel, stride, height, width, same)

    first = conv("root", 0, config.channels, root, 7, 2)
    yield first
    height, width = (-(-side // 2) for side in first.out)  # the max-pool
    inward, unit = root, 0
    for stage, count in enumerate(units):
        narrow = root * 2**stage
        for index in range(count):
            unit += 1
            stride = 2 if stage > 0 and index == 0 else 1
            if index == 0:
                yield conv("shortcut", unit, inward, 4 * narrow, 1, stride)
            yield conv("first", unit, inward, narrow, 1, 1)
            second = conv("second", unit, narrow, narrow, 3, stride)
            yield second
            height, width = second.out
            yield conv("third", unit, narrow, 4 * narrow, 1, 1)
            inward = 4 * narrow


def parameters(config: ModelConfig) -> Parts:
    """Count the parameters; equal to those of the built model."""
    convs = list(convolutions(config))
    weights = sum(conv.parameters for conv in convs)
    if isinstance(config, BiTConfig):
        # In v2 units a norm reads what the convolution reads; the shortcut and the root have none, the end has one.
        norms = sum(2 * conv.inward for conv in convs if conv.part not in ("root", "shortcut"))
        last = config.representation
        return Parts(convolutions=weights, norms=norms + 2 * last, head=_classifier(config))
    width, layers = config.width, config.layers
    hidden = config.pre_logits
    ends = 2 * width if config.norm == "pre" else 0
    return Parts(
        convolutions=weights,
        embedding=(_patch_values(config) + 1) * width + config.class_tokens * width,
        positions=_position_parameters(config),
        attention=layers * (4 * (width + 1) * width - (0 if config.qkv_bias else 3 * width)),
        mlp=layers * (2 * width * config.mlp_width + config.mlp_width + width),
        norms=layers * (4 if config.layer_scale is None else 6) * width
        + ends
        + sum(2 * conv.outward for conv in convs),
        head=_classifier(config) + ((width + 1) * hidden if hidden else 0),
    )


def forward_macs(config: ModelConfig, *, padding: bool = True) -> Parts:
    """Count the multiply-accumulates of one image's forward pass; norms, activations and softmax have none.

    With `padding=False`, taps of a convolution that fall on zero padding are not counted, as in the paper's Table 6.
    """
    convs = sum(conv.macs if padding else conv.real_macs for conv in convolutions(config))
    if isinstance(config, BiTConfig):
        return Parts(convolutions=convs, head=config.representation * (config.classes or 0))
    (rows, cols), tokens, width = config.grid, config.tokens, config.width
    reached = config.depth * (rows + cols) if config.attention == "axial" else config.depth * tokens
    offsets = _relative_layers(config) * (2 * tokens - 1)
    hidden = config.pre_logits
    return Parts(
        convolutions=convs,
        embedding=rows * cols * _patch_values(config) * width,
        attention=config.layers * 4 * tokens * width**2 + (2 * reached + offsets) * tokens * width,
        mlp=config.layers * 2 * tokens * width * config.mlp_width,
        head=config.representation * (config.classes or 0) + (width * hidden if hidden else 0),
    )


def training_flops(config: ModelConfig) -> int:
    """Floating-point operations of one image's training step: forward, twice that back, and what is made again."""
    macs = forward_macs(config)
    root = sum(conv.macs for conv in convolutions(config) if conv.part == "root")
    again = macs.backbone - macs.embedding - root if config.checkpointing else 0  # blocks and units run twice
    return 2 * (3 * macs.total + again)


def exaflops(config: ModelConfig, *, images: float) -> float:
    """ExaFLOPs of pre-training on so many images, by the convention of the paper's Table 6: six a real tap."""
    return 6 * forward_macs(config, padding=False).backbone * images / EXA


def _classifier(config: ModelConfig) -> int:
    """Count the classifier's weights and, where it is linear, its biases."""
    return (config.representation + (config.cosine_scale is None)) * (config.classes or 0)


def _patch_values(config: ViTConfig) -> int:
    match config.stem:
        case PatchStem(patch=patch):
            return patch**2 * config.channels
        case HybridStem() as stem:
            return stem.patch**2 * stem.channels
        case _:
            assert_never(config.stem)


def _position_parameters(config: ViTConfig) -> int:
    (rows, cols), width = config.grid, config.width
    match config.positions:
        case NoPositions() | SinusoidalPositions() | Sinusoidal2DPositions():
            return 0
        case LearnedPositions(at=at):
            table = config.tokens * width
        case Learned2DPositions(at=at):
            table = (rows + cols) * (width // 2) + config.class_tokens * width
        case RelativePositions(at=at):
            table = (2 * config.tokens - 1) * width
        case _:
            assert_never(config.positions)
    return table * (config.layers if at == "layers" else 1)


def _relative_layers(config: ViTConfig) -> int:
    """Count the layers whose attention has relative keys."""
    if not isinstance(config.positions, RelativePositions):
        return 0
    return 1 if config.positions.at == "stem" else config.layers
