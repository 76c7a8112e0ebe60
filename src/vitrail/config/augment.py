"""How images are changed on their way into training and evaluation: data, as the recipes state it."""

from dataclasses import dataclass
from typing import Literal, get_args

from vitrail.config.check import not_negative, number, one_of, positive, rate, truth, whole
from vitrail.errors import ConfigError

# How sizes change: antialiased (the default); as the authors' vision_transformer (bilinear, half-pixel centres, not
# antialiased); as big_vision (the same, and by area where it makes the shorter side smaller).
Resizing = Literal["antialias", "gvt", "bv"]
# What of an image is taken in training: an Inception crop, or all of it resized, whole or by its middle.
Crop = Literal["inception", "squash", "middle"]


@dataclass(frozen=True, kw_only=True)
class RandAugment:
    """Random operations one after the other (Cubuk et al., 2020), as AugReg states them: layers and magnitude."""

    layers: int = 2
    magnitude: float = 10.0  # of 30

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", whole("layers", self.layers, most=16))
        object.__setattr__(self, "magnitude", number("magnitude", self.magnitude))
        if not 0 <= self.magnitude <= 30:
            raise ConfigError(f"magnitude must be from 0 to 30; got {self.magnitude}.")


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Everything that is random about an image in training; the defaults are the paper's: Inception crop and flip."""

    crop: Crop = "inception"
    area: tuple[float, float] = (0.05, 1.0)  # of the image that a crop may take
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    resizing: Resizing = "antialias"
    flip: bool = True
    randaugment: RandAugment | None = None
    three_augment: bool = False  # greyscale, solarisation or blur, one of them (Touvron et al., 2022)
    jitter: float = 0.0  # strength of brightness, contrast, saturation
    erasing: float = 0.0  # probability of a rectangle of noise (Zhong et al., 2020)
    mixup: float = 0.0  # alpha of the Beta distribution; 0: none
    cutmix: float = 0.0
    mix_block: int = 8  # samples of the global order among which partners are found

    def __post_init__(self) -> None:
        one_of("crop", self.crop, get_args(Crop))
        one_of("resizing", self.resizing, get_args(Resizing))
        for name in ("area", "aspect"):
            given = getattr(self, name)
            if not isinstance(given, tuple | list) or len(given) != 2:
                raise ConfigError(f"{name} must be two rising shares; got {given!r}.")
            low, high = given
            if not 0 < positive(name, low) <= positive(name, high) or (name == "area" and high > 1):
                raise ConfigError(f"{name} must be two rising shares; got {getattr(self, name)}.")
        for name in ("flip", "three_augment"):
            truth(name, getattr(self, name))
        object.__setattr__(self, "erasing", rate("erasing", self.erasing))
        for name in ("jitter", "mixup", "cutmix"):
            object.__setattr__(self, name, not_negative(name, getattr(self, name)))
        object.__setattr__(self, "mix_block", whole("mix_block", self.mix_block, least=2))
