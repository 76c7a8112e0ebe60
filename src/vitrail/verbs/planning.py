"""What a plan is asked of, read once: the model, how it is trained, for how long, and where."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, get_args

import torch

from vitrail.checkpoint.load import of_run, open_checkpoint
from vitrail.config import ModelConfig, as_size, name_of, override, parse, whole
from vitrail.config.check import LARGEST, one_of, positive
from vitrail.config.devices import GIB, DeviceRow, find_row
from vitrail.config.given import is_checkpoint
from vitrail.config.recipe import SGD, Adam, Muon, Training
from vitrail.config.recipes import adjust, data_images, recipe as recipe_row
from vitrail.errors import ConfigError
from vitrail.models import Model
from vitrail.ops.cost import counts
from vitrail.ops.cost.place import Pace, Place, table_pace
from vitrail.runtime.machine import free_memory
from vitrail.runtime.memory import resident
from vitrail.runtime.step_memory import networks, step_bytes, step_of

MOST_IMAGES = 10**15
BATCH = 64  # images of a step, where neither they nor a recipe are said
CLASSES = 1000  # of a run by a recipe, where they are not said
AnyModel = str | os.PathLike[str] | ModelConfig | Model
OPTIMIZERS = {"adam": Adam(), "sgd": SGD(), "muon": Muon()}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A model, its training, and the data's images where they are known."""

    title: str
    model: AnyModel
    config: ModelConfig
    training: Training
    precision: counts.Precision
    device: counts.Device
    images: int | None
    has_length: bool  # the training's steps or epochs were said
    fields: Mapping[str, object]

    @property
    def step(self) -> counts.Step:
        """A training step of the whole batch."""
        return step_of(self.config, self.training, self.training.batch_size, self.device, self.precision)

    @property
    def steps(self) -> int | None:
        """Steps of the run."""
        if not self.has_length:
            return None
        if self.training.steps is not None:
            return self.training.steps
        assert self.images is not None
        return int(-(-self.images * (self.training.epochs or 0) // self.training.batch_size))

    @cached_property
    def networks(self) -> tuple[ModelConfig, ...]:
        """What a step runs."""
        return networks(self.config, self.training.objective)

    def needed(self, batch: int) -> int:
        """Predict the bytes that a training step of so many images at once is seen to hold."""
        needed = step_bytes(self.config, self.training, batch, self.device, self.precision)
        return resident(needed, self.device, checkpointing=self.config.checkpointing)

    def place(self, name: str, memory: int, **known: Any) -> Place:  # noqa: ANN401
        """Give a place of so much memory for this training."""
        infer = replace(self.step, kind="infer")
        return Place(
            name=name,
            memory=memory,
            batch=self.training.batch_size,
            micro_batch=self.training.micro_batch,
            training=self.needed,
            inference=lambda batch: counts.peak_memory(self.config, replace(infer, batch=batch)).total,
            steps=self.steps,
            **known,
        )

    def from_table(self, row: DeviceRow, utilization: float | None) -> Place:
        """Plan for a device of the table."""
        pace = table_pace(
            row,
            self.precision,
            self.flops,
            weights=counts.parameters(self.config).total,
            optimizer=self.step.optimizer,
            utilization=utilization,
        )
        return self.place(f"on {row.name}", row.memory * GIB, pace=pace, watts=row.watts)

    @property
    def flops(self) -> int:
        """Operations of one image's training step."""
        return sum(map(counts.training_flops, self.networks))

    def probed(self) -> tuple["Asked", Place]:
        """Take a few steps here and plan by them; precision and device are then those that were used."""
        from vitrail.train.probe import probe
        from vitrail.train.task import open_start

        if isinstance(self.model, ModelConfig):
            raise ConfigError("a probe builds a model. Give its name, a checkpoint, or a model in memory.")
        start = open_start(self.model)
        fields = {name: value for name, value in self.fields.items() if name != "classes"}
        memory = free_memory(torch.device(self.device))
        precision = "auto" if self.training.precision == "auto" else self.precision
        found = probe(
            self.title,
            replace(self.training, precision=precision),
            self.device,
            classes=self.config.classes or CLASSES,
            start=start,
            changes={**fields, "image_size": self.config.image_size},
        )
        gpu = torch.cuda.get_device_name(found.device) if found.device.type == "cuda" else ""
        row = find_row(gpu)
        asked = replace(self, precision=found.precision)
        pace = Pace(
            images_per_second=found.images / found.seconds,
            source=f"measured here: {found.timed} steps of {found.images} images, {found.seconds:.3g} s each in the "
            f"middle, {found.spread[0]:.3g} to {found.spread[1]:.3g}",
            flops=self.flops,
            peak=None if row is None else row.peak(found.precision),
        )
        place = asked.place(
            f"here, {gpu or 'the CPU'}",
            memory,
            pace=pace,
            measured=found.memory,
            watts=None if row is None else row.watts,
        )
        return asked, replace(place, micro_batch=found.micro_batch)


def read_asked(
    model: AnyModel,
    *,
    recipe: str | None,
    image_size: int | tuple[int, int] | None,
    batch_size: int | None,
    images: float | None,
    epochs: float | None,
    steps: int | None,
    precision: str | None,
    optimizer: str | None,
    device: str,
    fields: Mapping[str, object],
) -> Asked:
    """Read what is asked; a recipe says what is left open, and its model has what it changes of one."""
    count = None if images is None else whole("images", _rounded(images), most=MOST_IMAGES)
    for name, value, kind in (
        ("precision", precision, counts.Precision),
        ("optimizer", optimizer, counts.Optimizer),
        ("device", device, counts.Device),
    ):
        if value is not None:
            one_of(name, value, get_args(kind))
    if epochs is not None and positive("epochs", epochs) > LARGEST:
        raise ConfigError(f"epochs must be at most {LARGEST}; got {epochs}.")
    if steps is not None and epochs is not None:
        raise ConfigError("a run's length is given twice: steps and epochs. Give one.")
    changes = {**fields} if image_size is None else {**fields, "image_size": as_size(image_size)}
    model = of_run(model)
    length = {name: value for name, value in (("epochs", epochs), ("steps", steps)) if value is not None}
    batch = {} if batch_size is None else {"batch_size": whole("batch_size", batch_size)}
    if recipe is None:
        if (epochs is None) != (count is None) and steps is None:
            raise ConfigError("a run needs both images and epochs; got one of them. Or give steps.")
        plain = Training(optimizer=OPTIMIZERS[optimizer or "adam"], batch_size=BATCH, steps=1)
        training = adjust(plain, {**batch, **length})
        title, config = title_and_config(model, changes)
        check_optimizer(optimizer, config)
        has_length = bool(length)
    else:
        if optimizer is not None:
            raise ConfigError(f"the recipe {recipe} says the optimizer. Leave optimizer out, or the recipe.")
        count = count or data_images(recipe)
        training = adjust(recipe_row(recipe, examples=count).training, {**batch, **length})
        if training.epochs is not None and count is None:
            raise ConfigError(
                f"the recipe {recipe} trains for {training.epochs:g} epochs. Say how many images there are: images=..."
            )
        title, config = _by_recipe(model, training, changes)
        has_length = True
    if precision is None:
        precision = "float32" if training.precision == "float32" else "bfloat16"
    else:
        training = adjust(training, {"precision": precision})
    return Asked(
        title=title,
        model=model,
        config=config,
        training=training,
        precision=precision,  # pyright: ignore[reportArgumentType]
        device=device,  # pyright: ignore[reportArgumentType]
        images=count,
        has_length=has_length,
        fields=dict(fields),
    )


def check_optimizer(optimizer: str | None, config: ModelConfig) -> None:
    """Refuse Muon for a model without blocks, as training does."""
    if optimizer == "muon" and not counts.block_matrices(config):
        raise ConfigError("optimizer=muon is of the matrices inside a Vision Transformer's blocks. Take adam or sgd.")


def title_and_config(model: AnyModel, changes: Mapping[str, object]) -> tuple[str, ModelConfig]:
    """Give the name and the configuration of whatever names a model, with these fields changed."""
    changes = dict(changes)
    if isinstance(model, os.PathLike) or (isinstance(model, str) and is_checkpoint(model)):
        title = os.fspath(model)
        with open_checkpoint(title) as checkpoint:
            hints = {name: changes.pop(name) for name in ("grid", "heads", "names") if name in changes}
            return title, override(checkpoint.configure(**hints), changes)
    if isinstance(model, str):
        return model, parse(model, changes)
    config = override(model.config if isinstance(model, Model) else model, changes)
    return name_of(config) or type(config).__name__, config


def _by_recipe(model: AnyModel, training: Training, changes: Mapping[str, object]) -> tuple[str, ModelConfig]:
    """Give the model that a recipe trains: of its image size, with its dropout and the layer before the head."""
    from vitrail.train.probe import drawn_source
    from vitrail.train.task import Task, foresee_model, open_start

    if isinstance(model, ModelConfig):
        raise ConfigError("a recipe is of a model by its name, a checkpoint, or a model in memory. Leave recipe out.")
    changes = dict(changes)
    classes = whole("classes", changes.pop("classes", CLASSES))
    if "image_size" in changes:
        training = adjust(training, {"image_size": changes.pop("image_size")})
    title = name_of(model.config) or "a model in memory" if isinstance(model, Model) else os.fspath(model)
    task = Task(
        command="",
        data="",
        splits={"train": drawn_source((1, 1), 3, classes)},
        model=title,
        start=open_start(model),
        training=training,
        out=Path(),
        changes=changes,
    )
    return title, foresee_model(task)


def _rounded(value: float) -> float:
    """Read 1.28e6 as the whole number that it is; a fraction stays one, and is refused."""
    return int(value) if isfinite(value) and value == int(value) else value
