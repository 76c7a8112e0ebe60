"""The rows of a table as they are written, a mapping each: CSV, TSV or JSONL, whatever its columns are called."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.data.source import is_name
from vitrail.data.sources.folder import SPLITS
from vitrail.data.sources.table import DELIMITERS, LINES, PATHS, SPLIT, cells_of, leaves_folder, lines_of
from vitrail.errors import DataError
from vitrail.files import parse_json


class Record(NamedTuple):
    """One row: its line, the image that it names, its split, and all other cells by their column."""

    line: int
    path: str
    split: str | None
    cells: dict[str, Any]


def read_records(path: Path) -> list[Record]:
    """Read all rows; refuses those that name no image, or a split that there is not."""
    kind = LINES.get(path.suffix.lower())
    if kind is None:
        raise DataError(f"expected a table that ends in {', '.join(LINES)}; got {path.name}. Rename or convert it.")
    try:
        rows = _json(path) if kind == "json" else _csv(path)
        records = [_record(path, line, row) for line, row in rows]
    except OSError as error:
        raise DataError(f"cannot read the table {path}: {error.strerror or error}. Check the path.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"the table {path} must be text in UTF-8; {error.reason}. Save it as UTF-8.") from error
    if not records:
        raise DataError(f"{path} names no image; expected a row for each, with its path and what is known of it.")
    without = [record for record in records if record.split is None]
    if 0 < len(without) < len(records):
        raise DataError(
            f"{path}, line {without[0].line}: the split is empty, in {len(without):,} of {len(records):,} rows; "
            f"expected one of {', '.join(SPLITS)} in each, or in none. Fill it in, or delete the row."
        )
    return records


def _record(path: Path, line: int, row: dict[str, Any]) -> Record:
    where = f"{path}, line {line}"
    column = next((name for name in PATHS if name in row), None)
    if column is None:
        raise DataError(
            f"{where}: expected a column for the path, one of {', '.join(PATHS)}; it has "
            f"{', '.join(map(repr, row))}. Rename a column."
        )
    place, split = row[column], row.get(SPLIT)
    if not isinstance(place, str) or not place or not is_name(place):
        raise DataError(f"{where}: expected the path of an image; got {place!r:.100}. Fill it in.")
    if leaves_folder(place):
        raise DataError(
            f"{where}: {place!r} leaves the folder of the table. Move the table up, or give an absolute path."
        )
    if not isinstance(split, str | None) or (split and split.strip().lower() not in SPLITS):
        raise DataError(f"{where}: the split must be one of {', '.join(SPLITS)}; got {split!r:.100}.")
    cells = {name: cell for name, cell in row.items() if name not in (column, SPLIT)}
    return Record(line, place, SPLITS[split.strip().lower()] if split and split.strip() else None, cells)


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    start = next((line for line in lines_of(path) if line.strip()), "")
    delimiter = max(DELIMITERS, key=lambda mark: cells_of(start, mark))
    reader = csv.reader(lines_of(path), delimiter=delimiter, strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            names = [cell.strip() for cell in cells]
            if not any(names) or names == header:
                continue
            if not header:
                known = {*PATHS, SPLIT}
                header = [name.lower() if name.lower() in known else name for name in names]
                if len({*header}) < len(header):
                    raise DataError(f"{path}: the header must have every column once; got {', '.join(names)}.")
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: expected {len(header)} cells as in the header, "
                    f"got {len(cells)}. Put texts that contain {delimiter!r} into quotes."
                )
            yield reader.line_num, dict(zip(header, names, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}. Check the quotes.") from error
    if not header:
        raise DataError(f"{path} is empty; expected a header with the column path, and what is known of each image.")


def _json(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in enumerate(lines_of(path), start=1):
        if not text.strip():
            continue
        try:
            found = parse_json(text)
        except ValueError as error:
            raise DataError(f"{path}, line {line}: expected one JSON object a line; {error}.") from error
        if not isinstance(found, dict):
            raise DataError(f"{path}, line {line}: expected a JSON object; got {text.strip()!r:.100}.")
        yield line, found
