"""What a model says of images: objects that print well, rows for tables, and files."""

import csv
import io
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitrail.config.check import whole
from vitrail.errors import ConfigError, one_line
from vitrail.files import check_writable, replacing, write_bytes
from vitrail.files.tables import write_table
from vitrail.ops.metrics import bounded, first_classes, log_probabilities
from vitrail.runtime.reporter import cell_len, fit

WIDEST = (0.4, 0.3)  # shares of a terminal's width that names and labels take at most
LEAST, MOST = 40, 1 << 14  # columns of a table: of a narrow terminal, and of none, which cuts no path
SHOWN = 10  # images that a printed object shows
FEATURES = (".npy", ".parquet")  # kinds of files that hold features


class Failed(NamedTuple):
    """An image without an answer, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a classifier says of one image."""

    name: str
    logits: Float[Tensor, " K"]
    class_names: Sequence[str]
    temperature: float = 1.0  # of the model's card

    @property
    def probabilities(self) -> Float[Tensor, " K"]:
        """The probability of every class."""
        return log_probabilities(self.logits[None], self.temperature).exp()[0]

    @property
    def label(self) -> str:
        """The name of the most probable class."""
        return self.top(1)[0][0]

    @property
    def probability(self) -> float:
        """The probability of that class."""
        return self.top(1)[0][1]

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """Give the most probable classes with their probabilities, best first; all where there are fewer."""
        best = first_classes(bounded(self.logits[None]), whole("count", count))[0]
        shares = self.probabilities
        return [(self.class_names[int(number)], float(shares[number])) for number in best]

    def __str__(self) -> str:
        return f"{one_line(self.name)}: {one_line(self.label)} {self.probability:.1%}"

    def __repr__(self) -> str:
        return f"Prediction(name={self.name!r}, label={self.label!r}, probability={self.probability:.4f})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Predictions(Sequence[Prediction]):
    """What a classifier says of every image that could be read, in the order given; the others are in `failed`.

    It holds a float for each image and class: 4 MB for a thousand images and a thousand classes.
    """

    names: Sequence[str]
    logits: Float[Tensor, "N K"]
    class_names: Sequence[str]
    failed: Sequence[Failed] = ()
    features: Float[Tensor, "N D"] | None = None  # where they were asked for
    classes_shown: int = 5  # of each image, in rows and tables
    temperature: float = 1.0  # of the model's card, by which logits are divided before they are probabilities
    setting: Mapping[str, Any] = field(default_factory=dict)  # how images went through the model, where not as ever
    computed: Mapping[str, Any] = field(default_factory=dict)  # engine, precision and device

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prediction]: ...
    def __getitem__(self, index: int | slice) -> Prediction | list[Prediction]:
        """Give the prediction of one image, or those of a slice."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        return self.one(index)

    def one(self, index: int) -> Prediction:
        """Give the prediction of one image."""
        return Prediction(self.names[index], self.logits[index], self.class_names, self.temperature)

    def columns(self) -> dict[str, list[Any]]:
        """Give the first answers as columns."""
        answers = [each.top(1)[0] for each in self]
        return {"label": [label for label, _ in answers], "probability": [share for _, share in answers]}

    def rows(self) -> list[dict[str, Any]]:
        """Give a flat row for each image, as pandas.DataFrame takes them: name, label, probability, label_2, ..."""
        heads = self._heads()
        found = ((each.name, *(part for pair in each.top(self.classes_shown) for part in pair)) for each in self)
        return [dict(zip(heads, row, strict=True)) for row in found]

    def csv(self) -> bytes:
        """Give the rows as CSV, in UTF-8, below a line of heads."""
        text = io.StringIO()
        lines = csv.DictWriter(text, self._heads(), lineterminator="\n")
        lines.writeheader()
        for row in self.rows():
            lines.writerow({head: f"{cell:.6g}" if isinstance(cell, float) else cell for head, cell in row.items()})
        return text.getvalue().encode("utf-8", "surrogateescape")

    def save_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the rows as a CSV file, whole or not at all."""
        write_bytes(path, self.csv())

    def document(self) -> dict[str, Any]:
        """Give the answers and the failures as plain values, for JSON."""
        tops = (
            [{"label": label, "probability": share} for label, share in each.top(self.classes_shown)] for each in self
        )
        answers = [{"name": name, "top": top} for name, top in zip(self.names, tops, strict=True)]
        failed = [each._asdict() for each in self.failed]
        return {**self.setting, "predictions": answers, "failed": failed, "computed": dict(self.computed)}

    def table(self, shown: int | None = None) -> Iterator[str]:
        """Give a table for people: a line for each image, its label and the others; on a terminal in its width."""
        width = max(shutil.get_terminal_size().columns, LEAST) if sys.stdout.isatty() else MOST
        rows = [(each.name, each.top(self.classes_shown)) for each in self[:shown]]
        if len(rows) == 1:
            (name, answers), *_ = rows
            yield fit(name, width).rstrip()
            yield from (f"{share:7.1%}  {fit(label, width - 9)}".rstrip() for label, share in answers)
            return
        most = int(WIDEST[0] * width), int(WIDEST[1] * width)
        first = min(max((cell_len(one_line(name)) for name, _ in rows), default=0), most[0])
        second = min(max((cell_len(one_line(top[0][0])) for _, top in rows), default=0), most[1])
        for name, ((label, share), *others) in rows:
            line = f"{fit(name, first)}  {fit(label, second)} {share:6.1%}"
            for other, share in others:
                more = f"  {fit(other, most[1]).rstrip()} {share:.1%}"
                if cell_len(line + more) > width:  # goes on below its label
                    yield line
                    line = " " * first
                line += more
            yield line

    def __repr__(self) -> str:
        lines = [*self.table(SHOWN)]
        if len(self) > SHOWN:
            lines.append(f"... {len(self):,} images in all")
        lines += [f"failed: {one_line(name)}: {one_line(reason)}" for name, reason in self.failed[:SHOWN]]
        if len(self.failed) > SHOWN:
            lines.append(f"... {len(self.failed):,} failed in all")
        return "\n".join(lines)

    def _heads(self) -> list[str]:
        places = ["", *(f"_{place}" for place in range(2, min(self.classes_shown, len(self.class_names)) + 1))]
        return ["name", *(f"{what}{place}" for place in places for what in ("label", "probability"))]


