"""A model changed: what a caller wants of it, and its weights for another image size, task, patch or channels.

Adapting is pure: nothing is changed in place, and each change is reported.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any

import torch

from vitrail.checkpoint.new_head import Adapted, Weights, head_of, replace_head
from vitrail.config import (
    BiasPositions,
    Grid,
    HybridStem,
    Learned2DPositions,
    LearnedPositions,
    ModelConfig,
    RelativePositions,
    Resampling,
    RotaryPositions,
)
from vitrail.config.card import Card
from vitrail.config.check import as_size, check_field, pair, whole
from vitrail.config.dense import DenseHead
from vitrail.config.fields import hints, mean, override, reach
from vitrail.config.model import ViTConfig
from vitrail.config.name_tables import NamesTable, read_names
from vitrail.config.preprocessing import SAID, read_preprocessing
from vitrail.config.words import suggest
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import fingerprint_of
from vitrail.models import Model, find_device, skeleton
from vitrail.ops.positions import resample_axis, resample_offsets, resample_patches, resample_positions

# What the weights do not decide.
CHANGEABLE = (
    *("activation", "attention_dropout", "checkpointing", "cosine_scale", "dropout", "epsilon", "filter_epsilon"),
    *(
        "head_bias",
        "heads",
        "norm",
        "pooling",
        "positions.resampling",
        "pre_logits",
        "resampling",
        "stem.epsilon",
        "stem.filter_epsilon",
    ),
    *("stem.filter_rule", "stochastic_depth"),
)
ARGUMENTS = ("image_size", "classes", "patch", "channels", "grid", "keep_pre_logits", "names", "head")
OLD_WORDS = {"keep_hidden": "keep_pre_logits", "stem.patch": "patch"}
# Words of other libraries that are no change of a model, each with what to do.
ANSWERS = {"map_location": "Give device=...", "strict": "Loading is always strict: leave it out."}
ANSWERS |= {"weights_only": "Nothing that a file holds is executed: leave it out."}
ANSWERS |= {"pretrained": "What is opened is trained: leave it out.", "revision": "Write hf:OWNER/NAME@REVISION."}
ANSWERS |= dict.fromkeys(("dtype", "torch_dtype"), "Weights are float32: take model.to(dtype) afterwards.")
ANSWERS |= {"token": "Set HF_TOKEN in the environment.", "cache_dir": "Set HF_HOME in the environment."}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a caller says of a file and wants of its model, checked before anything is opened."""

    image_size: tuple[int, int] | None = None
    classes: int | None = None
    patch: int | None = None
    channels: int | None = None
    grid: Grid | None = None
    keep_pre_logits: bool = False
    names: NamesTable | None = None  # which tensor of the file is what
    head: DenseHead | None = None  # a new one, of pixels or objects
    fields: Mapping[str, object] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)  # fields of it

    @classmethod
    def of(cls, changes: Mapping[str, Any]) -> "Request":
        """Sort what a caller says into arguments and fields, in our words or in those of another library."""
        given: dict[str, Any] = {}
        said: dict[str, str] = {}
        for name, value in changes.items():
            if name in ANSWERS:
                raise ConfigError(f"load has no option {name!r}. {ANSWERS[name]}")
            if name in SAID:
                continue
            meant = name if name in ARGUMENTS else OLD_WORDS.get(name) or mean(ViTConfig, {}, name)
            meant = OLD_WORDS.get(meant, meant)
            if meant in ARGUMENTS and value is None:
                continue
            if meant not in (*ARGUMENTS, *CHANGEABLE):
                known = "" if meant == name else f", which is {meant}"
                hint = " Leave it out, or begin with a fresh model by its name, such as ViT-Ti/16."
                if meant.partition(".")[0] not in hints(ViTConfig):
                    hint = suggest(name, (*ARGUMENTS, *CHANGEABLE, *SAID))
                raise ConfigError(f"load cannot change {name!r}{known}: the file decides.{hint}")
            if given.get(meant, False) is not False:
                raise ConfigError(f"{said[meant]} and {name} are one, {meant}. Give it once.")
            given[meant], said[meant] = value, name
        named = {name: given.pop(name) for name in ARGUMENTS if name in given}
        if named.get("keep_pre_logits") and "classes" not in named:
            raise ConfigError("keep_pre_logits=True keeps the tanh layer under a new classifier. Give classes=... too.")
        named |= {name: whole(name, named[name]) for name in ("classes", "patch", "channels") if name in named}
        if "image_size" in named:
            named["image_size"] = as_size(named["image_size"])
        if "grid" in named:
            named["grid"] = pair("grid", named["grid"], "(rows, cols) of the file's position table")
        if "names" in named:
            named["names"] = read_names(named["names"])
        if "head" in named:
            named["head"] = check_field(ViTConfig, "head", named["head"])
            if "classes" not in named:
                raise ConfigError("a new head of pixels or objects needs classes. Give classes=... too.")
        return cls(**named, fields=given, preprocessing=read_preprocessing(changes))

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
        if self.classes is not None:
            changes |= self._choose_head(old)
        if isinstance(old, ViTConfig):
            if changes.get("pooling", old.pooling) != old.pooling and old.class_token is None:
                changes["class_token"] = bool(old.class_tokens)
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

    def _choose_head(self, old: ModelConfig) -> dict[str, object]:
        """Give what a new head of pixels or objects changes beside itself; a classifier takes the place of an old one.

        Every token is normed as the pooled ones were, and nothing is read of them but patches.
        """
        if not isinstance(old, ViTConfig):
            if self.head is None:
                return {}
            raise ConfigError(
                f"to {self.head.task} takes the tokens of a Vision Transformer or a hybrid; got a BiT. "
                "Take another model."
            )
        if self.head is None:
            return {} if old.head is None else {"head": None}
        plain = old.pooling in ("token", "mean", "max")
        pooling = {} if plain else {"pooling": "token" if old.class_tokens else "mean"}
        return {"head": self.head, "projection": None, "cosine_scale": None, "head_bias": 0.0, **pooling}

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


