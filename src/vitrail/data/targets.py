"""From what a person names to images with several labels or numbers each; and classes that have an order."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.config import Card
from vitrail.config.outputs import LabelOutputs, NumberOutputs, OrderedOutputs
from vitrail.config.task import ImageTask, MultiLabel, Ordinal, Regression
from vitrail.data.joined import Joined
from vitrail.data.known import LISTS, hot_rows, read_known
from vitrail.data.open import open_data
from vitrail.data.source import Source, Subset
from vitrail.data.sources.dataset import DatasetSource, python_splits
from vitrail.data.sources.folder import FilesSource, read_file
from vitrail.data.sources.memory import checked_names
from vitrail.data.sources.parquet import ParquetSource, shards_of
from vitrail.data.sources.records import read_records
from vitrail.data.sources.table import LINES
from vitrail.errors import DataError, some_of
from vitrail.files import fetch_dataset, fingerprint_of, home_path
from vitrail.files.reading import refusing
from vitrail.files.tables import declared_names, read_columns

Progress = Callable[[str, int, int], None]
TABLES = "a table (.csv, .tsv, .jsonl) with the column path and others, parquet files, or (images, targets)"


class TargetSource(Subset):
    """The samples of a source, with several labels or numbers each: a row of `targets`, in the order of the names."""

    def __init__(self, source: Source, targets: NDArray[np.float32], names: tuple[str, ...]) -> None:
        super().__init__(source, np.arange(len(source)))
        if targets.shape != (len(source), len(names)):
            shape = "x".join(map(str, targets.shape))
            raise DataError(f"expected {len(names)} targets for each of {len(source)} images; got {shape}.")
        self.class_names, self._labels = names, np.full(len(source), -1, dtype=np.int64)
        self._targets = np.ascontiguousarray(targets, dtype=np.float32)
        self._targets.flags.writeable = False

    @property
    def targets(self) -> NDArray[np.float32]:
        """What is known of every image, N K."""
        return self._targets

    def targets_of(self, samples: NDArray[np.int64]) -> NDArray[np.float32]:
        """Give the rows of some samples."""
        return self._targets[samples]

    @property
    def fingerprint(self) -> str:
        """A digest of the source's, of the targets and of their names."""
        return f"targets-{fingerprint_of(self.source.fingerprint, self._targets, chr(0).join(self.class_names))}"


class ListedFiles(FilesSource):
    """Image files by their paths, relative to a folder or absolute, under which they are named."""

    def __init__(self, root: Path, paths: list[str]) -> None:
        super().__init__(paths)
        self.root = root

    def read(self, index: int) -> bytes:
        """Give the bytes of a file; what cannot be read is an `ImageError`."""
        return read_file(os.path.normpath(os.path.join(self.root, self._names[index])))

    def name(self, index: int) -> str:
        """Give the path as it was written."""
        return self._names[index]


class OrderedSource(Subset):
    """The samples of a source, their classes in an order that was said."""

    def __init__(self, source: Source, order: tuple[str, ...]) -> None:
        super().__init__(source, np.arange(len(source)))
        places = np.array([*(order.index(name) for name in source.class_names), -1], dtype=np.int64)
        self.class_names, self._labels = order, places[np.asarray(source.labels)]

    @property
    def fingerprint(self) -> str:
        """A digest of the source's, and of the order."""
        return f"ordered-{fingerprint_of(self.source.fingerprint, chr(0).join(self.class_names))}"


def open_task(
    data: object,
    task: ImageTask,
    *,
    allow_pipe: bool = False,
    unlabeled: bool = False,
    progress: Progress | None = None,
) -> Mapping[str, Source]:
    """Open every split of the images that a task is learned from, as `open_data` does where it is one class."""
    if isinstance(task, MultiLabel | Regression):
        return open_targets(data, task)
    splits = open_data(data, allow_pipe=allow_pipe, unlabeled=unlabeled, progress=progress)
    return ordered(splits, task) if isinstance(task, Ordinal) else splits


def ordered(splits: Mapping[str, Source], task: Ordinal) -> Mapping[str, Source]:
    """Put classes in the order that is said, or in that of their numbers; refuses names that have none."""
    names = next(iter(splits.values())).class_names
    if not task.order and not all(_is_number(name) for name in names):
        raise DataError(
            f"what is the order of the classes {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}? Say it, "
            f"lowest first: order={','.join(names[:4])}; classes that are numbers have theirs."
        )
    order = task.order or tuple(sorted(names, key=lambda name: (float(name), name)))
    if len(order) < 2 or {*order} != {*names}:
        raise DataError(
            f"order must name every class of the data once, two at least: {', '.join(names[:8])}; got "
            f"{', '.join(order[:8]) or 'none'}."
        )
    return {split: source if names == order else OrderedSource(source, order) for split, source in splits.items()}


