"""The configuration of every model: ViT and hybrids (`ViTConfig`), BiT ResNets (`BiTConfig`)."""

from dataclasses import dataclass
from typing import Literal, get_args

from vitrail.config.positions import (
    Learned2DPositions,
    LearnedPositions,
    NoPositions,
    Place,
    Positions,
    RelativePositions,
    Sinusoidal2DPositions,
    SinusoidalPositions,
)
from vitrail.errors import ConfigError, ShapeError

Grid = tuple[int, int]  # rows, cols
Pooling = Literal["token", "mean", "max"]
Activation = Literal["gelu-tanh", "gelu", "relu"]
Norm = Literal["pre", "post"]
Attention = Literal["full", "axial"]

PAPER_POSITIONS = LearnedPositions(at="stem")
NORM_GROUPS = 32  # of every GroupNorm, in hybrids and BiT alike


def as_size(size: int | tuple[int, int]) -> tuple[int, int]:
    """Read an image size: one side of a square, or (height, width)."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise ConfigError(f"image_size must be a side or (height, width) in whole pixels; got {size!r}.")
    return pair[0], pair[1]


@dataclass(frozen=True, kw_only=True)
class PatchStem:
    """Patches cut straight from the pixels (Section 3.1)."""

    patch: int

    def __post_init__(self) -> None:
        _positive(self, "patch")

    @property
    def stride(self) -> int:
        """Pixels from one token to the next."""
        return self.patch

    def grid(self, height: int, width: int) -> Grid:
        """Rows and columns of patches in an image; its sides must be multiples of the patch side."""
        if height < self.patch or width < self.patch or height % self.patch or width % self.patch:
            below = [max(side // self.patch, 1) * self.patch for side in (height, width)]
            above = [-(-side // self.patch) * self.patch for side in (height, width)]
            choice = f"{below[0]}x{below[1]}" + (f" or {above[0]}x{above[1]}" if below != above else "")
            raise ShapeError(
                f"image sides must be multiples of the patch side {self.patch}; got {height}x{width}. "
                f"Resize or crop to {choice} first."
            )
        return height // self.patch, width // self.patch


@dataclass(frozen=True, kw_only=True)
class HybridStem:
    """Patches cut from the feature map of a ResNet (Section 4.1): `units` a stage; none is the root block alone."""

    units: tuple[int, ...]
    width: int = 64
    patch: int = 1

    def __post_init__(self) -> None:
        _positive(self, "width", "patch")
        if not all(isinstance(count, int) and count > 0 for count in self.units):
            raise ConfigError(f"units must be a number of units for each stage, each at least 1; got {self.units}.")
        if self.width % NORM_GROUPS:
            raise ConfigError(
                f"the stem's width must be a multiple of the {NORM_GROUPS} norm groups; got {self.width}."
            )

    @property
    def halvings(self) -> int:
        """How often the side is halved: root convolution, max-pool, and every stage but the first."""
        return 2 + max(len(self.units) - 1, 0)

    @property
    def stride(self) -> int:
        """Pixels from one token to the next."""
        return self.patch * 2**self.halvings

    @property
    def channels(self) -> int:
        """Channels of the feature map that the patches are cut from."""
        return 4 * self.width * 2 ** (len(self.units) - 1) if self.units else self.width

    def grid(self, height: int, width: int) -> Grid:
        """Rows and columns of patches in an image of any size: SAME padding rounds halvings up, whole patches count."""
        side = 2**self.halvings
        rows, cols = -(-height // side) // self.patch, -(-width // side) // self.patch
        if rows < 1 or cols < 1:
            raise ShapeError(
                f"image sides must be over {(self.patch - 1) * side} for one patch of {self.patch}x{self.patch} "
                f"on the stem's feature map; got {height}x{width}. Resize to {self.stride}x{self.stride} or more."
            )
        return rows, cols


Stem = PatchStem | HybridStem


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """A Vision Transformer or a hybrid (Section 3.1, Table 1)."""

    stem: Stem
    depth: int
    width: int
    mlp_width: int
    heads: int
    classes: int = 1000
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    positions: Positions = PAPER_POSITIONS
    attention: Attention = "full"  # axial (Appendix D.6): every block is one along rows, then one along columns
    norm: Norm = "pre"  # post: after the residual sum, as in the original Transformer, and none at the end
    activation: Activation = "gelu-tanh"
    pooling: Pooling = "token"
    representation_width: int | None = None  # of the pre-training head's tanh layer; None: a linear head alone
    head_bias: float = 0.0  # the classifier's first bias: -6.9 or -10 with the sigmoid loss
    dropout: float = 0.0
    attention_dropout: float = 0.0
    stochastic_depth: float = 0.0  # of the last block; grows linearly from 0 at the first
    epsilon: float = 1e-6
    checkpointing: bool = False  # recompute each block in the backward pass instead of storing it

    def __post_init__(self) -> None:
        _positive(self, "depth", "width", "mlp_width", "heads", "classes", "channels")
        _one_of("pooling", self.pooling, get_args(Pooling))
        _one_of("activation", self.activation, get_args(Activation))
        _one_of("norm", self.norm, get_args(Norm))
        _one_of("attention", self.attention, get_args(Attention))
        for name in ("dropout", "attention_dropout", "stochastic_depth"):
            _rate(name, getattr(self, name))
        if self.width % self.heads:
            divisors = [count for count in range(1, self.width + 1) if self.width % count == 0]
            near = min(divisors, key=lambda count: abs(count - self.heads))
            raise ConfigError(
                f"heads must divide the width {self.width}; got {self.heads} heads. Take heads={near}, "
                f"or a width that is a multiple of {self.heads}."
            )
        if self.representation_width is not None:
            _positive(self, "representation_width")
        if not self.epsilon > 0:
            raise ConfigError(f"epsilon must be positive; got {self.epsilon}.")
        as_size(self.image_size)
        self.stem.grid(*self.image_size)
        self._check_positions()

    def _check_positions(self) -> None:
        if not isinstance(self.positions, NoPositions):
            _one_of("positions.at", self.positions.at, get_args(Place))
        parts = {Learned2DPositions: 2, SinusoidalPositions: 2, Sinusoidal2DPositions: 4}.get(type(self.positions), 1)
        if self.width % parts:
            raise ConfigError(
                f"{type(self.positions).__name__} need a width that is a multiple of {parts}; got {self.width}."
            )
        if self.attention == "axial" and self.class_tokens:
            raise ConfigError(
                "axial attention runs along rows and columns, where a class token has no place; "
                "got pooling='token'. Take pooling='mean' or 'max'."
            )
        if self.attention == "axial" and isinstance(self.positions, RelativePositions):
            raise ConfigError("relative positions are of the whole sequence; take attention='full' with them.")

    @property
    def layers(self) -> int:
        """Attention layers: one a block, or two where attention is axial."""
        return self.depth * (2 if self.attention == "axial" else 1)

    @property
    def grid(self) -> Grid:
        """Rows and columns of patches at the image size that the model is built for."""
        return self.stem.grid(*self.image_size)

    @property
    def class_tokens(self) -> int:
        """How many tokens stand before the patches: the class token, or none where tokens are pooled."""
        return 1 if self.pooling == "token" else 0

    @property
    def tokens(self) -> int:
        """T, at the image size that the model is built for."""
        rows, cols = self.grid
        return self.class_tokens + rows * cols

    @property
    def head_width(self) -> int:
        """Features of one head, D_h."""
        return self.width // self.heads

    @property
    def representation(self) -> int:
        """Features that the linear classifier reads."""
        return self.representation_width or self.width


@dataclass(frozen=True, kw_only=True)
class BiTConfig:
    """A BiT ResNet, the paper's baseline: v2 units, GroupNorm, standardised convolutions (Section 4.1)."""

    units: tuple[int, ...]
    width_factor: int
    classes: int = 1000
    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    head_bias: float = 0.0
    epsilon: float = 1e-5
    checkpointing: bool = False

    def __post_init__(self) -> None:
        _positive(self, "width_factor", "classes", "channels")
        if not self.units or not all(isinstance(count, int) and count > 0 for count in self.units):
            raise ConfigError(f"units must be a number of units for each stage, each at least 1; got {self.units}.")
        if not self.epsilon > 0:
            raise ConfigError(f"epsilon must be positive; got {self.epsilon}.")
        as_size(self.image_size)

    @property
    def width(self) -> int:
        """Channels of the root block."""
        return 64 * self.width_factor

    @property
    def representation(self) -> int:
        """Features that the linear classifier reads."""
        return 4 * self.width * 2 ** (len(self.units) - 1)


ModelConfig = ViTConfig | BiTConfig


def _positive(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be a whole number, at least 1; got {value!r}.")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {value!r}.")


def _rate(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"{name} must be at least 0 and under 1; got {value!r}.")
