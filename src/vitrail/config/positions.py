"""How a token is told its place: the kinds of Appendix D.4, and the fixed codes of the original Transformer."""

from dataclasses import dataclass
from typing import Literal

from vitrail.config.check import Checked, needs, positive

# Before the first layer; before every layer, a table each; before every layer, one table for all.
AppliedAt = Literal["stem", "layers", "shared"]
# How a table goes to another grid: as the authors (bilinear, corner to corner), as transformers (bicubic, half-pixel
# centres), as timm (bicubic, antialiased), as torchvision (bicubic, corner to corner).
Resampling = Literal["bilinear-corners", "bicubic", "bicubic-antialias", "bicubic-corners"]


@dataclass(frozen=True, kw_only=True)
class NoPositions(Checked, where="positions.", word="none"):
    """None: the image is a bag of patches."""


@dataclass(frozen=True, kw_only=True)
class LearnedPositions(Checked, where="positions.", word="learned"):
    """A learned vector for every token of the sequence (1-D): the paper's choice."""

    at: AppliedAt = "stem"
    resampling: Resampling = "bilinear-corners"


@dataclass(frozen=True, kw_only=True)
class Learned2DPositions(Checked, where="positions.", word="learned-2d"):
    """A learned vector of D/2 for every row and one for every column, concatenated."""

    at: AppliedAt = "stem"


@dataclass(frozen=True, kw_only=True)
class RelativePositions(Checked, where="positions.", word="relative"):
    """A learned key for every offset p_q - p_k in the sequence; the content's query against it is added to the logits.

    At "stem" in the first layer alone; the paper's is in every layer.
    """

    at: AppliedAt = "layers"


@dataclass(frozen=True, kw_only=True)
class BiasPositions(Checked, where="positions.", word="bias"):
    """A learned number of every head for every offset of two patches in rows and columns is added to the logits.

    Three more are of the class token: for what it reads of patches, for what they read of it, for itself (BEiT; Bao et
    al., 2022). Another grid reads the numbers as BEiT's authors do, at distances that grow by one factor (`geometric`),
    or all of them, `bilinear`, as transformers does. A table may be added to the tokens too: `table` says how it is
    resampled.
    """

    at: AppliedAt = "layers"
    resampling: Literal["geometric", "bilinear"] = "geometric"
    table: Resampling | None = None


@dataclass(frozen=True, kw_only=True)
class RotaryPositions(Checked, where="positions.", word="rotary"):
    """Every pair of features of a patch's queries and keys is turned by an angle of its row or column, in every layer.

    Places are from -1 to 1 across the image, or patches from one to the next, scaled to the grid of `reference` patches
    a side. A table may be added to the tokens too: `table` says how it is resampled.
    """

    period: float = needs(positive, 100.0)  # of the slowest angle, relative to that of the fastest
    places: Literal["share", "steps"] = "share"
    pairs: Literal["halves", "neighbors"] = "halves"  # feature i and i + d/2 of a head, or 2i and 2i + 1
    reference: int | None = None  # None: steps as they are
    table: Resampling | None = None


@dataclass(frozen=True, kw_only=True)
class SinusoidalPositions(Checked, where="positions.", word="sinusoidal"):
    """The fixed sines and cosines of the original Transformer, by place in the sequence."""

    at: AppliedAt = "stem"


@dataclass(frozen=True, kw_only=True)
class Sinusoidal2DPositions(Checked, where="positions.", word="sinusoidal-2d"):
    """Fixed sines and cosines of the row in the first D/2 features, of the column in the others.

    "simple" is big_vision's code: sines and then cosines of the column, then of the row, down to a rate of 1/10000.
    """

    at: AppliedAt = "stem"
    code: Literal["transformer", "simple"] = "transformer"


FixedPositions = SinusoidalPositions | Sinusoidal2DPositions
PairPositions = RelativePositions | BiasPositions  # of pairs of tokens, among all of a sequence
Positions = (
    NoPositions
    | LearnedPositions
    | Learned2DPositions
    | RelativePositions
    | BiasPositions
    | RotaryPositions
    | FixedPositions
)
