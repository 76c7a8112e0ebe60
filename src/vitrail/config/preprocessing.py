"""From pixels to what a model reads: the well-known ways by their names, and a way as people say it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from vitrail.config.check import Checked, needs, number, positive, several
from vitrail.config.words import suggest
from vitrail.errors import ConfigError

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Resize = Literal["squash", "crop"]  # both sides to the image size; or the shorter side, then the middle


@dataclass(frozen=True, kw_only=True)
class Preprocessing(Checked):
    """From pixels to what the model reads; the defaults are the authors': squashed to the image size, in [-1, 1]."""

    # Of pixels from 0 to 1: one for every channel, or one for all.
    mean: tuple[float, ...] = needs(several, (0.5,), what="a number for each channel", each=number)
    deviation: tuple[float, ...] = needs(several, (0.5,), what="a number for each channel", each=positive)
    resize: Resize = "squash"
    crop_share: float = needs(positive, 1.0)  # of the resized side that the middle crop keeps
    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    # The numbers of a file that are the levels 0 and 1, such as 0 and 65535: images keep all their bits. Without it
    # they are read in 8 bits.
    value_range: tuple[float, float] | None = needs(several, None, what="two numbers, LOW,HIGH", each=number, count=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.mean) != len(self.deviation):
            raise ConfigError(f"mean and deviation must be as many; got {len(self.mean)} and {len(self.deviation)}.")
        if self.crop_share > 1:
            raise ConfigError(f"crop_share must be at most 1; got {self.crop_share}.")
        if self.value_range is not None and self.value_range[0] >= self.value_range[1]:
            raise ConfigError(f"value_range must rise, LOW,HIGH; got {self.value_range}.")

    def for_channels(self, channels: int) -> "Preprocessing":
        """Give it for another number of channels: one mean and one deviation for all where each had its own."""
        if len(self.mean) in (1, channels):
            return self
        mean, deviation = (sum(values) / len(values) for values in (self.mean, self.deviation))
        return replace(self, mean=(mean,), deviation=(deviation,))

    def changed(self, changes: Mapping[str, Any]) -> "Preprocessing":
        """Give it with these fields changed; one mean goes with several deviations, and a new resize crops nothing."""
        if changes.get("resize", self.resize) != self.resize:
            changes = {"crop_share": 1.0, **changes}
        fields = {**vars(self), **changes}
        most = max(len(fields["mean"]), len(fields["deviation"]))
        for name in ("mean", "deviation"):
            fields[name] = fields[name] * most if len(fields[name]) == 1 else fields[name]
        return Preprocessing(**fields)

    def levels(self) -> str:
        """Say mean and deviation in words, and the range of values where it is said."""
        mean, deviation = (" ".join(f"{value:.4g}" for value in values) for values in (self.mean, self.deviation))
        values = "" if self.value_range is None else ", values from {:g} to {:g}".format(*self.value_range)
        return f"mean {mean}, deviation {deviation}{values}"

    def framing(self, image_size: tuple[int, int] | None = None) -> str:
        """Say in words what of an image is read, at which size where it is known."""
        to = "" if image_size is None else " to {}x{}".format(*image_size)
        whole = "squashed" if self.resize == "squash" else "resized by the shorter side"
        part = "the middle" if self.crop_share == 1 else f"the middle {self.crop_share:.4g} of it"
        said = whole if self.resize == "squash" and self.crop_share == 1 else f"{whole}, {part} cropped"
        return said + to + ("" if self.interpolation == "bilinear" else f", {self.interpolation}")


