"""What is known of every image, read from cells: labels as multi-hot rows, numbers; refused where they make none."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.config.task import MultiLabel, Regression
from vitrail.data.source import Source
from vitrail.errors import DataError, some_of

LISTS = ("labels", "label", "tags", "classes", "targets", "target", "categories", "category", "class")
VALUES = ("target", "targets", "value", "values", "label", "labels", "score", "y")
MARKS = ("|", ";", ",")  # that part the labels of a cell
YES, NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")
NAMED = 8  # columns that a message lists
MOST = 100_000  # labels
FEW = 5  # images with a label, under which little is learned of it
Columns = Mapping[str, Sequence[Any]]  # a value of every image, by the column
Places = Sequence[str]  # where every image's row is, for messages
Known = tuple[NDArray[np.float32], tuple[str, ...]]  # N K, and K names


def read_known(
    columns: Columns,
    places: Places,
    task: MultiLabel | Regression,
    whole: str,
    names: tuple[str, ...] | None = None,
) -> Known:
    """Read what a task asks of every image from the columns of a table; `whole` names it.

    `names` are those of a model that was trained before, where it is to be measured.
    """
    if names is not None and not task.columns and all(name in columns for name in names):
        task = replace(task, columns=names)
    if missing := [name for name in task.columns if name not in columns]:
        raise DataError(
            f"{whole} has no column {missing[0]!r}; beside the images it has {_listed(columns)}. "
            f"Set columns={','.join(list(columns)[:2]) or 'NAME'}."
        )
    if isinstance(task, MultiLabel):
        return _labels(columns, places, task, whole, names)
    return _numbers(columns, places, task)


def _labels(columns: Columns, places: Places, task: MultiLabel, whole: str, names: tuple[str, ...] | None) -> Known:
    chosen = task.columns or tuple(name for name in LISTS if name in columns)[:1] or tuple(columns)
    if not chosen:
        raise DataError(
            f"{whole} has no labels: expected a column labels, with lists such as cat|dog, or a column of 0 and 1 for "
            "each label. Add one."
        )
    listed = len(chosen) == 1 and (chosen[0] in LISTS or not _is_hot(columns[chosen[0]]))
    if listed:
        return hot_rows([*columns[chosen[0]]], places, names, allow_empty=task.allow_empty)
    rows = np.zeros((len(places), len(chosen)), dtype=np.float32)
    for number, name in enumerate(chosen):
        for row, (place, cell) in enumerate(zip(places, columns[name], strict=True)):
            rows[row, number] = _truth(cell, name, place)
    _check_some(rows, places, allow_empty=task.allow_empty)
    return rows, chosen


def _is_hot(cells: Sequence[Any]) -> bool:
    return all(not isinstance(cell, list) and str(cell).strip().lower() in (*YES, *NO) for cell in cells)


def _truth(cell: object, name: str, place: str) -> bool:
    word = str(cell).strip().lower()
    if word not in (*YES, *NO):
        raise DataError(
            f"{place}: {name} must be 0 or 1, whether the image has that label; got {cell!r:.60}. Correct it; where "
            f"{name} is no label, name those that are: columns=first,second."
        )
    return word in YES


def hot_rows(cells: Sequence[Any], places: Places, names: Sequence[str] | None, *, allow_empty: bool) -> Known:
    """Read lists of labels, or texts that are such, as rows of 0 and 1; numbers are of `names` where there are any."""
    texts = [cell for cell in cells if isinstance(cell, str)]
    mark = next((mark for mark in MARKS if any(mark in text for text in texts)), None)
    rows = [_list_of(cell, mark, place) for cell, place in zip(cells, places, strict=True)]
    if names is None:
        found = {label for row in rows for label in row}
        if len(found) > MOST:
            raise DataError(f"{len(found):,} different labels are more than {MOST:,}: these are no labels.")
        numbered = all(label.isascii() and label.isdigit() and len(label) < 10 for label in found)
        names = sorted(found, key=lambda label: (int(label), label) if numbered else (0, label))
    order = {name: number for number, name in enumerate(names)}
    hot = np.zeros((len(rows), len(order)), dtype=np.float32)
    for number, (row, place) in enumerate(zip(rows, places, strict=True)):
        for label in row:
            where = order.get(label, int(label) if label.isascii() and label.isdigit() else -1)
            if not 0 <= where < len(order):
                raise DataError(
                    f"{place}: the label {label!r:.60} is out of range: there are {len(order)}, 0 to "
                    f"{len(order) - 1} or {some_of([*order], NAMED)}. Correct it, or name every label."
                )
            hot[number, where] = 1
    _check_some(hot, places, allow_empty=allow_empty)
    if not order:
        raise DataError("no image has any label. Add some.")
    return hot, tuple(order)


def _list_of(cell: Any, mark: str | None, place: str) -> list[str]:  # noqa: ANN401
    """Read one cell: a list of labels, or a text that marks part."""
    if cell is None or isinstance(cell, str):
        parts = [] if not cell else cell.split(mark) if mark else [cell]
        return [part.strip() for part in parts if part.strip()]
    if isinstance(cell, Mapping):
        return [str(name) for name, there in cell.items() if _truth(there, str(name), place)]
    items = [cell] if isinstance(cell, int | np.integer) and not isinstance(cell, bool) else cell
    if not isinstance(items, list | tuple | np.ndarray):
        raise DataError(f"{place}: expected a list of labels; got {cell!r:.60}.")
    if wrong := [item for item in items if not isinstance(item, str | int | np.integer) or isinstance(item, bool)]:
        raise DataError(f"{place}: expected labels that are texts or whole numbers; got {wrong[0]!r:.60}.")
    return [str(item).strip() for item in items]


def _check_some(rows: NDArray[np.float32], places: Places, *, allow_empty: bool) -> None:
    """Refuse images without any label, which may be forgotten ones."""
    empty = np.flatnonzero(~rows.any(axis=1))
    if len(empty) and not allow_empty:
        raise DataError(
            f"{places[int(empty[0])]}: the image has no label at all, as {len(empty):,} of {len(rows):,}. Fill them "
            "in or delete the rows; where they are images that have none of the labels, set allow_empty=true."
        )


def _numbers(columns: Columns, places: Places, task: Regression) -> Known:
    chosen = task.columns or tuple(name for name in VALUES if name in columns)[:1]
    chosen = chosen or (tuple(columns) if len(columns) == 1 else ())
    if not chosen:
        raise DataError(
            f"which columns are the numbers? Beside the images there are {_listed(columns) or 'none'}. "
            f"Set columns={','.join(list(columns)[:2]) or 'NAME'}."
        )
    found = [_column(columns[name], name, places) for name in chosen]
    names = [
        name if part.shape[1] == 1 else f"{name} {number}"
        for name, part in zip(chosen, found, strict=True)
        for number in range(1, part.shape[1] + 1)
    ]
    return np.concatenate(found, axis=1).astype(np.float32), tuple(names)


def _column(cells: Sequence[Any], name: str, places: Places) -> NDArray[np.float64]:
    """Read a column of numbers, or of lists of as many."""
    rows: list[list[float]] = []
    for cell, place in zip(cells, places, strict=True):
        items = [*cell] if isinstance(cell, list | tuple | np.ndarray) else [cell]
        rows.append([_number(item, name, place) for item in items])
        if len(rows[-1]) != len(rows[0]):
            raise DataError(f"{place}: {name} has {len(rows[-1])} numbers, where others have {len(rows[0])}.")
    return np.array(rows, dtype=np.float64).reshape(len(places), -1)


def _number(cell: object, name: str, place: str) -> float:
    try:
        found = float("nan") if cell is None or isinstance(cell, bool) else float(cell)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        found = float("nan")
    if not isfinite(found) or abs(found) > np.finfo(np.float32).max:
        raise DataError(
            f"{place}: {name} must be a finite number; got {cell!r:.60}. Correct it, or delete the row; other columns "
            "are taken by columns=first,second."
        )
    return found


def _listed(columns: Columns) -> str:
    return some_of([*map(repr, columns)], NAMED)


def count_known(source: Source) -> dict[str, int]:
    """Count the images of every class, or with every label; of numbers there is nothing to count."""
    if (targets := source.targets) is None:
        labels = np.asarray(source.labels)
        counts = np.bincount(labels[labels >= 0], minlength=len(source.class_names))
    else:
        counts = targets.sum(axis=0).astype(np.int64) if _are_labels(targets) else np.zeros(0, dtype=np.int64)
    return dict(zip(source.class_names, counts.tolist(), strict=False))


def describe_known(source: Source) -> list[str]:
    """Say how the labels or numbers of the images are spread; nothing where each has one class."""
    if (targets := source.targets) is None:
        return []
    if not _are_labels(targets):
        lines = []
        for name, column in zip(source.class_names, targets.astype(np.float64).T, strict=True):
            words = f"{name}: {column.min():.6g} to {column.max():.6g}, mean {column.mean():.6g}"
            always = "; always the same, so that nothing can be learned of it" if np.ptp(column) == 0 else ""
            lines.append(f"{words}, deviation {column.std():.6g}{always}")
        return lines
    each, counts = targets.sum(axis=1), targets.sum(axis=0)
    lines = [f"{each.mean():.2f} labels an image, {int(each.min())} to {int(each.max())}"]
    often = [f"{source.class_names[place]} {int(counts[place]):,}" for place in np.argsort(-counts, kind="stable")]
    shown = often if len(often) <= 2 * NAMED else [*often[:NAMED], "...", *often[-NAMED:]]
    lines.append(f"how often each comes: {', '.join(shown)}")
    rare = [name for name, count in zip(source.class_names, counts, strict=True) if count < FEW]
    if rare:
        lines.append(f"fewer than {FEW} images with {some_of(rare, NAMED)}: little can be learned of them")
    everywhere = [name for name, count in zip(source.class_names, counts, strict=True) if count == len(targets)]
    return lines + ([f"every image has {some_of(everywhere, NAMED)}"] if everywhere else [])


def _are_labels(targets: NDArray[np.float32]) -> bool:
    return bool(np.isin(targets, (0, 1)).all())