class ModelInMemory:
    """A model as the checkpoint that it would be: what is made of it is a copy, and it stays as it is."""

    def __init__(self, model: Model) -> None:
        self.source, self.config = model, model.config

    def configure(self, **changes: object) -> ModelConfig:
        """Give the configuration of what `model` makes with these changes."""
        return Request.of(changes).target(self.config)

    def card(self, **hints: object) -> Card:
        """Give what belongs to the weights."""
        return self.source.card

    def model(self, *, device: torch.device | str | None = None, **changes: object) -> Model:
        """Make a copy with these changes: the arguments and fields of `vitrail.load`."""
        request = Request.of(changes)
        config, card = request.target(self.config), self.source.card
        weights = {name: tensor.detach().cpu().float().clone() for name, tensor in self.source.state_dict().items()}
        weights, said = adapt(weights, self.config, config, new_head=request.classes is not None)
        copy = assemble(config, weights).to(find_device(device)).eval()
        card = card if request.classes is None else card.without_names()
        card = card.for_channels(config.channels).prepared(request.preprocessing, config.channels)
        copy.card = replace(card, metrics={}) if said else card
        return copy

    @property
    def parameters(self) -> int:
        """How many numbers the model holds."""
        return sum(tensor.numel() for tensor in self.source.state_dict().values())

    @property
    def is_fresh(self) -> bool:
        """Whether it was made and never trained: it comes from no file, and its normalizations are as they began."""
        held = self.source.state_dict().items()
        moved = any(bool(part.any()) for name, part in held if "norm" in name and name.endswith(".bias"))
        return self.source.card.provenance is None and not moved

    @cached_property
    def sha256(self) -> str:
        """A digest of the weights."""
        held = {name: tensor.detach().cpu() for name, tensor in self.source.state_dict().items()}
        return fingerprint_of("\0".join(held), *(part.reshape(-1).view(torch.uint8).numpy() for part in held.values()))


