"""What belongs to a model's weights: class names, preprocessing and whether it is known, where they come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vitrail.config.check import Checked, needs, number, positive, texts
from vitrail.config.outputs import NumberOutputs, Outputs
from vitrail.config.preprocessing import AUTHORS, IMAGENET, Preprocessing
from vitrail.errors import ConfigError

OWNERS = ((AUTHORS, "the authors'"), (IMAGENET, "ImageNet's"))  # of what may be assumed
AVERAGED = "mean and deviation averaged over the channels"


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
class Provenance(Checked):
    """Where weights come from: the file, its layout and dialect, and what was inferred, left out and changed."""

    source: str
    layout: str
    container: str
    dialect: Mapping[str, Any] = field(default_factory=dict, metadata={"check": _mapping})
    inferred: tuple[str, ...] = needs(texts, ())
    left_out: tuple[str, ...] = needs(texts, ())
    changes: tuple[str, ...] = needs(texts, ())
    assumed: tuple[str, ...] = needs(texts, ())  # fields of the preprocessing that nothing says


@dataclass(frozen=True, kw_only=True)
class Card(Checked):
    """What belongs to a model's weights: class names, preprocessing, where they come from, how good they are."""

    class_names: tuple[str, ...] | None = needs(texts, None)
    seen: tuple[str, ...] = needs(texts, ())  # names of other classes that earlier weights were trained on
    preprocessing: Preprocessing = AUTHORS
    provenance: Provenance | None = None
    metrics: Mapping[str, float] = field(default_factory=dict, metadata={"check": _metrics})
    temperature: float = needs(positive, 1.0)  # by which logits are divided before they are probabilities
    outputs: Outputs | None = None  # what the model's outputs mean; None: the logits of one class

    def without_names(self) -> "Card":
        """Give it for another classifier: the classes so far are remembered as seen, its temperature is forgotten."""
        before = () if isinstance(self.outputs, NumberOutputs) else self.class_names or ()
        seen = tuple(sorted({*before, *self.seen}))
        return replace(self, class_names=None, seen=seen, temperature=1.0, outputs=None)

    @property
    def assumed(self) -> tuple[str, ...]:
        """The fields of the preprocessing that nothing says."""
        return () if self.provenance is None else self.provenance.assumed

    def assumption(self, image_size: tuple[int, int]) -> str | None:
        """Say what of the preprocessing was assumed, in a line; nothing where it is known."""
        how, levels = self.preprocessing, {"mean", "deviation"} & {*self.assumed}
        framed = {"resize", "crop_share"} & {*self.assumed}
        if not levels and not framed:
            return None
        averaged = levels and self.provenance is not None and AVERAGED in self.provenance.changes
        said = [how.levels() + (", averaged over the channels" if averaged else "")] if levels else []
        said += [how.framing(image_size)] if framed else []
        whose = next((whose for known, whose in OWNERS if known.mean == how.mean and levels), None)
        words = ", ".join(said)
        words = words if whose is None else f"{whose} ({words})"
        whole, other = ("", "preprocessing") if levels and framed else (" all", "mean" if levels else "resize")
        return f"preprocessing is not{whole} in the file: assumed {words}; give {other}=... where it was another"

    def for_channels(self, channels: int) -> "Card":
        """Give it for a model of so many channels: where their means differ, one for all is an assumption."""
        how = self.preprocessing.for_channels(channels)
        if how is self.preprocessing:
            return self
        exact = all(len({*values}) == 1 for values in (self.preprocessing.mean, self.preprocessing.deviation))
        if exact or self.provenance is None:
            return replace(self, preprocessing=how)
        came = replace(self.provenance, changes=(*self.provenance.changes, AVERAGED))
        came = replace(came, assumed=tuple(dict.fromkeys((*came.assumed, "mean", "deviation"))))
        return replace(self, preprocessing=how, provenance=came)

    def prepared(self, changes: Mapping[str, Any], channels: int) -> "Card":
        """Give it with these fields of the preprocessing, which are then known; what was measured before is gone."""
        if not changes:
            return self
        how, given = self.preprocessing.changed(changes), {*changes}
        if len(how.mean) not in (1, channels):
            raise ConfigError(
                f"the model reads {channels} channel{'s'[: channels != 1]}; got {how.levels()}. "
                "Give mean=... and deviation=..., each one number, or one for each channel."
            )
        given |= {"crop_share"} if "resize" in given else set()
        came = self.provenance
        if came is not None:
            left = tuple(name for name in came.assumed if name not in given)
            said = f"preprocessing set to {how.levels()}, {how.framing()}"
            came = replace(came, assumed=left, changes=(*came.changes, said))
        metrics = self.metrics if how == self.preprocessing else {}
        return replace(self, preprocessing=how, provenance=came, metrics=metrics)
