"""What a model learns from images: their labels, or the images themselves."""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

from vitrail.config.check import DEEPEST, needs, share, validate, whole
from vitrail.errors import ConfigError

STEP = 64  # of a decoder's width, where it is not said
Target = Literal["mean-color", "small-colors", "pixels"]


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The classes of the images."""


@dataclass(frozen=True, kw_only=True)
class MaskedPatches:
    """What is under corrupted patches (Appendix B.1.2): their mean color, 4 x 4 colors, or all pixels."""

    target: Target = "mean-color"
    corrupted: float = needs(share, 0.5)  # share of the patches, exactly
    masked: float = needs(share, 0.8)  # of those: the learned mask in their place
    replaced: float = needs(share, 0.1)  # another patch's embedding; the rest is kept

    def __post_init__(self) -> None:
        validate(self)
        if not self.corrupted:
            raise ConfigError("corrupted must be more than 0: nothing else is predicted.")
        if self.masked + self.replaced > 1:
            raise ConfigError(
                f"masked and replaced are shares of one whole; got {self.masked} and {self.replaced}. "
                "Set masked=0.8 and replaced=0.1."
            )


@dataclass(frozen=True, kw_only=True)
class MaskedAutoencoder:
    """The pixels of hidden patches, from the visible ones alone (He et al., 2022)."""

    masked: float = needs(share, 0.75)  # share of the patches, exactly
    normalized: bool = True  # each patch by the mean and deviation of its own pixels
    decoder_depth: int = needs(whole, 4, most=DEEPEST)  # the authors' 8 are no better once fine-tuned, and slower
    decoder_width: int | None = None  # None: two thirds of the encoder's in steps of 64, 512 at most
    decoder_head_width: int = 64  # as of an encoder; the authors' 32 make attention slower

    def __post_init__(self) -> None:
        validate(self)
        width = STEP if self.decoder_width is None else self.decoder_width
        if width % self.decoder_head_width:
            raise ConfigError(
                f"decoder_head_width={self.decoder_head_width} does not divide the decoder's width, "
                f"a multiple of {width}. Set decoder_width to a multiple of it."
            )


@dataclass(frozen=True, kw_only=True)
class NextPixels:
    """Every pixel's color from those before it, row by row (iGPT, Chen et al., 2020); the model is causal."""

    colors: int = 512  # of a palette that is made from the training images

    def __post_init__(self) -> None:
        object.__setattr__(self, "colours", whole("colours", self.colors, least=2, most=65_536))


def count_of(share: float, patches: int) -> int:
    """Round a share of the patches to whole ones, a half up; shares are what they are written as."""
    return int((Decimal(str(share)) * patches).to_integral_value(ROUND_HALF_UP))


Objective = Labels | MaskedPatches | MaskedAutoencoder | NextPixels
