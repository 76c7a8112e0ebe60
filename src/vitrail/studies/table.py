"""A study as data: cells, each with its place in a table and what is done; and a rule of what is read off them."""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.studies.reading import Reading
    from vitrail.studies.scales import Scale

Place = Mapping[
    str, str | int | float
]  # what tells a cell from the others, such as {"positions": "learned", "seed": 0}
Numbers = Mapping[str, Any]  # what a cell came to, by name


@dataclass(frozen=True, kw_only=True)
class Images:
    """A set of images that `sets` knows by name, at a size; or so many training images of each of its classes."""

    name: str
    image_size: int
    per_class: int | None = None
    half: Literal["first", "second"] | None = None  # every second class by name, or the others


@dataclass(frozen=True, kw_only=True)
class Network:
    """A model: a name of the zoo, and what is changed of its fields."""

    model: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a model, fresh or from the weights of another cell, and measure it on the test images of its set."""

    network: Network
    images: Images
    recipe: str
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the training
    begins: str | None = None  # the cell whose weights it begins with
    fresh_positions: bool = False  # of those weights, all but the positions, which are drawn anew
    few: Images | None = None  # images to measure frozen features with, few of each class
    shots: int = 10
    patience: int | None = None  # evaluations without a better one, after which the best is taken
    timed: bool = False  # the minutes that it takes are what is measured


@dataclass(frozen=True, kw_only=True)
class Count:
    """Count the parameters and operations of a model; nothing is run."""

    network: Network
    image_size: int = 224


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Time forward passes, at the best of several batch sizes, and predict the largest batch that fits."""

    network: Network
    image_size: int
    memory: float | None = None  # GiB that a training step may take; None: what the device has
    most: int = 1024  # images of a batch
    seconds: float = 0.3  # that is timed, at each batch and in each repeat


@dataclass(frozen=True, kw_only=True)
class Look:
    """Look inside the model of another cell: how far each head attends, layer by layer, and what its filters are."""

    begins: str
    images: Images
    count: int = 128  # images


Work = Train | Count | Speed | Look


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run or measurement of a study."""

    at: Place
    work: Work

    @property
    def name(self) -> str:
        """Its place as the name of a folder."""
        parts = (re.sub(r"[^A-Za-z0-9.+]+", "-", str(value)).strip("-") for value in self.at.values())
        return "_".join(f"seed{part}" if key == "seed" else part for key, part in zip(self.at, parts, strict=True))

    @property
    def begins(self) -> str | None:
        """The cell that must be done before."""
        return None if isinstance(self.work, Count | Speed) else self.work.begins


@dataclass(frozen=True, kw_only=True)
class Done:
    """A cell and what it came to."""

    cell: Cell
    numbers: Numbers


class Results:
    """What all cells came to; picked by their places."""

    def __init__(self, done: Iterable[Done]) -> None:
        self.done = tuple(done)

    def where(self, **at: object) -> "Results":
        """Give the cells that stand there."""
        return Results(each for each in self.done if all(each.cell.at.get(name) == value for name, value in at.items()))

    def values(self, axis: str) -> list[Any]:
        """Give the values of an axis, each once, in the cells' order."""
        return list(dict.fromkeys(each.cell.at[axis] for each in self.done if axis in each.cell.at))

    def by_seed(self, number: str) -> dict[int, float]:
        """Give a number by seed; cells that lack it, since they diverged, are left out."""
        found: dict[int, float] = {}
        for each in self.done:
            seed = int(each.cell.at.get("seed", 0))
            if seed in found:
                raise ConfigError(f"several cells have the seed {seed}: {each.cell.name} is not the only one.")
            if each.numbers.get(number) is not None:
                found[seed] = float(each.numbers[number])
        return found

    def first(self, number: str) -> Any:  # noqa: ANN401
        """Give a number that all seeds share."""
        return next(each.numbers[number] for each in self.done if each.numbers.get(number) is not None)

    def __len__(self) -> int:
        return len(self.done)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table or figure of the paper: its cells at a scale, and what is read off them."""

    name: str
    title: str
    paper: str  # of the paper
    claim: str  # that it tests
    cells: Callable[["Scale"], Sequence[Cell]]  # of one seed
    read: Callable[[Results, "Scale"], "Reading"]
    caveat: str  # what a small scale cannot tell
    seeded: bool = True  # accuracies are compared, so that it runs with several seeds

    def at(self, scale: "Scale", seeds: int) -> list[Cell]:
        """Give all cells at a scale, those of the first seed first."""
        single = list(self.cells(scale))
        if not self.seeded:
            return single
        return [seeded(cell, seed) for seed in range(seeds) for cell in single]


def seeded(cell: Cell, seed: int) -> Cell:
    """Give a cell with a seed, which begins with the cell of the same seed."""
    work = cell.work
    if isinstance(work, Train):
        begins = None if work.begins is None else f"{work.begins}_seed{seed}"
        work = _changed(work, begins=begins, fields={**work.fields, "seed": seed})
    elif isinstance(work, Look):
        work = _changed(work, begins=f"{work.begins}_seed{seed}")
    return Cell(at={**cell.at, "seed": seed}, work=work)


def packed_numbers(values: NDArray[np.floating]) -> dict[str, Any]:
    """Give an array for a picture as few signs of JSON: 256 steps from its least to its largest value."""
    low, high = float(values.min()), float(values.max())
    steps = np.rint((values - low) / max(high - low, 1e-12) * 255).astype(np.uint8)
    return {"shape": list(values.shape), "low": low, "high": high, "bytes": b64encode(steps.tobytes()).decode("ascii")}


def unpacked_numbers(packed: Mapping[str, Any]) -> NDArray[np.float64]:
    """Give an array that `packed_numbers` packed, to a step."""
    steps = np.frombuffer(b64decode(packed["bytes"]), dtype=np.uint8).reshape(packed["shape"])
    return packed["low"] + steps / 255 * (packed["high"] - packed["low"])


def _changed(work: Any, **fields: Any) -> Any:  # noqa: ANN401
    return type(work)(**{**vars(work), **fields})