@dataclass(frozen=True, kw_only=True, eq=False)
class Embeddings:
    """The features of every image that could be read, in the order given; the others are in `failed`."""

    names: Sequence[str]
    features: Float[Tensor, "N D"]
    failed: Sequence[Failed] = ()


def save_features(path: str | os.PathLike[str], found: Predictions | Embeddings) -> None:
    """Write features, whole or not at all: .npy holds an array N D; .parquet has names too, and labels if there are."""
    check_file(path, FEATURES)
    if found.features is None:
        raise ConfigError("the predictions hold no features. Ask for them: predict(..., features=True).")
    array = found.features.numpy()
    if Path(path).suffix.lower() == ".npy":
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, array)
        return
    columns: dict[str, Any] = {"name": [_valid(name) for name in found.names]}
    if isinstance(found, Predictions):
        said = found.columns().items()
        columns |= {head: [_valid(cell) if isinstance(cell, str) else cell for cell in cells] for head, cells in said}
    write_table(path, {**columns, "features": array})


def check_file(path: str | os.PathLike[str], suffixes: tuple[str, ...] = ()) -> None:
    """Refuse a file that cannot be written, or has none of these suffixes, before anything is computed."""
    if suffixes and Path(path).suffix.lower() not in suffixes:
        raise ConfigError(f"expected a file that ends in {' or '.join(suffixes)}; got {os.fspath(path)!r}.")
    check_writable(path)


def _valid(text: str) -> str:
    """Give a text that UTF-8 can hold: names of files may hold any bytes."""
    return text.encode("utf-8", "backslashreplace").decode()