AUTHORS = Preprocessing()
# Published models of torchvision: normalized by ImageNet's statistics, the middle 224 of 256.
IMAGENET = Preprocessing(mean=(0.485, 0.456, 0.406), deviation=(0.229, 0.224, 0.225), resize="crop", crop_share=0.875)
NAMED = {
    "authors": AUTHORS,
    "imagenet": IMAGENET,
    "clip": Preprocessing(
        mean=(0.48145466, 0.4578275, 0.40821073),
        deviation=(0.26862954, 0.26130258, 0.27577711),
        resize="crop",
        interpolation="bicubic",
    ),
    "zero-one": Preprocessing(mean=(0.0,), deviation=(1.0,)),  # ToTensor alone
    "mnist": Preprocessing(mean=(0.1307,), deviation=(0.3081,)),
    "cifar10": Preprocessing(mean=(0.4914, 0.4822, 0.4465), deviation=(0.2470, 0.2435, 0.2616)),
    "cifar100": Preprocessing(mean=(0.5071, 0.4865, 0.4409), deviation=(0.2673, 0.2564, 0.2762)),
}
ALSO = {
    "google": "authors",
    "inception": "authors",
    "torchvision": "imagenet",
    "openai": "clip",
    "totensor": "zero-one",
}
MEASURE = "measure"  # where there are labels to choose by
FIELDS = ("mean", "deviation", "resize", "crop_share", "interpolation", "antialias", "value_range")
DECISIVE = FIELDS[:4]  # what answers hang on: to be said where it is assumed
# Other words for the fields; `crop` and `interpolation` are fields of training too, and there mean those.
WORDS = {"std": "deviation", "crop": "crop_share", "crop_pct": "crop_share"}
SAID = ("preprocessing", *FIELDS, *WORDS)
SAID_IN_TRAINING = tuple(word for word in SAID if word not in ("crop", "interpolation", "antialias"))


def read_preprocessing(said: Mapping[str, Any]) -> dict[str, Any]:
    """Read how people say preprocessing into the fields that they set; other words in `said` are left alone.

    `preprocessing` is a name, a Preprocessing, or fields by their names; the others are changes to it.
    """
    words = {word: value for word, value in said.items() if word in SAID and value is not None}
    whole = words.pop("preprocessing", None)
    if isinstance(whole, Mapping):
        if unknown := [word for word in whole if word not in SAID[1:]]:
            raise ConfigError(f"preprocessing has no field {unknown[0]!r}.{suggest(str(unknown[0]), SAID[1:])}")
        whole, words = None, {**whole, **words}
    changes: dict[str, Any] = {}
    for word, value in words.items():
        field = WORDS.get(word, word)
        if field in changes:
            raise ConfigError(f"{field} is given twice, as {word} too. Give it once.")
        changes[field] = _levels(field, value) if field in ("mean", "deviation") else value
    base = _named(whole) if isinstance(whole, str) else whole or AUTHORS
    if not isinstance(base, Preprocessing):
        raise ConfigError(f"preprocessing must be a name, a Preprocessing or its fields; got {base!r}.")
    made = base.changed(changes)  # which checks them
    return {name: getattr(made, name) for name in (changes if whole is None else FIELDS)}


def _named(name: str) -> Preprocessing:
    word = name.lower().replace("_", "-")
    if word == MEASURE:
        raise ConfigError("preprocessing=measure chooses by labels, and vitrail.evaluate alone does so. Give a name.")
    if (found := NAMED.get(ALSO.get(word, word))) is None:
        known = (*NAMED, *ALSO)
        near = suggest(name, known)
        every = "" if "There are" in near else f" There are: {', '.join(known)}."
        raise ConfigError(f"there is no preprocessing {name!r}.{near}{every}")
    return found


def _levels(name: str, value: Any) -> tuple[float, ...]:  # noqa: ANN401
    """Read a number, or one for each channel, of levels from 0 to 1."""
    several_given = isinstance(value, Iterable) and not isinstance(value, str | bytes) and getattr(value, "ndim", 1)
    each = positive if name == "deviation" else number
    found = several(name, tuple(value) if several_given else (value,), "a number for each channel", each)
    if max(found) > 1:
        raise ConfigError(
            f"{name} is of levels from 0 to 1; got {max(found):g}. Divide what is of levels from 0 to 255 by 255."
        )
    return found
