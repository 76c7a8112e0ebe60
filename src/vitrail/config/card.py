"""What belongs to weights beside the model: class names, preprocessing, where they come from, how good they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from vitrail.config.check import number, one_of, positive, truth
from vitrail.errors import ConfigError

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Resize = Literal["squash", "crop"]  # both sides to the image size; or the shorter side, then the middle


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """From pixels to what the model reads; the defaults are the authors': squashed to the image size, in [-1, 1]."""

    mean: tuple[float, ...] = (0.5,)  # of pixels from 0 to 1: one for every channel, or one for all
    deviation: tuple[float, ...] = (0.5,)
    resize: Resize = "squash"
    crop_share: float = 1.0  # of the resized side that the middle crop keeps
    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        for name, check in (("mean", number), ("deviation", positive)):
            values = getattr(self, name)
            if not isinstance(values, Sequence) or isinstance(values, str) or not values:
                raise ConfigError(f"{name} must be a number for each channel; got {values!r}.")
            object.__setattr__(self, name, tuple(check(name, value) for value in values))
        if len(self.mean) != len(self.deviation):
            raise ConfigError(f"mean and deviation must be as many; got {len(self.mean)} and {len(self.deviation)}.")
        one_of("resize", self.resize, get_args(Resize))
        one_of("interpolation", self.interpolation, get_args(Interpolation))
        object.__setattr__(self, "crop_share", positive("crop_share", self.crop_share))
        if self.crop_share > 1:
            raise ConfigError(f"crop_share must be at most 1; got {self.crop_share}.")
        truth("antialias", self.antialias)

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
    dialect: Mapping[str, Any] = field(default_factory=dict)
    inferred: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("source", "layout", "container"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} must be a text; got {getattr(self, name)!r}.")
        if not isinstance(self.dialect, Mapping):
            raise ConfigError(f"dialect must be an object; got {self.dialect!r}.")
        for name in ("inferred", "left_out", "changes"):
            object.__setattr__(self, name, texts(name, getattr(self, name)))


@dataclass(frozen=True, kw_only=True)
class Card:
    """All of it."""

    class_names: tuple[str, ...] | None = None
    seen: tuple[str, ...] = ()  # names of other classes that earlier weights were trained on
    preprocessing: Preprocessing = Preprocessing()
    provenance: Provenance | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.class_names is not None:
            object.__setattr__(self, "class_names", texts("class_names", self.class_names))
        object.__setattr__(self, "seen", texts("seen", self.seen))
        if not isinstance(self.metrics, Mapping) or not all(isinstance(name, str) for name in self.metrics):
            raise ConfigError(f"metrics must be numbers by name; got {self.metrics!r}.")
        for name, value in self.metrics.items():
            number(f"metric {name}", value)

    def without_names(self) -> "Card":
        """Give it for another classifier: the classes so far are remembered as seen."""
        return replace(self, class_names=None, seen=tuple(sorted({*(self.class_names or ()), *self.seen})))


def texts(name: str, value: object) -> tuple[str, ...]:
    """Read several texts."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{name} must be a list of texts; got {value!r}.")
    return tuple(value)


def to_document(part: Preprocessing | Provenance) -> dict[str, Any]:
    """Give a part as a JSON object."""
    values = {name: getattr(part, name) for name in (field.name for field in fields(part))}
    return {name: _plain(value) for name, value in values.items()}


def from_document(kind: type[Any], document: object) -> Any:  # noqa: ANN401
    """Read a part that `to_document` wrote, strictly."""
    known = {field.name for field in fields(kind)}
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise ConfigError(f"{kind.__name__} must be a JSON object; got {document!r}.")
    if unknown := sorted(document.keys() - known):
        raise ConfigError(f"{kind.__name__} has no field {unknown[0]!r}.")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{kind.__name__} is incomplete: {error}") from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value
