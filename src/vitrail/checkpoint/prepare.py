"""What a caller wants of a checkpoint, and the checkpoint made so: read, adapted, with its card."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from vitrail.checkpoint.adapt import Weights, adapt
from vitrail.checkpoint.cards import read_card
from vitrail.checkpoint.layouts import Asked
from vitrail.checkpoint.reading import opening, read_weights
from vitrail.config import (
    Card,
    Grid,
    ModelConfig,
    Provenance,
    ViTConfig,
    as_size,
    override,
    pair,
    reach,
    suggest,
    whole,
)
from vitrail.errors import ConfigError

# What the weights do not decide.
CHANGEABLE = (
    "activation",
    "attention_dropout",
    "checkpointing",
    "cosine_scale",
    "dropout",
    "epsilon",
    "filter_epsilon",
    "head_bias",
    "heads",
    "positions.resampling",
    "pre_logits",
    "resampling",
    "stem.epsilon",
    "stem.filter_epsilon",
    "stem.filter_rule",
    "stochastic_depth",
)


class Checkpoint(NamedTuple):
    """A model's configuration, its weights in our names, and what belongs to them."""

    config: ModelConfig
    weights: Weights
    card: Card
    came: Provenance  # what was opened, and what was done to it now


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a caller says of a file and wants of its model, checked before anything is opened."""

    image_size: int | tuple[int, int] | None = None
    classes: int | None = None
    patch: int | None = None
    channels: int | None = None
    grid: Grid | None = None
    keep_hidden: bool = False
    fields: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.fields:
            if name not in CHANGEABLE:
                raise ConfigError(f"load cannot change {name!r}: the file decides.{suggest(name, CHANGEABLE)}")
        if self.keep_hidden and self.classes is None:
            raise ConfigError("keep_hidden keeps the tanh layer under a new classifier. Give classes=... too.")
        for name in ("classes", "patch", "channels"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole(name, value))
        if self.image_size is not None:
            object.__setattr__(self, "image_size", as_size(self.image_size))
        if self.grid is not None:
            grid = pair("grid", self.grid, "(rows, cols) of the file's position table")
            object.__setattr__(self, "grid", grid)

    @property
    def asked(self) -> Asked:
        """What is said of the file."""
        size = None if self.image_size is None else as_size(self.image_size)
        return Asked(image_size=size, grid=self.grid, fields=self.fields)

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
            self._settle_hidden(changes, old)
            self._check_patch(old)
        return override(old, changes)

    def _settle_hidden(self, changes: dict[str, object], old: ViTConfig) -> None:
        """Drop the pre-training layer with its classifier (Section 3.2), or keep it under a new one."""
        if self.classes is not None and not self.keep_hidden:
            changes.setdefault("pre_logits", None)
        hidden = changes.get("pre_logits", old.pre_logits)
        if hidden is not None and hidden != old.pre_logits:
            has = f"one of {old.pre_logits}" if old.pre_logits else "none"
            raise ConfigError(f"pre_logits={hidden!r}: the file has {has}. Leave it out.")
        if self.classes is None and hidden != old.pre_logits:
            raise ConfigError(
                f"the file's head reads {old.representation} features; pre_logits={hidden!r} needs a new "
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


def prepare(
    path: str | os.PathLike[str],
    request: Request,
    dtype: torch.dtype | None,
    check: Callable[[ModelConfig, Card], object] = lambda config, card: None,
) -> Checkpoint:
    """Read a checkpoint in this precision, or its own, and adapt it to what is wanted.

    `check` sees the model that it will be, before any weight is read.
    """
    with opening(path, request.asked) as opened:
        old, new = opened.found.config, request.target(opened.found.config)
        card = read_card(opened)
        if request.classes is not None:  # those of the old head are no longer the model's
            card = card.without_names()
        check(new, card)
        weights = read_weights(opened, dtype)
        weights, changes = adapt(weights, old, new, new_head=request.classes is not None)
    changes = (*changes, *_settings(request, old, new))
    if old.channels != new.channels:
        card = replace(card, preprocessing=card.preprocessing.for_channels(new.channels))
    provenance = card.provenance or opened.provenance
    card = replace(card, provenance=replace(provenance, changes=(*provenance.changes, *changes)))
    came = replace(opened.provenance, inferred=provenance.inferred, changes=changes)
    return Checkpoint(new, weights, replace(card, metrics={}) if changes else card, came)


def _settings(request: Request, old: ModelConfig, new: ModelConfig) -> Iterator[str]:
    """Say which fields the caller set otherwise than the file's layout means them."""
    for name in request.fields:
        before, after = (reach(config, name) for config in (old, new))
        if before != after and name != "pre_logits":
            yield f"{name} set to {after}, where the file means {before}"
