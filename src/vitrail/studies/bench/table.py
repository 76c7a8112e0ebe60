"""A bench as data: cases, each with the ways that are measured in turns; and what a way came to."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vitrail.files import short_hash

Library = Literal["vitrail", "timm", "transformers", "torchvision"]
Precision = Literal["float32", "bfloat16", "float8", "int8"]
How = Literal["fast", "eager", "compiled", "graph", "compiled graph"]
Unit = Literal["images/s", "ms", "ms an image", "s", "MiB"]
Better = Literal["more", "less", "same"]
BETTER: Mapping[Unit, Better] = {
    "images/s": "more",
    "ms": "less",
    "ms an image": "less",
    "s": "less",
    "MiB": "same",
}
Numbers = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model, and the batch that goes through it."""

    model: str
    batch: int
    image_size: int = 224
    fields: Mapping[str, Any] = field(default_factory=dict)  # that are changed of the model


@dataclass(frozen=True, kw_only=True)
class Forward:
    """Forward passes: by `vitrail.optimize` where they are fast, else of the plain model of a library."""

    shape: Shape
    precision: Precision
    by: Library = "vitrail"
    how: How = "fast"


@dataclass(frozen=True, kw_only=True)
class TrainStep:
    """Training steps: the training loop's own, and of other libraries forward, loss, backward and update alone."""

    shape: Shape
    by: Library = "vitrail"
    compiled: bool = True  # where there is a GPU


@dataclass(frozen=True, kw_only=True)
class TrainLoop:
    """Whole runs of `vitrail.pretrain` on packed images, by the rates of the second half of their logs."""

    shape: Shape
    steps: int
    images: int
    recipe: str = "small"
    training: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Products:
    """The four products of matrices of every block alone; for training each with its two gradients."""

    shape: Shape
    precision: Precision
    training: bool = False


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """The most that a step holds, predicted from the configuration or measured; training is eager."""

    shape: Shape
    kind: Literal["train", "infer"]
    predicted: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"
    optimizer: Literal["adam", "sgd"] = "adam"


@dataclass(frozen=True, kw_only=True)
class Decode:
    """Decode photographs, crop at random to 224, flip and scale: CPU time on one core."""

    height: int
    width: int
    count: int
    by: Literal["Pillow", "vitrail", "simplejpeg"]


@dataclass(frozen=True, kw_only=True)
class Load:
    """Load a file of weights in a process of its own."""

    model: str
    layout: Literal["vitrail", "timm", "google", "hf"]
    by: Library = "vitrail"


Work = Forward | TrainStep | TrainLoop | Products | StepMemory | Decode | Load


@dataclass(frozen=True, kw_only=True)
class Way:
    """One of the things that a case compares."""

    name: str
    work: Work
    ceiling: str | None = None  # the way of the case that none like this can pass
    series: str = ""  # the line of a plot that it is on,
    at: float | None = None  # and where
    process: str = ""  # ways of a case that share one; else each has its own on a GPU


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row: ways that are measured in turns, so that all see the same machine."""

    name: str
    group: str
    title: str
    unit: Unit
    base: str  # the way that ratios are of
    ways: Sequence[Way]
    repeats: int | None = None  # where they are not the usual ones
    seconds: float | None = None
    in_all: bool = True  # measured by `all`, or by the name of its group or row alone
    x_label: str = ""  # of the plot of its series
    log_x: bool = True

    @property
    def digest(self) -> str:
        """Give a short text that changes with what the case measures."""
        ways = [(way.name, way.work, way.ceiling, way.at) for way in self.ways]
        return short_hash(repr((self.unit, self.base, self.repeats, self.seconds, ways))).hex()


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A way that is ready: it measures once whenever it is asked to."""

    once: Callable[[], Mapping[str, float]]  # `value`, in the case's unit, and `memory`, in bytes, where it is known
    about: Numbers = field(default_factory=dict)  # what was found on the way: memory, engine
    close: Callable[[], object] = lambda: None


@dataclass(kw_only=True)
class Found:
    """What a way came to: a value for each repeat, or why there is none."""

    values: list[float] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    gap: str | None = None

    def add(self, numbers: Mapping[str, float]) -> None:
        """Take a repeat."""
        self.values.append(numbers["value"])
        if "memory" in numbers:
            self.about["memory"] = max(self.about.get("memory", 0), numbers["memory"])


def row_document(case: Case, found: Mapping[str, Found], seconds: float) -> dict[str, Any]:
    """Give what a case came to as plain values; everything that is shown is read off these."""
    ways = []
    for way in case.ways:
        each, said = found[way.name], {"name": way.name, "series": way.series, "at": way.at, "ceiling": way.ceiling}
        if each.gap is not None or not each.values:
            ways.append({**said, "gap": each.gap or "it was not measured"})
            continue
        ratio = ratios(case, each, found[case.base])
        share = None if way.ceiling is None else shares(case, each, found[way.ceiling])
        ways.append({**said, **spread(each.values), "ratio": ratio, "share": share, "about": each.about})
    said = {"name": case.name, "group": case.group, "title": case.title, "unit": case.unit, "base": case.base}
    plot = {"x_label": case.x_label, "log_x": case.log_x}
    return {**said, **plot, "digest": case.digest, "seconds": round(seconds, 1), "ways": ways}


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Give the median of repeats, the least and the most, and all of them."""
    return {
        "median": statistics.median(values),
        "low": min(values),
        "high": max(values),
        "values": [float(f"{value:.6g}") for value in values],
    }


def ratios(case: Case, one: Found, base: Found) -> dict[str, float] | None:
    """Give how many times as good a way is as the base, turn by turn; of memory, how many times as much."""
    if not base.values:
        return None
    pairs = list(zip(one.values, base.values, strict=False))
    return _middle([b / a if BETTER[case.unit] == "less" else a / b for a, b in pairs])


def shares(case: Case, one: Found, ceiling: Found) -> float | None:
    """Give the share of its ceiling that a way reaches."""
    found = ratios(case, one, ceiling)
    return None if found is None else found["median"]


def _middle(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}