def open_known(data: object, card: Card, *, allow_pipe: bool = False) -> Mapping[str, Source]:
    """Open every split of images to measure a model by, as its card says what its outputs mean."""
    names = card.class_names
    match card.outputs:
        case LabelOutputs(allow_empty=allowed):
            return open_targets(data, MultiLabel(allow_empty=allowed), names)
        case NumberOutputs():
            return open_targets(data, Regression(), names)
        case OrderedOutputs():
            splits = open_data(data, allow_pipe=allow_pipe)
            same = {*(names or ())} == {*next(iter(splits.values())).class_names}
            return ordered(splits, Ordinal(order=names or ())) if same else splits
        case _:
            return open_data(data, allow_pipe=allow_pipe)


def open_targets(
    data: object, task: MultiLabel | Regression, names: tuple[str, ...] | None = None
) -> Mapping[str, Source]:
    """Open images with several labels or numbers each: a table, parquet files, or what a program holds.

    `names` are those of a model that is to be measured.
    """
    if isinstance(data, Mapping):
        return _together({str(split): part for split, part in data.items()}, task, names)
    if not isinstance(data, str | os.PathLike):
        return _together({"all": data}, task, names)
    text = os.fspath(data)
    if text.startswith("hf:"):
        return _parquet(fetch_dataset(text.removeprefix("hf:")), task, names)
    path = home_path(text)
    with refusing(path, DataError, "cannot be read as a table of images", " Check the path."):
        if path.is_dir() and (any(path.glob("*.parquet")) or any((path / "data").glob("*.parquet"))):
            return _parquet(path, task, names)
        if path.suffix.lower() == ".parquet":
            return _parquet(path, task, names)
        return _table(_table_of(path), task, names)


def _table_of(path: Path) -> Path:
    """Find the table that a path means: itself, or the only one of a folder."""
    if not path.exists():
        raise DataError(f"there is no table at {str(path)!r}. Several labels or numbers of an image need {TABLES}.")
    if not path.is_dir():
        return path
    found = sorted(each for each in path.iterdir() if each.suffix.lower() in LINES and each.suffix != ".txt")
    if len(found) != 1:
        names = ", ".join(each.name for each in found[:4])
        raise DataError(
            f"{path} has {f'several tables, {names}: give one of them' if found else 'no table'}. Folders of classes "
            f"say one class an image; several labels or numbers need {TABLES}."
        )
    return found[0]


def _table(path: Path, task: MultiLabel | Regression, names: tuple[str, ...] | None) -> Mapping[str, Source]:
    records = read_records(path)
    every = dict.fromkeys(name for record in records for name in record.cells)
    columns = {name: [record.cells.get(name) for record in records] for name in every}
    places = [f"{path}, line {record.line}" for record in records]
    targets, known = read_known(columns, places, task, str(path), names)
    root = path.parent
    files = [record.path for record in records]
    splits = np.array([record.split or "all" for record in records])
    found: dict[str, Source] = {}
    for split in (each for each in ("train", "val", "test", "all") if each in splits):
        rows = np.flatnonzero(splits == split)
        found[split] = TargetSource(ListedFiles(root, [files[row] for row in rows.tolist()]), targets[rows], known)
    return found


def _parquet(place: Path, task: MultiLabel | Regression, names: tuple[str, ...] | None) -> Mapping[str, Source]:
    shards = shards_of(place)
    sources = {split: ParquetSource(files, label="", unlabeled=True) for split, files in shards.items()}
    columns: dict[str, list[Any]] = {}
    for source in sources.values():
        for name, cells in read_columns(source.table.paths, task.columns).items():
            columns.setdefault(name, []).extend(cells)
    if any(len(cells) != sum(map(len, sources.values())) for cells in columns.values()):
        raise DataError(f"{place}: its splits have different columns. Open them one by one.")
    places = [source.name(row) for source in sources.values() for row in range(len(source))]
    listed = next((name for name in LISTS if name in columns), None) if isinstance(task, MultiLabel) else None
    if names is None and listed is not None:
        names = declared_names(next(iter(sources.values())).table.paths[0], listed)
    targets, known = read_known(columns, places, task, str(place), names)
    ends = np.cumsum([0, *map(len, sources.values())])
    parts = zip(sources.items(), ends[:-1], ends[1:], strict=True)
    renamed = {"validation": "val", "valid": "val", "dev": "val"}
    return {
        renamed.get(split, split): TargetSource(held, targets[low:high], known) for (split, held), low, high in parts
    }


