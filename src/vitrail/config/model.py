"""What a model is: ViT and hybrids (`ViTConfig`), BiT ResNets (`BiTConfig`)."""

from dataclasses import MISSING, dataclass
from typing import Literal

from vitrail.config.check import (
    DEEPEST,
    Checked,
    image_size,
    needs,
    positive,
    rate,
    whole,
    wholes,
)
from vitrail.config.positions import (
    Learned2DPositions,
    LearnedPositions,
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
FilterRule = Literal["deviation", "variance"]

PAPER_POSITIONS = LearnedPositions(at="stem")
NORM_GROUPS = 32  # of every GroupNorm, in hybrids and BiT alike


@dataclass(frozen=True, kw_only=True)
class PatchStem(Checked, word="patches"):
    """Patches cut straight from the pixels (Section 3.1)."""

    patch: int

    @property
    def stride(self) -> int:
        """Pixels from one token to the next."""
        return self.patch

    def grid(self, height: int, width: int) -> Grid:
        """Rows and columns of patches in an image; its sides must be multiples of the patch side."""
        if height < self.patch or width < self.patch or height % self.patch or width % self.patch:
            below = [max(side // self.patch, 1) * self.patch for side in (height, width)]
            above = [max(-(-side // self.patch), 1) * self.patch for side in (height, width)]
            choice = f"{below[0]}x{below[1]}" + (f" or {above[0]}x{above[1]}" if below != above else "")
            raise ShapeError(
                f"image sides must be multiples of the patch side {self.patch}; got {height}x{width}. "
                f"Resize or crop to {choice} first."
            )
        return height // self.patch, width // self.patch


@dataclass(frozen=True, kw_only=True)
class HybridStem(Checked, word="hybrid"):
    """Patches cut from the feature map of a ResNet (Section 4.1): `units` a stage; none is the root block alone."""

    units: tuple[int, ...] = needs(wholes, MISSING, what="a number of units for each stage", empty=True)
    width: int = 64
    patch: int = 1
    epsilon: float = needs(positive, 1e-6)  # of its norms
    filter_rule: FilterRule = "deviation"  # filters are divided by it: deviation + epsilon, or root(variance + epsilon)
    filter_epsilon: float = needs(positive, 1e-5)

    def __post_init__(self) -> None:
        super().__post_init__()
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


def _positions(name: str, value: object) -> object:
    if not isinstance(value, Positions):
        raise ConfigError(
            "positions must be none, learned, learned-2d, relative, sinusoidal or sinusoidal-2d, or such an object "
            f"of vitrail.config; got {value!r}."
        )
    return value


@dataclass(frozen=True, kw_only=True)
class ViTConfig(Checked, word="vit"):
    """A Vision Transformer or a hybrid (Section 3.1, Table 1)."""

    stem: Stem
    depth: int = needs(whole, MISSING, most=DEEPEST)
    width: int
    mlp_width: int
    heads: int
    classes: int | None = 1000  # None: no head, the model gives its representation
    image_size: tuple[int, int] = needs(image_size, (224, 224))
    channels: int = 3
    positions: Positions = needs(_positions, PAPER_POSITIONS)
    attention: Attention = "full"  # axial (Appendix D.6): every block is one along rows, then one along columns
    causal: bool = False  # each token attends to itself and those before it, as a language model's (Chen et al., 2020)
    norm: Norm = "pre"  # post: after the residual sum, as in the original Transformer, and none at the end
    activation: Activation = "gelu-tanh"
    qkv_bias: bool = True
    layer_scale: float | None = None  # first value of a learned factor of every residual feature; None: there is none
    pooling: Pooling = "token"
    pre_logits: int | None = None  # width of the pre-training head's tanh layer; None: a linear head alone
    head_bias: float = 0.0  # the classifier's first bias: -6.9 or -10 with the sigmoid loss
    # None: a linear classifier; else logits are this times the cosine between representation and class directions.
    cosine_scale: float | None = needs(positive, None)
    dropout: float = needs(rate, 0.0)
    attention_dropout: float = needs(rate, 0.0)
    stochastic_depth: float = needs(rate, 0.0)  # of the last block; grows linearly from 0 at the first
    epsilon: float = needs(positive, 1e-6)
    checkpointing: bool = False  # recompute each block in the backward pass instead of storing it

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_cosine(self.cosine_scale, self.head_bias)
        if self.width % self.heads:
            few = min(self.heads, self.width, DEEPEST)  # a search that ends soon
            near = next(heads for heads in range(few, 0, -1) if self.width % heads == 0)
            raise ConfigError(
                f"heads must divide the width {self.width}; got {self.heads} heads. Take heads={near}, "
                f"or a width that is a multiple of {self.heads}."
            )
        self.stem.grid(*self.image_size)
        self._check_positions()

    def _check_positions(self) -> None:
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
        if self.causal and self.attention == "axial":
            raise ConfigError("a causal model attends to every token before; take attention='full' with it.")
        if self.causal and self.class_tokens:
            raise ConfigError(
                "the class token comes first, and in a causal model it sees nothing of the image; got pooling='token'. "
                "Take pooling='mean' or 'max'."
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
    def reads_class_token_alone(self) -> bool:
        """Whether the last block's other tokens give keys and values to one token, and are read by nobody else."""
        return self.pooling == "token" and self.norm == "pre" and not isinstance(self.positions, RelativePositions)

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
        return self.pre_logits or self.width


@dataclass(frozen=True, kw_only=True)
class BiTConfig(Checked, word="bit"):
    """A BiT ResNet, the paper's baseline: v2 units, GroupNorm, standardised convolutions (Section 4.1)."""

    units: tuple[int, ...] = needs(wholes, MISSING, what="a number of units for each stage")
    width: int  # channels of the root block: 64 times the factor of the name
    classes: int | None = 1000
    image_size: tuple[int, int] = needs(image_size, (224, 224))
    channels: int = 3
    head_bias: float = 0.0
    cosine_scale: float | None = needs(positive, None)  # as ViTConfig's
    epsilon: float = needs(positive, 1e-5)
    filter_epsilon: float = needs(positive, 1e-10)  # filters are divided by root(variance + epsilon)
    checkpointing: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_cosine(self.cosine_scale, self.head_bias)
        if self.width % NORM_GROUPS:
            raise ConfigError(f"a BiT's width must be a multiple of the {NORM_GROUPS} norm groups; got {self.width}.")

    @property
    def representation(self) -> int:
        """Features that the linear classifier reads."""
        return 4 * self.width * 2 ** (len(self.units) - 1)


ModelConfig = ViTConfig | BiTConfig


def _check_cosine(scale: float | None, head_bias: float) -> None:
    if scale is not None and head_bias:
        raise ConfigError(f"a classifier by cosines has no bias; got head_bias={head_bias}. Set head_bias=0.")
