"""How a token is told its place: the kinds of Appendix D.4, and the fixed codes of the original Transformer."""

from dataclasses import dataclass
from typing import Literal

# Before the first layer; before every layer, a table each; before every layer, one table for all.
AppliedAt = Literal["stem", "layers", "shared"]
# How a table goes to another grid: as the authors (bilinear, corner to corner), as transformers (bicubic, half-pixel
# centres), as timm (bicubic, antialiased), as torchvision (bicubic, corner to corner).
Resampling = Literal["bilinear-corners", "bicubic", "bicubic-antialias", "bicubic-corners"]


@dataclass(frozen=True, kw_only=True)
class NoPositions:
    """None: the image is a bag of patches."""


@dataclass(frozen=True, kw_only=True)
class LearnedPositions:
    """A learned vector for every token of the sequence (1-D): the paper's choice."""

    at: AppliedAt = "stem"
    resampling: Resampling = "bilinear-corners"


@dataclass(frozen=True, kw_only=True)
class Learned2DPositions:
    """A learned vector of D/2 for every row and one for every column, concatenated."""

    at: AppliedAt = "stem"


@dataclass(frozen=True, kw_only=True)
class RelativePositions:
    """A learned key for every offset p_q - p_k in the sequence; the content's query against it is added to the logits.

    At "stem" in the first layer alone; the paper's is in every layer.
    """

    at: AppliedAt = "layers"


@dataclass(frozen=True, kw_only=True)
class SinusoidalPositions:
    """The fixed sines and cosines of the original Transformer, by place in the sequence."""

    at: AppliedAt = "stem"


@dataclass(frozen=True, kw_only=True)
class Sinusoidal2DPositions:
    """Fixed sines and cosines of the row in the first D/2 features, of the column in the others."""

    at: AppliedAt = "stem"


Positions = (
    NoPositions
    | LearnedPositions
    | Learned2DPositions
    | RelativePositions
    | SinusoidalPositions
    | Sinusoidal2DPositions
)
