"""Rows of parquet files that hold images, by number: the only file that knows the library of tables."""

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import WITHOUT_LABELS, ConfigError, DataError, VitrailError
from vitrail.files import columns as found
from vitrail.files.atomic import replacing
from vitrail.files.reading import LARGEST_GROWTH, SMALL, open_regular

LARGEST_GROUP = 1 << 30  # bytes of images in one row group: all of it is read for one row
KEPT = 128 << 20  # bytes of decoded row groups that a process keeps
BATCH = 128  # rows decoded at once, so that a group that lies about its size is noticed in time


class Row(NamedTuple):
    """One image: its bytes, or where it lies, or both."""

    data: bytes | None
    path: str | None


class ImageTable:
    """Images of parquet files, in their order; row groups are read when they are asked for and the last few kept.

    No file stays open and nothing that was read is pickled, so a table may be handed to other processes.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        image: str | None = None,
        label: str | None = None,
        unlabeled: bool = False,
    ) -> None:
        if not paths:
            raise DataError("expected one parquet file or more; got none.")
        self.paths = tuple(Path(path) for path in paths)
        self.unlabeled = unlabeled
        footers = hashlib.blake2b(digest_size=16)
        groups: list[tuple[int, int, int]] = []  # file, group in the file, rows
        for number, path in enumerate(self.paths):
            footers.update(found.footer(path))
            with _opened(path) as file:
                schema = file.schema_arrow
                columns = found.image_column(schema, image, path), found.label_column(schema, label, path)
                names = found.declared(schema, columns[1], path)
                if number == 0:
                    (self.image, self.label), self.declared = columns, names
                elif (*columns, names) != (self.image, self.label, self.declared):
                    raise DataError(
                        f"{path} has other columns or class names than {self.paths[0]}: expected {self.image!r} and "
                        f"{self.label!r}, got {columns[0]!r} and {columns[1]!r}, or names that differ. "
                        "Read them one by one."
                    )
                _check_rows(file.metadata, path)
                for group in range(file.metadata.num_row_groups):
                    _check_size(file.metadata.row_group(group), columns, path)
                    groups.append((number, group, file.metadata.row_group(group).num_rows))
        if self.label is None and not unlabeled:
            raise DataError(
                f"{self.paths[0]} has no column of labels; looked for {', '.join(found.LABELS)}. "
                f"Name the column, or say that the images are unlabeled; {WITHOUT_LABELS}"
            )
        self.digest = footers.hexdigest()  # of all that the files say of themselves: sizes, places, extremes
        self._groups = np.array(groups, dtype=np.int64).reshape(-1, 3)
        # The number of each row group's first row, and of the row after the last: rows between are read together.
        self.starts = np.concatenate([[0], np.cumsum(self._groups[:, 2])]).astype(np.int64)
        self._kept = _Kept()

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _kept=_Kept())

    def row(self, index: int) -> Row:
        """Read one row; its whole group is read where it is not among the last few."""
        group = self._group_of(index)
        if self._kept.process != os.getpid():  # a fork's copy, whose lock another thread may have held
            self._kept = _Kept()
        with self._kept.lock:
            arrays = self._kept.get(group)
            if arrays is None:
                arrays = self._read(group)
                self._kept.put(group, arrays)
        offset = index - int(self.starts[group])
        for array in arrays:
            if offset < len(array):
                value = array[offset].as_py()
                return Row(value.get("bytes"), value.get("path")) if isinstance(value, dict) else Row(value, None)
            offset -= len(array)
        raise DataError(f"{self.place(index)[0]} has fewer rows than it says. {found.COPY}")

    def place(self, index: int) -> tuple[Path, int]:
        """Say in which file a row is, and which of its rows it is."""
        group = self._group_of(index)
        file = int(self._groups[group, 0])
        first = int(self.starts[np.searchsorted(self._groups[:, 0], file)])
        return self.paths[file], index - first

    def labels(self, class_names: Sequence[str] | None = None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Read the labels alone: a number for each row (-1 where there is none), and the names of the classes.

        The names are those given, or the file's own, or for texts all of them in order, or the numbers themselves.
        """
        if self.label is None:
            return np.full(len(self), -1, dtype=np.int64), tuple(class_names or ())
        given = tuple(class_names) if class_names is not None else self.declared
        parts: list[NDArray[np.int64]] = []
        texts: dict[str, int] = {}
        for path in self.paths:
            with _opened(path, self.label) as file:
                is_text = found.is_text(file.schema_arrow.field(self.label).type)
                for batch in file.iter_batches(batch_size=65536, columns=[self.label], use_threads=False):
                    parts.append(
                        found.text_numbers(batch.column(0), texts) if is_text else found.numbers(batch.column(0))
                    )
        numbers = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        if len(numbers) != len(self):
            raise DataError(f"{self.paths[0]} has changed while it was read. Open it again.")
        if texts:
            given = tuple(sorted(texts)) if given is None else given
            places = {name: number for number, name in enumerate(given)}
            unknown = sorted(texts.keys() - places.keys())
            if unknown:
                raise DataError(f"{self.paths[0]}: the label {unknown[0]!r} is none of the {len(given)} classes.")
            order = np.array([places[text] for text in texts], dtype=np.int64)
            numbers = np.where(numbers < 0, -1, order[numbers])
        return numbers, self._checked(numbers, given)

    def _checked(self, numbers: NDArray[np.int64], given: tuple[str, ...] | None) -> tuple[str, ...]:
        """Refuse labels without a class; those below zero are none, and refused too unless that is allowed."""
        if not self.unlabeled and len(numbers) and numbers.min() < 0:
            path, row = self.place(int(np.argmax(numbers < 0)))
            raise DataError(f"{path}: row {row} has no label. Say that images may be unlabeled, or use another file.")
        highest = int(numbers.max(initial=-1))
        if highest >= (found.MOST_CLASSES if given is None else len(given)):
            path, row = self.place(int(numbers.argmax()))
            known = f"{len(given)} classes" if given is not None else f"fewer than {found.MOST_CLASSES:,} classes"
            raise DataError(f"{path}: expected {known}; row {row} has the label {highest}. Check the class names.")
        if given is None and highest >= found.likely_classes(len(numbers)):
            raise DataError(
                f"{self.paths[0]}: the highest label is {highest:,}, in {len(numbers):,} rows: such numbers are no "
                "classes. Count the classes from 0, or name them."
            )
        numbers[numbers < 0] = -1
        return tuple(str(number) for number in range(highest + 1)) if given is None else given

    def _group_of(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return int(np.searchsorted(self.starts, index, side="right")) - 1

    def _read(self, group: int) -> list[Any]:
        number, within, rows = (int(value) for value in self._groups[group])
        path = self.paths[number]
        arrays: list[Any] = []
        held = 0
        with _opened(path, footers=self._kept.footers) as file:
            if within >= file.metadata.num_row_groups or file.metadata.row_group(within).num_rows != rows:
                raise DataError(f"{path} has changed since it was opened. Open it again.")
            size = _check_size(file.metadata.row_group(within), (self.image,), path)
            batch_size = max(1, min(BATCH, SMALL // max(size, 1)))  # any row may be as large as all that is written
            for batch in file.iter_batches(batch_size, row_groups=[within], columns=[self.image], use_threads=False):
                held += batch.nbytes
                if held > min(LARGEST_GROUP, max(SMALL, 2 * size)):
                    raise _too_large(path, held)
                arrays.append(batch.column(0))
        return arrays


def declared_names(path: Path, column: str) -> tuple[str, ...] | None:
    """Give the names of the labels of a column, also one of lists, that a file declares; None where it does not."""
    with _opened(path) as file:
        return found.declared(file.schema_arrow, column, path)


def column_names(path: Path) -> set[str]:
    """Name the columns of a file."""
    with _opened(path) as file:
        return set(file.schema_arrow.names)


def read_columns(paths: Sequence[Path], names: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Read columns as plain values, those of these names or all that hold no images; refuses one that is not there."""
    values: dict[str, list[Any]] = {}
    for path in paths:
        with _opened(path) as file:
            schema = file.schema_arrow
            if missing := [name for name in names if name not in schema.names]:
                raise DataError(f"{path} has no column {missing[0]!r}; it has {', '.join(map(repr, schema.names))}.")
            chosen = list(names) or [field.name for field in schema if not found.holds_images(field.type)]
            _check_rows(file.metadata, path)
            for group in range(file.metadata.num_row_groups):
                _check_size(file.metadata.row_group(group), chosen, path)
            for batch in file.iter_batches(batch_size=65536, columns=chosen, use_threads=False):
                for name in chosen:
                    values.setdefault(name, []).extend(batch.column(name).to_pylist())
    return values


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
    """Write columns as a parquet file, whole or not at all; a row of an array N D becomes a list of D numbers."""
    import pyarrow as arrow
    from pyarrow import parquet

    def column(values: Any) -> Any:  # noqa: ANN401
        if getattr(values, "ndim", 1) == 1:
            return arrow.array(values)
        return arrow.FixedSizeListArray.from_arrays(arrow.array(values.reshape(-1)), values.shape[1])

    with replacing(path) as temporary:
        parquet.write_table(arrow.table({name: column(values) for name, values in columns.items()}), temporary)


class _Kept:
    """The row groups read last, within a limit of bytes; at least the very last."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self._arrays: OrderedDict[int, list[Any]] = OrderedDict()
        self.footers = dict[Any, Any]()
        self.size = 0  # bytes

    def get(self, group: int) -> list[Any] | None:
        if group in self._arrays:
            self._arrays.move_to_end(group)
        return self._arrays.get(group)

    def put(self, group: int, arrays: list[Any]) -> None:
        self._arrays[group] = arrays
        self.size += _bytes(arrays)
        while len(self._arrays) > 1 and self.size > KEPT:
            self.size -= _bytes(self._arrays.popitem(last=False)[1])


def _bytes(arrays: list[Any]) -> int:
    return sum(array.nbytes for array in arrays)


@contextmanager
def _opened(path: Path, *encoded: str, footers: dict[Any, Any] | None = None) -> Iterator[Any]:
    """Open a parquet file; whatever its damage makes the library raise becomes one error.

    Texts of the columns `encoded` are read once each, however often they come: one may be all of a memory. `footers`
    keeps what the last file says of itself, which is long where its row groups are many.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError("reading parquet files needs pyarrow. Install it: pip install pyarrow.") from error
    try:
        options: dict[str, Any] = {"page_checksum_verification": True, "read_dictionary": encoded or None}
        with open_regular(path) as plain:
            stamp = os.fstat(plain.fileno())
            key = (path, stamp.st_size, stamp.st_mtime_ns)
            with parquet.ParquetFile(plain, metadata=(footers or {}).get(key), **options) as file:
                if footers is not None and key not in footers:
                    footers.clear()
                    footers[key] = file.metadata
                yield file
    except VitrailError:
        raise
    except Exception as error:  # whatever its damage makes the library, or numpy, raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} is damaged: {reason[:200]}. {found.COPY}") from error


def _check_rows(metadata: Any, path: Path) -> None:  # noqa: ANN401
    """Refuse a file that says it has more rows than bytes, before any array is made of so many."""
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if min(rows, default=0) < 0 or sum(rows) > path.stat().st_size:
        raise DataError(f"{path} is damaged: it says that it has {sum(rows):,} images. {found.COPY}")


def _check_size(group: Any, names: Collection[str | None], path: Path) -> int:  # noqa: ANN401
    """Give the bytes of a row group's columns of these names; refuse what is too large, or grows as no images do."""
    columns = (group.column(number) for number in range(group.num_columns))
    chosen = [column for column in columns if column.path_in_schema.split(".")[0] in names]
    packed = sum(column.total_compressed_size for column in chosen)
    size = max(packed, sum(column.total_uncompressed_size for column in chosen))
    if size > LARGEST_GROUP:
        raise _too_large(path, size)
    if size > max(SMALL, LARGEST_GROWTH * min(packed, path.stat().st_size)):
        raise DataError(
            f"{path} says that a row group of {packed:,} bytes holds {size:,}: images do not shrink so far. If it is "
            "yours, write it again with smaller row groups."
        )
    return size


def _too_large(path: Path, size: int) -> DataError:
    return DataError(
        f"{path}: expected row groups of at most {LARGEST_GROUP >> 20:,} MiB, since one is read whole for any of its "
        f"rows; got {size >> 20:,} MiB. Write the file again with smaller row groups (row_group_size=100)."
    )