def assemble(config: ModelConfig, weights: Weights) -> Model:
    """Make the model and give it exactly these weights."""
    model = skeleton(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if difference := compare(wanted, {name: tuple(tensor.shape) for name, tensor in weights.items()}):
        raise CheckpointError(f"the weights do not fit the model asked for: {difference}.")
    model.load_state_dict(weights, strict=True, assign=True)
    return model


def compare(wanted: dict[str, tuple[int, ...]], given: dict[str, tuple[int, ...]]) -> str:
    """List all that is missing, unexpected or of another shape; nothing where all fits."""
    parts = {
        "missing": sorted(wanted.keys() - given.keys()),
        "unexpected": sorted(given.keys() - wanted.keys()),
        "of another shape": [
            f"{name} is {given[name]}, not {shape}" for name, shape in wanted.items() if given.get(name, shape) != shape
        ],
    }
    return "; ".join(f"{len(found)} {what}: {', '.join(found)}" for what, found in parts.items() if found)


def adapt(weights: Weights, old: ModelConfig, new: ModelConfig, *, new_head: bool = False) -> Adapted:
    """Give the weights of one configuration as those of another, step by step; `new_head` asks for a zero one."""
    changes: list[str] = []
    for step in (change_channels, change_patch, change_size):
        weights, said = step(weights, old, new)
        changes += said
    same = (old.classes, old.representation, old.cosine_scale is None, head_of(old))
    if new_head or same != (new.classes, new.representation, new.cosine_scale is None, head_of(new)):
        weights, said = replace_head(weights, new)
        changes += said
    return weights, tuple(changes)


def change_size(weights: Weights, old: ModelConfig, new: ModelConfig) -> Adapted:
    """Resample the positions from one grid to another (Section 3.2), as the model itself would; all else stays."""
    if not isinstance(old, ViTConfig) or not isinstance(new, ViTConfig) or old.grid == new.grid:
        return weights, ()
    said = f"positions resampled from {old.grid[0]}x{old.grid[1]} to {new.grid[0]}x{new.grid[1]}"
    tables = {name: tensor for name, tensor in weights.items() if name.startswith("positions.")}
    fresh: Weights = {}
    match old.positions:
        case LearnedPositions(resampling=how):
            fresh = resample_tables(tables, old, new, how)
            said += f" ({how})"
        case RotaryPositions(table=how) if how is not None:
            fresh = resample_tables(tables, old, new, how)
            said += f" ({how})"
        case Learned2DPositions():
            axes = {"positions.rows.": 0, "positions.cols.": 1}
            for name, table in tables.items():
                axis = next((axis for start, axis in axes.items() if name.startswith(start)), None)
                fresh[name] = table if axis is None else resample_axis(table, 0, new.grid[axis])
        case BiasPositions(resampling=how, table=table):
            biases = {name: each for name, each in tables.items() if name.startswith("positions.biases.")}
            fresh = {name: resample_offsets(each, old.grid, new.grid, how) for name, each in biases.items()}
            rest = {name: each for name, each in tables.items() if name not in biases}
            fresh |= resample_tables(rest, old, new, table) if table is not None else {}
            said += f" ({how})"
        case RelativePositions():
            fresh = {name: resample_axis(table, 0, 2 * new.tokens - 1) for name, table in tables.items()}
        case _:
            said = f"positions are those of the new grid {new.grid[0]}x{new.grid[1]}"
    return weights | fresh, (said,)


def resample_tables(tables: Weights, old: ViTConfig, new: ViTConfig, how: Resampling) -> Weights:
    """Resample every table; the entries of the tokens before the patches stay."""
    return {name: resample_positions(table, old.grid, new.grid, how, old.leading) for name, table in tables.items()}


def change_patch(weights: Weights, old: ModelConfig, new: ModelConfig) -> Adapted:
    """Resize the patch kernel by the pseudo-inverse (FlexiViT): a resized patch has the embedding that it had."""
    if not isinstance(old, ViTConfig) or not isinstance(new, ViTConfig) or old.stem.patch == new.stem.patch:
        return weights, ()
    if getattr(old.stem, "norms", False):
        raise CheckpointError("patches whose values are normed cannot be resized. Take the file's own patch.")
    name = f"embedding.{'patches.' if isinstance(old.stem, HybridStem) else ''}projection.weight"
    before, after = old.stem.patch, new.stem.patch
    kernel = resample_patches(weights[name], before, after)
    return weights | {name: kernel}, (f"patches resized from {before} to {after} by the pseudo-inverse",)


def change_channels(weights: Weights, old: ModelConfig, new: ModelConfig) -> Adapted:
    """Sum the first layer over the channels for one, or repeat them, scaled to the same sum, for another number."""
    if old.channels == new.channels:
        return weights, ()
    if new.channels != 1 and old.channels != 3:
        raise CheckpointError(
            f"channels can go from 3 to any number, or from any number to 1; got {old.channels} to {new.channels}."
        )
    name = "root.weight"
    if isinstance(old, ViTConfig):
        if getattr(old.stem, "norms", False):
            raise CheckpointError("the channels of patches whose values are normed cannot change. Take the file's own.")
        name = "embedding.resnet.root.weight" if isinstance(old.stem, HybridStem) else "embedding.projection.weight"
    kernel = weights[name]
    if kernel.ndim == 2:  # D PPC: the channel is the last of a flat patch
        kernel = kernel.unflatten(1, (kernel.shape[1] // old.channels, old.channels)).transpose(1, 2)  # D C PP
    if new.channels == 1:
        fresh = kernel.sum(dim=1, keepdim=True)
        said = f"first layer summed over {old.channels} channels"
    else:
        times = [ceil(new.channels / old.channels)] + [1] * (kernel.ndim - 2)
        fresh = kernel.repeat(1, *times)[:, : new.channels] * (old.channels / new.channels)
        said = f"first layer repeated for {new.channels} channels and scaled by {old.channels}/{new.channels}"
    if weights[name].ndim == 2:
        fresh = fresh.transpose(1, 2).flatten(1)
    return weights | {name: fresh.contiguous()}, (said,)