def _together(
    parts: Mapping[str, Any], task: MultiLabel | Regression, known: tuple[str, ...] | None
) -> Mapping[str, Source]:
    """Open what a program holds by its splits, with the same names for all."""
    found: dict[str, Source] = {}
    held: dict[str, tuple[Source, list[Any], tuple[str, ...] | None]] = {}
    for split, part in parts.items():
        if isinstance(part, str | os.PathLike):
            opened = open_targets(part, task, known)
            found[split] = next(iter(opened.values())) if len(opened) == 1 else Joined([*opened.values()])
        elif isinstance(part, Source):
            if part.targets is None:
                raise DataError(f"{split}: its images have no several labels or numbers. Expected {TABLES}.")
            found[split] = part
        else:
            held[split] = _held(split, part)
    names = next((own for _, _, own in held.values() if own is not None), known)
    cells = [cell for _, values, _ in held.values() for cell in values]
    if held:
        places = [f"{split}, item {row}" for split, (_, values, _) in held.items() for row in range(len(values))]
        targets, names = _rows(cells, places, task, names)
        start = 0
        for split, (source, values, _) in held.items():
            found[split] = TargetSource(source, targets[start : start + len(values)], names)
            start += len(values)
    if len({source.class_names for source in found.values()}) > 1:
        raise DataError("splits must have the same labels or numbers, in the same order; theirs differ.")
    return {split: found[split] for split in parts}


def _rows(
    cells: list[Any], places: list[str], task: MultiLabel | Regression, names: tuple[str, ...] | None
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Read the targets that a program holds: rows of 0 and 1, lists of labels, or numbers."""
    try:
        array = np.asarray(cells)
    except ValueError:  # rows of different lengths
        array = np.asarray([])
    hot = array.ndim == 2 and array.dtype.kind in "biuf" and bool(np.isin(array, (0, 1)).all())
    if isinstance(task, MultiLabel) and not hot:
        numbers = array.ndim == 2 and array.dtype.kind in "biuf"
        repeats = numbers and array.shape[1] > 1 and bool((np.diff(np.sort(array, axis=1), axis=1) == 0).any())
        if numbers and (array.dtype.kind in "bf" or repeats):  # a list of labels names none of them twice
            row, column = (int(place[0]) for place in np.nonzero(~np.isin(array, (0, 1))))
            raise DataError(f"{places[row]}: expected 0 or 1 for each label; got {array[row, column]} at {column}.")
        return hot_rows([_plain(cell) for cell in cells], places, names, allow_empty=task.allow_empty)
    count = array.shape[1] if array.ndim == 2 else 1
    word = "label" if isinstance(task, MultiLabel) else "value"
    usual = (word,) if count == 1 else tuple(f"{word} {number}" for number in range(1, count + 1))
    usual = tuple(map(str, range(count))) if isinstance(task, MultiLabel) else usual
    if names is not None and len(names) != count:
        raise DataError(
            f"expected {len(names)} targets of each image, {some_of([*names], 8)}; got {count}. Give as many."
        )
    names = names or usual
    rows = [[*cell] if isinstance(cell, list | tuple | np.ndarray) else [cell] for cell in map(_plain, cells)]
    if uneven := [place for place, row in zip(places, rows, strict=True) if len(row) != len(names)]:
        raise DataError(f"{uneven[0]}: expected {len(names)} targets, as the others have.")
    columns = {name: [row[number] for row in rows] for number, name in enumerate(names)}
    asked = type(task)(**{**vars(task), "columns": names})
    return read_known(columns, places, asked, "the data")


def _plain(cell: Any) -> Any:  # noqa: ANN401
    """Give a tensor or a number of a library as what Python has."""
    return cell.tolist() if hasattr(cell, "tolist") else cell


def _held(split: str, part: Any) -> tuple[Source, list[Any], tuple[str, ...] | None]:  # noqa: ANN401
    """Part images from what is known of each: (images, targets), or a dataset of (image, targets)."""
    pair = isinstance(part, tuple | list) and len(part) == 2 and getattr(part[0], "ndim", 0) in (3, 4)
    if pair or (isinstance(part, tuple) and len(part) == 2):
        images, known = part
        values = list(known)
        if len(values) != len(images):
            raise DataError(f"{split}: {len(images)} images and {len(values)} targets. Give one row for each image.")
        source = python_splits({split: (images, np.zeros(len(values), dtype=np.int64))})[split]
        return source, values, None
    if not (hasattr(part, "__len__") and hasattr(part, "__getitem__")):
        raise DataError(f"{split}: expected {TABLES}, or a dataset of (image, targets); got {type(part).__name__}.")
    values = [
        item[1] if isinstance(item := part[row], tuple | list) and len(item) == 2 else None for row in range(len(part))
    ]
    if not values or any(value is None for value in values):
        raise DataError(f"{split}: expected a dataset of (image, targets), not empty.")
    names = getattr(part, "classes", None)
    source = DatasetSource(part, np.zeros(len(values), dtype=np.int64), ("image",))
    return source, values, None if names is None else checked_names(names)


def _is_number(name: str) -> bool:
    try:
        return float(name) == float(name)
    except ValueError:
        return False
