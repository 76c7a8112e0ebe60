"""What is asked of a run, read once; and what is left open, chosen from the data and the model, with reasons."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from vitrail.config import encode
from vitrail.config.dense import DenseTask
from vitrail.config.fields import hints
from vitrail.config.given import check_name, read_fields
from vitrail.config.objective import Labels
from vitrail.config.recipe import Training
from vitrail.config.recipes import RECIPES, adjust
from vitrail.config.task import Classify, ImageTask, task_word
from vitrail.config.trackers import check_trackers
from vitrail.data.source import Source
from vitrail.errors import ConfigError
from vitrail.runtime.machine import choose_device, usual_workers
from vitrail.train.gaps import check_uneven
from vitrail.train.objective import Objective, own_objective
from vitrail.train.task import AnyModel, Start, Task

Kind = Literal["pretrain", "finetune", "transfer", "vtab"]


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What is asked of a run; `read_request` makes it."""

    kind: Kind
    data: object
    model: AnyModel | None
    recipe: str | None
    fields: Mapping[str, Any]  # of the training, by their names
    model_fields: Mapping[str, Any]
    head_fields: frozenset[str] = frozenset()  # of a head of pixels or objects, those that are said one by one
    objective: Objective | None = None  # of one's own

    @property
    def learns(self) -> str:
        """The word for what is learned, as it is said or as the recipe has it."""
        usual = RECIPES[self.recipe].training.objective if self.recipe in RECIPES else Labels()
        said = self.fields.get("objective", usual)
        return said if isinstance(said, str) else encode(said)["kind"]

    @property
    def task(self) -> ImageTask:
        """What is asked of labelled images."""
        parts = {leaf for kind in get_args(ImageTask) for leaf in hints(kind)}
        said = {name: value for name, value in self.fields.items() if name.split(".")[0] == "task" or name in parts}
        return adjust(Training(steps=1), said).task

    @property
    def dense_task(self) -> DenseTask | None:
        """What of pixels or objects is learned, as it is said or as the recipe has it; None where it is of images."""
        usual = RECIPES[self.recipe].training if self.recipe in RECIPES else Training(steps=1)
        return (
            usual.dense_task if "task" not in self.fields else adjust(Training(steps=1), {"task": self.task}).dense_task
        )

    @property
    def needs_labels(self) -> bool:
        """Whether the labels of the images are what is learned."""
        return self.objective is None and self.learns == "labels"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A model, how to train it, and why."""

    model: str
    training: Training
    changes: Mapping[str, Any] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()  # to choose from, where the recipe names several


def read_request(
    kind: Kind,
    data: object,
    model: AnyModel | None,
    recipe_name: str | None,
    settings: Sequence[str],
    fields: Mapping[str, Any],
) -> TrainRequest:
    """Read what is asked, `field=value` texts and values alike, each once; fields of the model are model.FIELD."""
    if isinstance(model, str):
        check_name(model)
    own = own_objective(fields.get("objective"))
    given = {name: value for name, value in fields.items() if own is None or value is not own}
    ours, theirs = read_fields(model if isinstance(model, str) else None, recipe_name, settings, given)
    names = [name.strip().removeprefix("model.") for name in (*given, *(text.partition("=")[0] for text in settings))]
    return TrainRequest(
        kind=kind,
        data=data,
        model=model,
        recipe=recipe_name,
        fields=ours,
        model_fields=theirs,
        head_fields=frozenset(name.removeprefix("head") for name in names if re.match(r"head(\.|$)", name)),
        objective=own,
    )


def make_task(
    request: TrainRequest,
    choice: Choice,
    splits: Mapping[str, Source],
    start: Start | None,
    *,
    out: Path,
    workers: int | None = None,
    device: str | None = None,
    track: str | Sequence[str] = (),
    tensorboard: bool = False,
    command: str = "",
) -> Task:
    """Make the run that was asked for, with what was chosen for it."""
    training = adjust(choice.training, request.fields)
    first, last = training.optimizer.learning_rate, training.schedule.final_learning_rate
    if last > first and "final_learning_rate" in map(leaf_of, request.fields):
        raise ConfigError(f"learning_rate={first:g} cannot fall to {last:g}. Set final_learning_rate=0, or less.")
    check_uneven(training, request.objective, splits)
    return Task(
        command=command,
        data=str(request.data) if isinstance(request.data, str | os.PathLike) else "data in memory",
        splits=splits,
        model=choice.model,
        start=start,
        training=training,
        out=out,
        changes={**request.model_fields, **choice.changes},
        objective=request.objective,
        workers=usual_workers(gpu=choose_device(device).type == "cuda") if workers is None else workers,
        device=device,
        track=check_trackers(track, tensorboard=tensorboard),
    )


def refuse_fields(request: TrainRequest, reasons: Mapping[str, str]) -> None:
    """Refuse fields that the caller itself decides, each with what to do instead; and learning without labels."""
    for name in request.fields:
        if (reason := reasons.get(leaf_of(name))) is not None:
            raise ConfigError(f"{leaf_of(name)} is not taken here: {reason}")
    if not isinstance(request.task, Classify):
        raise ConfigError(f"classes are what is measured here; got task={task_word(request.task)}. Set task=classify.")
    if (learned := request.learns) != "labels":
        raise ConfigError(
            f"accuracy is measured here, so labels are what is learned; got objective {learned}. "
            f"Pre-train with objective={learned}, and give that run as the model."
        )


def leaf_of(name: str) -> str:
    """Give the last part of a field's name."""
    return name.rpartition(".")[2]
