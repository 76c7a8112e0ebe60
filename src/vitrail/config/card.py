"""What belongs to weights beside the model: class names, preprocessing, where they come from, how good they are."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vitrail.config.check import needs, number, positive, several, texts, validate
from vitrail.errors import ConfigError

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Resize = Literal["squash", "crop"]  # both sides to the image size; or the shorter side, then the middle


def _mapping(name: str, value: object, what: str = "an object") -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{name} must be {what}; got {value!r}.")
    return value


def _metrics(name: str, value: object) -> Mapping[str, float]:
    metrics = _mapping(name, value, "numbers by name")
    for key, item in metrics.items():
        number(f"metric {key}", item)
    return metrics


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """From pixels to what the model reads; the defaults are the authors': squashed to the image size, in [-1, 1]."""

    # Of pixels from 0 to 1: one for every channel, or one for all.
    mean: tuple[float, ...] = needs(several, (0.5,), what="a number for each channel", each=number)
    deviation: tuple[float, ...] = needs(several, (0.5,), what="a number for each channel", each=positive)
    resize: Resize = "squash"
    crop_share: float = needs(positive, 1.0)  # of the resized side that the middle crop keeps
    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        validate(self)
        if len(self.mean) != len(self.deviation):
            raise ConfigError(f"mean and deviation must be as many; got {len(self.mean)} and {len(self.deviation)}.")
        if self.crop_share > 1:
            raise ConfigError(f"crop_share must be at most 1; got {self.crop_share}.")

    def for_channels(self, channels: int) -> "Preprocessing":
        """Give it for another number of channels: one mean and one deviation for all where each had its own."""
        if len(self.mean) in (1, channels):
            return self
        mean, deviation = (sum(values) / len(values) for values in (self.mean, self.deviation))
        return replace(self, mean=(mean,), deviation=(deviation,))


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where weights come from: the file, its layout and dialect, and what was inferred, left out and changed."""

    source: str
    layout: str
    container: str
    dialect: Mapping[str, Any] = field(default_factory=dict, metadata={"check": _mapping})
    inferred: tuple[str, ...] = needs(texts, ())
    left_out: tuple[str, ...] = needs(texts, ())
    changes: tuple[str, ...] = needs(texts, ())

    def __post_init__(self) -> None:
        validate(self)


@dataclass(frozen=True, kw_only=True)
class Card:
    """What belongs to a model's weights: class names, preprocessing, where they come from, how good they are."""

    class_names: tuple[str, ...] | None = needs(texts, None)
    seen: tuple[str, ...] = needs(texts, ())  # names of other classes that earlier weights were trained on
    preprocessing: Preprocessing = Preprocessing()
    provenance: Provenance | None = None
    metrics: Mapping[str, float] = field(default_factory=dict, metadata={"check": _metrics})

    def __post_init__(self) -> None:
        validate(self)

    def without_names(self) -> "Card":
        """Give it for another classifier: the classes so far are remembered as seen."""
        return replace(self, class_names=None, seen=tuple(sorted({*(self.class_names or ()), *self.seen})))
