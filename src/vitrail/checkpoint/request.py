"""What a caller says of a file of weights, and wants of its model."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitrail.checkpoint.layouts.base import FileHints
from vitrail.config import (
    Grid,
    ModelConfig,
    ViTConfig,
    as_size,
    override,
    pair,
    reach,
    read_settings,
    row,
    suggest,
    whole,
)
from vitrail.config.fields import mean
from vitrail.errors import ConfigError

# What the weights do not decide.
CHANGEABLE = (
    *("activation", "attention_dropout", "checkpointing", "cosine_scale", "dropout", "epsilon", "filter_epsilon"),
    *("head_bias", "heads", "positions.resampling", "pre_logits", "resampling", "stem.epsilon", "stem.filter_epsilon"),
    *("stem.filter_rule", "stochastic_depth"),
)
ARGUMENTS = ("image_size", "classes", "patch", "channels", "grid", "keep_pre_logits")
OLD_WORDS = {"keep_hidden": "keep_pre_logits", "stem.patch": "patch"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a caller says of a file and wants of its model, checked before anything is opened."""

    image_size: int | tuple[int, int] | None = None
    classes: int | None = None
    patch: int | None = None
    channels: int | None = None
    grid: Grid | None = None
    keep_pre_logits: bool = False
    fields: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, changes: Mapping[str, Any]) -> "Request":
        """Sort what a caller says into arguments and fields, in our words or in those of another library."""
        given: dict[str, Any] = {}
        said: dict[str, str] = {}
        for name, value in changes.items():
            meant = name if name in ARGUMENTS else OLD_WORDS.get(name) or mean(ViTConfig, {}, name)
            meant = OLD_WORDS.get(meant, meant)
            if meant in ARGUMENTS and value is None:
                continue
            if meant not in (*ARGUMENTS, *CHANGEABLE):
                known = "" if meant == name else f", which is {meant}"
                hint = suggest(name, (*ARGUMENTS, *CHANGEABLE)) if meant == name else ""
                raise ConfigError(f"load cannot change {name!r}{known}: the file decides.{hint}")
            if given.get(meant, False) is not False:
                raise ConfigError(f"{said[meant]} and {name} are one, {meant}. Give it once.")
            given[meant], said[meant] = value, name
        named = {name: given.pop(name) for name in ARGUMENTS if name in given}
        return cls(**named, fields=given)

    def __post_init__(self) -> None:
        if self.keep_pre_logits and self.classes is None:
            raise ConfigError("keep_pre_logits keeps the tanh layer under a new classifier. Give classes=... too.")
        for name in ("classes", "patch", "channels"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole(name, value))
        if self.image_size is not None:
            object.__setattr__(self, "image_size", as_size(self.image_size))
        if self.grid is not None:
            grid = pair("grid", self.grid, "(rows, cols) of the file's position table")
            object.__setattr__(self, "grid", grid)

    @property
    def hints(self) -> FileHints:
        """What is said of the file."""
        size = None if self.image_size is None else as_size(self.image_size)
        return FileHints(image_size=size, grid=self.grid, fields=self.fields)

    def target(self, old: ModelConfig) -> ModelConfig:
        """Give the configuration that is wanted of a file's."""
        named = {name: getattr(self, name) for name in ("image_size", "classes", "patch", "channels")}
        changes: dict[str, object] = {name: value for name, value in named.items() if value is not None}
        changes |= self.fields
        heads = changes.pop("heads", None)
        if heads is not None and heads != getattr(old, "heads", None):
            raise ConfigError(f"load cannot change 'heads': the file decides; got heads={heads!r}. Leave it out.")
        scale = changes.get("cosine_scale", old.cosine_scale)
        if self.classes is None and old.classes and (scale is None) != (old.cosine_scale is None):
            raise ConfigError(f"cosine_scale={scale!r} needs a classifier of another kind. Give classes=... too.")
        if isinstance(old, ViTConfig):
            self._choose_pre_logits(changes, old)
            self._check_patch(old)
        return override(old, changes)

    def settings(self, old: ModelConfig, new: ModelConfig) -> Iterator[str]:
        """Say which fields the caller set otherwise than the file's layout means them."""
        for name in self.fields:
            before, after = (reach(config, name) for config in (old, new))
            if before != after and name != "pre_logits":
                yield f"{name} set to {after}, where the file means {before}"

    def _choose_pre_logits(self, changes: dict[str, object], old: ViTConfig) -> None:
        """Drop the pre-training layer with its classifier (Section 3.2), or keep it under a new one."""
        if self.classes is not None and not self.keep_pre_logits:
            changes.setdefault("pre_logits", None)
        width = changes.get("pre_logits", old.pre_logits)
        if width is not None and width != old.pre_logits:
            has = f"one of {old.pre_logits}" if old.pre_logits else "none"
            raise ConfigError(f"pre_logits={width!r}: the file has {has}. Leave it out.")
        if self.classes is None and width != old.pre_logits:
            raise ConfigError(
                f"the file's head reads {old.representation} features; pre_logits={width!r} needs a new "
                "head. Give classes=... too."
            )

    def _check_patch(self, old: ViTConfig) -> None:
        if self.patch is None or self.image_size is not None:
            return
        side = old.stem.stride // old.stem.patch * self.patch
        if any(length % side for length in old.image_size):
            height, width = old.image_size
            raise ConfigError(
                f"the file's image size {height}x{width} is no multiple of patches of {side} pixels. "
                "Give image_size=... too."
            )


def read_fields(settings: Iterable[str]) -> dict[str, Any]:
    """Read `field=value` texts of a model's fields, those of its parts too."""
    kind, values = row("R50+ViT-B/16")  # which has every part that a field may be in
    return read_settings(kind, values, settings)
