"""A run as it was asked for: data, model, how to train, where to write; and the model that it begins with."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitrail.checkpoint.load import Checkpoint, ModelInMemory, open_checkpoint
from vitrail.checkpoint.run_folder import boxed
from vitrail.config import ModelConfig, ViTConfig, parse, row
from vitrail.config.objective import Labels, NextPixels
from vitrail.config.recipe import Training
from vitrail.config.suitable import check_suitable
from vitrail.data.source import Source
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import Model, create
from vitrail.models.base import CosineHead
from vitrail.models.initialize import DIRECTIONS, draw
from vitrail.train.objective import Objective

SCALE = 32.0  # of the cosines where a margin is asked for and no scale
AnyModel = str | os.PathLike[str] | Model
Start = Checkpoint | ModelInMemory  # what a run begins with


@dataclass(frozen=True, kw_only=True)
class Task:
    """A run: data, model, how to train, where to write."""

    command: str  # that started it
    data: str
    splits: Mapping[str, Source]
    model: str  # a name, or what a checkpoint was opened by
    start: Start | None = None  # the opened checkpoint; None: a fresh model by its name
    training: Training
    out: Path
    changes: Mapping[str, object] = field(default_factory=dict)  # of the model's fields
    objective: Objective | None = None  # of one's own, instead of the training's
    workers: int = 0
    device: str | None = None
    tensorboard: bool = False

    def __post_init__(self) -> None:
        """Refuse a model that cannot learn what is asked, before any image is read."""
        if self.start is None and is_checkpoint(self.model):
            object.__setattr__(self, "start", open_start(self.model))
        if not isinstance(self.training.objective, Labels):
            check_suitable(foresee_model(self), self.training.objective)


def foresee_model(task: Task) -> ModelConfig:
    """Say what model a run without labels trains; no weights are made or copied."""
    changes = model_changes(task, task.training, None)
    return parse(task.model, changes) if task.start is None else task.start.configure(**changes)


def open_start(model: AnyModel | None) -> Start | None:
    """Open what a run begins with, once; None for a name of the zoo. Refuses what is neither that nor there."""
    if model is None:
        return None
    if isinstance(model, Model):
        return ModelInMemory(model)
    if not isinstance(model, str) or is_checkpoint(model):
        return open_checkpoint(model)
    check_name(model)
    return None


def check_name(model: str) -> None:
    """Refuse what is neither a checkpoint that is there nor a name of the zoo."""
    if is_checkpoint(model):
        return
    if Path(model).suffix or model.startswith((".", "~", os.sep)):
        raise CheckpointError(f"there is no file {model}. Check the path; names are those of vitrail.names().")
    parse(model)


def is_checkpoint(model: str) -> bool:
    """Tell a file, folder or address from a name of the zoo."""
    addressed = model.startswith(("hf:", "https://", "http://"))
    return addressed or model in boxed() or os.path.exists(os.path.expanduser(model))


def build_model(task: Task, training: Training, classes: tuple[str, ...]) -> Model:
    """Make the model by its name, or from a checkpoint with a new zero head (Section 3.2)."""
    labels = isinstance(training.objective, Labels) and bool(classes)
    changes = model_changes(task, training, len(classes) if labels else None)
    if task.start is None:
        model = create(task.model, seed=training.seed, **changes)
    else:
        model = task.start.model(**changes)
        if isinstance(model.head, CosineHead):  # directions are drawn, and a run has its own
            weight = model.head.directions.weight
            weight.data.copy_(draw(DIRECTIONS, weight.shape, training.seed))
    before = tuple(name for name in model.card.without_names().seen if name not in classes)
    model.card = replace(model.card, class_names=classes if labels else None, seen=before, metrics={})
    return model.train()


def model_changes(task: Task, training: Training, classes: int | None) -> dict[str, Any]:
    """Give what a run changes of the model that is named, or of the checkpoint."""
    changes = dict(task.changes)
    for name in ("dropout", "stochastic_depth"):
        if (value := getattr(training, name)) is not None:
            changes.setdefault(name, value)
    changes.setdefault("head_bias", training.head_bias)
    if training.image_size is not None:
        changes["image_size"] = training.image_size
    changes["classes"] = classes
    known = known_config(task.start, changes)
    if training.margin is not None:
        changes.setdefault("cosine_scale", known.cosine_scale or SCALE if known else SCALE)
        if changes["cosine_scale"] is None:
            raise ConfigError("margin needs a classifier by cosines. Leave model.cosine_scale out, or set margin=none.")
    if known is not None:
        return _for_kind(changes, type(known))
    kind, values = row(task.model)
    if isinstance(training.objective, NextPixels) and kind is ViTConfig:
        changes = {"causal": True, "pooling": "mean", **changes}
    if isinstance(training.objective, Labels) and kind is ViTConfig and training.pre_logits:
        changes.setdefault("pre_logits", values["width"])
    return _for_kind(changes, kind)


def known_config(start: Start | None, changes: Mapping[str, Any]) -> ModelConfig | None:
    """Say what a checkpoint holds, helped by what is said of it; None where a model is made by its name."""
    if start is None:
        return None
    return start.configure(**{name: changes[name] for name in ("image_size", "heads") if name in changes})


def _for_kind(changes: dict[str, Any], kind: type) -> dict[str, Any]:
    """Leave out what a ResNet has none of."""
    if kind is ViTConfig:
        return changes
    for name in ("dropout", "stochastic_depth"):
        if changes.get(name):
            raise ConfigError(f"a BiT has no {name}; got {changes[name]}. Set {name}=0.")
    return {name: value for name, value in changes.items() if name not in ("dropout", "stochastic_depth")}
