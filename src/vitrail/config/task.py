"""What is asked of labelled images: one class, several labels, numbers, ordered classes; or of pixels and objects."""

from dataclasses import dataclass

from vitrail.config.check import Checked, needs, positive, several, text


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


ImageTask = Classify | MultiLabel | Regression | Ordinal | Segment | Detect
