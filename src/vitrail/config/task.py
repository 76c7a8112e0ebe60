"""What is asked of labelled images: one class, several labels, numbers, ordered classes; or of pixels and objects."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from vitrail.config.check import KINDS, Checked, needs, one_of, positive, several, text
from vitrail.config.words import VALUES
from vitrail.errors import ConfigError


def _names(name: str, value: object) -> tuple[str, ...]:
    """Read names of columns or classes, each once."""
    found = several(name, [value] if isinstance(value, str) else value, "names", text, empty=True)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, kw_only=True)
class Classify(Checked, word="classify"):
    """One class an image."""


@dataclass(frozen=True, kw_only=True)
class MultiLabel(Checked, word="multilabel"):
    """Several labels an image, each there or not."""

    columns: tuple[str, ...] = needs(_names, ())  # of a table, one a label, with 0 and 1; none: as the table says
    allow_empty: bool = False  # images without any label are examples of none; else they are refused


@dataclass(frozen=True, kw_only=True)
class Regression(Checked, word="regression"):
    """One number an image, or several; the model is trained on them less their mean, by their deviation."""

    columns: tuple[str, ...] = needs(_names, ())  # of a table, one a number; none: as the table says
    delta: float = needs(positive, 1.0)  # deviations from which on loss=huber grows linearly


@dataclass(frozen=True, kw_only=True)
class Ordinal(Checked, word="ordinal"):
    """One class an image, where classes have an order: a near one is less wrong than a far one."""

    order: tuple[str, ...] = needs(_names, ())  # of the classes, lowest first; none: by their numbers


@dataclass(frozen=True, kw_only=True)
class Segment(Checked, word="segment"):
    """The class of every pixel."""


@dataclass(frozen=True, kw_only=True)
class Detect(Checked, word="detect"):
    """The objects of an image: a class and a box each."""


LABEL_FIELDS = {"margin": None, "held_out": 0.0, "label_smoothing": 0.0, "class_weights": None}
LABEL_FIELDS |= {"sampling": "shuffled", "logit_adjustment": 0.0, "focal": 0.0}
# The fields of these that a task has too, and its losses, the usual one first.
FITTING: dict[type, tuple[str, ...]] = {MultiLabel: ("focal",), Ordinal: ("class_weights", "sampling"), Regression: ()}
LOSSES: dict[type, tuple[str, ...]] = {
    MultiLabel: ("sigmoid",),
    Ordinal: ("softmax",),
    Regression: ("squared", "huber"),
}


ImageTask = Classify | MultiLabel | Regression | Ordinal | Segment | Detect


def task_word(task: ImageTask) -> str:
    """Give the word of a task."""
    return next(word for word, kind in KINDS.items() if kind is type(task))


def read_image_task(
    word: object, *, columns: object = (), order: object = (), allow_empty: bool = False
) -> ImageTask | None:
    """Read a task by its word, with what is said beside it; None where no word is. Refuses an unknown one."""
    if word is None:
        if columns or order or allow_empty:
            raise ConfigError("columns, order and allow_empty are of a task. Say it: task=multilabel, or another.")
        return None
    words = {name: kind for name, kind in KINDS.items() if kind in get_args(ImageTask)}
    meant = VALUES["task"].get(str(word).lower(), word)
    kind = words[one_of("task", meant, tuple(words))]
    read = {name: _split(value) for name, value in (("columns", columns), ("order", order)) if value}
    read |= {"allow_empty": True} if allow_empty else {}
    known = {item.name for item in fields(kind)}
    if unknown := [name for name in read if name not in known]:
        raise ConfigError(f"{unknown[0]} is not of task={task_word(kind())}. Leave it out.")
    return kind(**read)


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def check_task(task: ImageTask, given: Mapping[str, Any]) -> str:
    """Refuse what is of one class alone beside another task; give the loss, where one of the task's is said, else its.

    Softmax and sigmoid are losses of recipes for one class: beside another task they say nothing.
    """
    loss, word = given["loss"], task_word(task)
    if isinstance(task, Segment | Detect):
        return loss
    allowed = LOSSES.get(type(task), ("softmax", "sigmoid"))
    if loss not in allowed:
        if isinstance(task, Classify) or loss not in ("softmax", "sigmoid"):
            raise ConfigError(f"loss={loss} is not of task={word}. Set loss={' or '.join(allowed)}.")
        loss = allowed[0]
    if isinstance(task, Classify):
        return loss
    fitting = FITTING[type(task)]
    if said := [name for name, usual in LABEL_FIELDS.items() if name not in fitting and given[name] != usual]:
        cure = " and ".join(f"{name}={'none' if LABEL_FIELDS[name] is None else LABEL_FIELDS[name]}" for name in said)
        are = "is" if len(said) == 1 else "are"
        raise ConfigError(f"{' and '.join(said)} {are} of one class an image, and the task is {word}. Set {cure}.")
    return loss
