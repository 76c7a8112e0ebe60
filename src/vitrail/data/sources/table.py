"""A table of images: a CSV or JSONL file that names files and their labels."""

import copy
import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.source import Names, Source, is_name
from vitrail.data.sources.folder import SPLITS, read_file
from vitrail.errors import WITHOUT_LABELS, DataError
from vitrail.files import fingerprint_of, open_regular, parse_json

# The first of these that a table has is taken.
PATHS = ("path", "file", "filename", "image", "file_name")
LABELS = ("label", "class", "target", "category")
SPLIT = "split"
LONGEST_LINE = 1 << 20  # signs
MANY = 100_000  # rows, of which some must share a label
DELIMITERS = (",", ";", "\t")
LINES = {".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".tsv": "csv", ".txt": "csv"}


class Row(NamedTuple):
    """One image of a table, its texts as they stand there."""

    line: int
    path: str
    label: str  # empty: none
    split: str | None


class TableSource(Source):
    """The images that a table names, in its order; paths are relative to the folder of the table, or absolute."""

    def __init__(self, path: str | os.PathLike[str], *, unlabeled: bool = False) -> None:
        self.path = Path(path)
        rows = _gathered(self.path, unlabeled=unlabeled)
        if not rows:
            raise DataError(f"{path} names no image; expected a row for each, with its path and its label.")
        without = [row for row in rows if row.split is None]  # where none has a split, there are none
        if 0 < len(without) < len(rows):
            raise DataError(
                f"{path}, line {without[0].line}: the split is empty, in {len(without):,} of {len(rows):,} rows; "
                f"expected one of {', '.join(SPLITS)} in each, or in none. Fill it in, or delete the row."
            )
        self.root = self.path.parent
        self.class_names = _class_names({row.label for row in rows if row.label})
        numbers = {"": -1} | {name: number for number, name in enumerate(self.class_names)}
        self._names = Names([row.path for row in rows])
        self._labels = np.array([numbers[row.label] for row in rows], dtype=np.int64)
        self._splits = np.array([row.split or "all" for row in rows])

    @property
    def fingerprint(self) -> str:
        """A short text that changes with the paths, their order, the labels and the classes."""
        return fingerprint_of("\0".join(map(self.name, range(len(self)))), self._labels, "\0".join(self.class_names))

    def read(self, index: int) -> bytes:
        """Give the bytes of a file; what cannot be read is an `ImageError`."""
        return read_file(os.path.normpath(os.path.join(self.root, self._names[index])))

    def name(self, index: int) -> str:
        """Give the path of an image as the table has it."""
        return self._names[index]

    def splits(self) -> dict[str, "TableSource"]:
        """Part the rows by their split, with one list of classes; all of them where the table has no splits."""
        found = [split for split in ("train", "val", "test", "all") if split in self._splits]
        return {split: self._part(np.flatnonzero(self._splits == split)) for split in found}

    def _part(self, rows: NDArray[np.intp]) -> "TableSource":
        part = copy.copy(self)
        part._names = Names([self._names[row] for row in rows.tolist()])
        part._labels, part._splits = self._labels[rows], self._splits[rows]
        return part


def table_splits(path: str | os.PathLike[str], *, unlabeled: bool = False) -> dict[str, TableSource]:
    """Open the splits of a table (train, val, test), or all of it where its column `split` is empty or not there."""
    return TableSource(path, unlabeled=unlabeled).splits()


def _gathered(path: Path, *, unlabeled: bool) -> list[Row]:
    """Read all rows; a table whose labels are no classes is refused before all of it is read."""
    rows: list[Row] = []
    for row in _rows(path, unlabeled=unlabeled):
        rows.append(row)
        if len(rows) == MANY and len({row.label for row in rows}) > 0.9 * MANY:
            raise DataError(
                f"{path}: nearly every one of {MANY:,} images has a label of its own, so these are no classes. "
                "Choose another column for the label."
            )
    return rows


def _class_names(labels: set[str]) -> tuple[str, ...]:
    """Sort labels as numbers where all of them are, and as texts otherwise."""
    if all(label.isascii() and label.isdigit() and len(label) <= 18 for label in labels):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def _rows(path: Path, *, unlabeled: bool) -> Iterator[Row]:
    kind = LINES.get(path.suffix.lower())
    if kind is None:
        raise DataError(f"expected a table that ends in {', '.join(LINES)}; got {path.name}. Rename or convert it.")
    try:
        read = _json_rows if kind == "json" else _csv_rows
        for row in read(path, unlabeled=unlabeled):
            yield _checked(path, row, unlabeled=unlabeled)
    except OSError as error:
        raise DataError(f"cannot read the table {path}: {error.strerror or error}. Check the path.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"the table {path} must be text in UTF-8; {error.reason}. Save it as UTF-8.") from error


def _checked(path: Path, row: Row, *, unlabeled: bool) -> Row:
    where = f"{path}, line {row.line}"
    if not row.path or not (row.label or unlabeled):
        raise DataError(f"{where}: expected a path and a label; got {row.path!r} and {row.label!r}. Fill in both.")
    if not is_name(row.path) or not is_name(row.label):
        raise DataError(f"{where}: expected a path and a label of plain text; got {row.path!r} and {row.label!r}.")
    if leaves_folder(row.path):
        raise DataError(
            f"{where}: {row.path!r} leaves the folder of the table. Move the table up, or give an absolute path."
        )
    if not (split := (row.split or "").strip().lower()):
        return row._replace(split=None)
    if split not in SPLITS:
        raise DataError(f"{where}: the split must be one of {', '.join(SPLITS)}; got {row.split!r}.")
    return row._replace(split=SPLITS[split])


def leaves_folder(path: str) -> bool:
    """Tell a path that leads out of the folder that it is relative to."""
    return not os.path.isabs(path) and os.path.normpath(path).split(os.sep)[0] == os.pardir


def lines_of(path: Path) -> Iterator[str]:
    """Give the lines of a table, with their ends; one that has no end is refused."""
    with open_regular(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        while line := text.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise DataError(f"{path}: expected lines of less than {LONGEST_LINE:,} signs. Is it a table?")
            yield line


def cells_of(line: str, delimiter: str) -> int:
    """Count the cells of a line."""
    try:
        return len(next(csv.reader([line], delimiter=delimiter), []))
    except csv.Error:  # a cell without an end, which is refused when the table is read
        return 0


def _csv_rows(path: Path, *, unlabeled: bool) -> Iterator[Row]:
    start = next((line for line in lines_of(path) if line.strip()), "")
    delimiter = max(DELIMITERS, key=lambda mark: cells_of(start, mark))
    reader = csv.reader(lines_of(path), delimiter=delimiter, strict=True)
    header: list[str] = []
    columns: tuple[int, int | None, int | None] = (0, None, None)
    try:
        for cells in reader:
            names = [cell.strip().lower() for cell in cells]
            if not any(names) or names == header:  # a blank line, or tables put one after the other
                continue
            if not header:
                header = names
                columns = _columns(path, header, unlabeled=unlabeled)
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: expected {len(header)} cells as in the header, "
                    f"got {len(cells)}. Put texts that contain {delimiter!r} into quotes."
                )
            place, label, split = (None if column is None else cells[column].strip() for column in columns)
            yield Row(reader.line_num, place or "", label or "", split)
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}. Check the quotes.") from error
    if not header:
        raise DataError(f"{path} is empty; expected a header with the columns path and label.")


def _columns(path: Path, header: list[str], *, unlabeled: bool) -> tuple[int, int | None, int | None]:
    """Find the columns of the path, the label and the split in a header."""
    place = _column(path, header, "path", PATHS, "Rename a column.")
    has_label = not unlabeled or {*header} & {*LABELS}
    cure = f"Rename a column; several labels are task=multilabel, numbers task=regression; {WITHOUT_LABELS}"
    label = _column(path, header, "label", LABELS, cure) if has_label else None
    return place, label, _column(path, header, SPLIT, (SPLIT,), "") if SPLIT in header else None


def _column(path: Path, header: list[str], what: str, names: tuple[str, ...], cure: str) -> int:
    name = next((name for name in names if name in header), None)
    if name is None:
        raise DataError(
            f"{path}: the header must have a column for the {what}, one of {', '.join(names)}; it has "
            f"{', '.join(map(repr, header))}. {cure}"
        )
    if header.count(name) > 1:
        raise DataError(
            f"{path}: the header must have the column {name!r} once; it has it {header.count(name)} times. Rename one."
        )
    return header.index(name)


def _json_rows(path: Path, *, unlabeled: bool) -> Iterator[Row]:
    for line, text in enumerate(lines_of(path), start=1):
        if not text.strip():
            continue
        try:
            found = parse_json(text)
        except ValueError as error:
            raise DataError(f"{path}, line {line}: expected one JSON object a line; {error}.") from error
        if not isinstance(found, dict):
            raise DataError(f"{path}, line {line}: expected a JSON object; got {text.strip()!r:.100}.")
        place, label, split = (
            next((found[key] for key in keys if key in found), None) for keys in (PATHS, LABELS, (SPLIT,))
        )
        label = "" if unlabeled and isinstance(label, list | dict | float | None) else label
        number = isinstance(label, int) and not isinstance(label, bool)
        if not isinstance(place, str) or not (isinstance(label, str) or number) or not isinstance(split, str | None):
            raise DataError(
                f"{path}, line {line}: expected a path ({', '.join(PATHS)}), a label ({', '.join(LABELS)}; a text "
                f"or a whole number) and perhaps a split; got {text.strip()!r:.100}."
            )
        yield Row(line, place, str(label), split)
