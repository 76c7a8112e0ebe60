"""What a model learns from images: their labels, or the images themselves."""

from dataclasses import dataclass
from typing import Literal, get_args

from vitrail.config.check import one_of, share
from vitrail.errors import ConfigError

Target = Literal["mean-colour", "small-colours", "pixels"]


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The classes of the images."""


@dataclass(frozen=True, kw_only=True)
class MaskedPatches:
    """What is under corrupted patches (Appendix B.1.2): their mean colour, 4 x 4 colours, or all pixels."""

    target: Target = "mean-colour"
    corrupted: float = 0.5  # share of the patches, exactly
    masked: float = 0.8  # of those: the learned mask in their place
    replaced: float = 0.1  # another patch's embedding; the rest is kept

    def __post_init__(self) -> None:
        one_of("target", self.target, get_args(Target))
        for name in ("corrupted", "masked", "replaced"):
            object.__setattr__(self, name, share(name, getattr(self, name)))
        if not self.corrupted:
            raise ConfigError("corrupted must be more than 0: nothing else is predicted.")
        if self.masked + self.replaced > 1:
            raise ConfigError(f"masked and replaced are shares of one whole; got {self.masked} and {self.replaced}.")


Objective = Labels | MaskedPatches
