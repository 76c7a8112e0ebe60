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
from vitrail.config.dense import LinearHead, QueryHead
from vitrail.config.parts import check_parts, reads_token
from vitrail.config.positions import (
    Learned2DPositions,
    LearnedPositions,
    PairPositions,
    Positions,
    RotaryPositions,
    Sinusoidal2DPositions,
    SinusoidalPositions,
)
from vitrail.errors import ConfigError, ShapeError

Grid = tuple[int, int]  # rows, cols
# The class token; mean or maximum of the patches; token and mean side by side; the class token and the first register
# (DeiT's distillation token), each with a classifier, averaged; a learned query's attention to the patches.
Pooling = Literal["token", "mean", "max", "token+mean", "mean-all", "distilled", "attention"]
Activation = Literal["gelu-tanh", "gelu", "relu", "quick-gelu", "silu"]
Norm = Literal["pre", "post", "branch"]
FinalNorm = Literal["tokens", "pooled", "none"]  # of every token, before pooling; of what is pooled; there is none
MlpKind = Literal["plain", "gated"]  # gated: the activation of one half of the first layer times the other half
InnerNorm = Literal["none", "mlp", "both"]  # before the last layer of the MLP, or of attention too
Attention = Literal["full", "axial"]
FilterRule = Literal["deviation", "variance"]

PAPER_POSITIONS = LearnedPositions(at="stem")
NORM_GROUPS = 32  # of every GroupNorm, in hybrids and BiT alike


@dataclass(frozen=True, kw_only=True)
class PatchStem(Checked, word="patches"):
    """Patches cut straight from the pixels (Section 3.1)."""

    patch: int
    norms: bool = False  # of a patch's values, and of its embedding

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
            "positions must be none, learned, learned-2d, relative, bias, rotary, sinusoidal or sinusoidal-2d, or such "
            f"an object of vitrail.config; got {value!r}."
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
    # post: after the residual sum, as in the original Transformer, and none at the end; branch: before the sum.
    norm: Norm = "pre"
    activation: Activation = "gelu-tanh"
    qkv_bias: bool = True
    layer_scale: float | None = None  # first value of a learned factor of every residual feature; None: there is none
    class_token: bool | None = None  # None: where it is pooled
    registers: int = needs(whole, 0, least=0, most=DEEPEST)  # learned tokens between the class token and the patches
    first_norm: bool = False  # before the blocks too, as CLIP
    final_norm: FinalNorm | None = None  # None: of the tokens where norm=pre, none where norm=post
    mlp: MlpKind = "plain"
    inner_norm: InnerNorm = "none"
    qk_norm: bool = False  # of every head's queries and keys
    attention_width: int | None = None  # features of all heads together; None: the width
    pooling: Pooling = "token"
    pre_logits: int | None = None  # width of the pre-training head's tanh layer; None: a linear head alone
    projection: int | None = None  # width of a last linear layer without biases, as CLIP; None: there is none
    head_bias: float = 0.0  # the classifier's first bias: -6.9 or -10 with the sigmoid loss
    # None: a linear classifier; else logits are this times the cosine between representation and class directions.
    cosine_scale: float | None = needs(positive, None)
    head: QueryHead | LinearHead | None = None  # of every pixel, or of objects; None: the classifier of an image
    dropout: float = needs(rate, 0.0)
    attention_dropout: float = needs(rate, 0.0)
    stochastic_depth: float = needs(rate, 0.0)  # of the last block; grows linearly from 0 at the first
    epsilon: float = needs(positive, 1e-6)
    checkpointing: bool = False  # recompute each block in the backward pass instead of storing it

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_cosine(self.cosine_scale, self.head_bias)
        mixed = self.attention_width or self.width
        if mixed % self.heads:
            few = min(self.heads, mixed, DEEPEST)  # a search that ends soon
            near = next(heads for heads in range(few, 0, -1) if mixed % heads == 0)
            what = "width" if self.attention_width is None else "attention_width"
            raise ConfigError(
                f"heads must divide the {what} {mixed}; got {self.heads} heads. Take heads={near}, "
                f"or a width that is a multiple of {self.heads}."
            )
        self.stem.grid(*self.image_size)
        check_parts(self)
        self._check_positions()

    def _check_positions(self) -> None:
        parts = {Learned2DPositions: 2, SinusoidalPositions: 2, Sinusoidal2DPositions: 4}.get(type(self.positions), 1)
        if self.width % parts:
            raise ConfigError(
                f"{type(self.positions).__name__} need a width that is a multiple of {parts}; got {self.width}."
            )

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
        """How many class tokens there are: one, or none where other tokens are pooled and none is asked for."""
        return int(reads_token(self.pooling) if self.class_token is None else self.class_token)

    @property
    def leading(self) -> int:
        """How many tokens stand before the patches: the class token and the registers."""
        return self.class_tokens + self.registers

    @property
    def reads_plainly(self) -> bool:
        """Whether the classifier reads the class token, or the patches where there is no other token."""
        patches = self.pooling in ("mean", "max") and not self.class_tokens
        return not self.registers and (self.pooling == "token" or patches)

    @property
    def reads_class_token_alone(self) -> bool:
        """Whether the last block's other tokens give keys and values to one token, and are read by nobody else."""
        plain = self.plain_blocks and self.norm == "pre" and self.attention != "axial" and not self.causal
        return plain and self.pooling == "token" and not isinstance(self.positions, PairPositions)

    @property
    def plain_blocks(self) -> bool:
        """Whether every block is the paper's, without a part that others have, and the head is of images."""
        turned = isinstance(self.positions, RotaryPositions)
        plain = self.inner_norm == "none" and self.mlp == "plain" and self.attention_width is None
        return plain and not self.qk_norm and not turned and self.head is None

    @property
    def tokens(self) -> int:
        """T, at the image size that the model is built for."""
        rows, cols = self.grid
        return self.leading + rows * cols

    @property
    def last_norm(self) -> FinalNorm:
        """Where the final norm is."""
        return self.final_norm or ("none" if self.norm == "post" else "tokens")

    @property
    def head_width(self) -> int:
        """Features of one head, D_h."""
        return (self.attention_width or self.width) // self.heads

    @property
    def pooled(self) -> int:
        """Features of what is pooled."""
        two = self.pooling == "token+mean" or (self.pooling == "distilled" and self.classes is not None)
        return self.width * (1 + two)

    @property
    def representation(self) -> int:
        """Features that the linear classifier reads."""
        return self.projection or self.pre_logits or self.pooled


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
