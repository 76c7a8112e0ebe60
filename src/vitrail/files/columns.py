"""What a parquet file says of itself: which columns hold the images and the labels, and what its labels mean."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError
from vitrail.files.reading import open_regular, parse_json

IMAGES = ("image", "img", "jpg")  # usual names, the preferred first
LABELS = ("label", "labels", "fine_label", "class", "target")
MOST_CLASSES = 1_000_000
FEW_CLASSES = 1 << 16
BINARY = ("binary", "large_binary", "binary_view")
TEXT = ("string", "large_string", "string_view")
COPY = "Copy or download the file again."


def footer(path: Path) -> bytes:
    """Read what a parquet file says of itself at its end; what has no such end is none, or was cut."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 8))
            end = file.read(8)
            length = int.from_bytes(end[:4], "little")
            if end[4:] != b"PAR1" or length > size - 12:
                file.seek(0)
                cut = file.read(4) == b"PAR1"
                reason = "is a parquet file whose end is missing" if cut else "is no parquet file"
                raise DataError(f"{path} {reason}. {COPY if cut else 'Check the path.'}")
            file.seek(size - 8 - length)
            return file.read(length)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}. Check the path.") from error


def image_column(schema: Any, wanted: str | None, path: Path) -> str:  # noqa: ANN401
    """Find the column of images: bytes, or the hub's pair of bytes and path; of several the one of a usual name."""
    fitting = [field.name for field in schema if holds_images(field.type)]
    if wanted is not None:
        if wanted not in fitting:
            raise DataError(
                f"{path}: expected images in the column {wanted!r}; those that could hold them: {_listed(fitting)}."
            )
        return wanted
    usual = [name for name in IMAGES if name in fitting]
    if not usual and len(fitting) != 1:
        raise DataError(
            f"{path}: expected one column of images (bytes, or bytes and path); those that could hold them: "
            f"{_listed(fitting)}, of {_listed(schema.names)}. Name the column."
        )
    return (usual or fitting)[0]


def label_column(schema: Any, wanted: str | None, path: Path) -> str | None:  # noqa: ANN401
    """Find the column of labels, whole numbers or texts; None where there is none of a usual name, or "" is wanted."""
    if wanted == "":
        return None
    fitting = [field.name for field in schema if is_text(field.type) or str(field.type).lstrip("u")[:3] == "int"]
    if wanted is not None and wanted not in fitting:
        raise DataError(
            f"{path}: expected labels in the column {wanted!r}; columns of numbers or texts: {_listed(fitting)}."
        )
    return wanted or next((name for name in LABELS if name in fitting), None)


def declared(schema: Any, label: str | None, path: Path) -> tuple[str, ...] | None:  # noqa: ANN401
    """Read the names of the classes out of the hub's metadata; None where it says none."""
    raw = (schema.metadata or {}).get(b"huggingface")
    if raw is None or label is None:
        return None
    try:
        feature = parse_json(raw)["info"]["features"][label]
        inner = feature.get("feature", feature)  # of lists of labels
        names = inner.get("names") if isinstance(inner, dict) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path}: expected a list of class names in its metadata; got {str(names)[:80]}.")
    return tuple(names)


def likely_classes(samples: int) -> int:
    """Say how many classes so many samples could have, where nobody names them: a label may be any number."""
    return max(FEW_CLASSES, 4 * samples)


def is_text(kind: Any) -> bool:  # noqa: ANN401
    """Whether a column holds texts, plain or as numbers of a dictionary."""
    return str(getattr(kind, "value_type", kind)) in TEXT


def text_numbers(column: Any, texts: dict[str, int]) -> NDArray[np.int64]:  # noqa: ANN401
    """Number texts in the order of their first coming, which `texts` remembers; -1 is none."""
    encoded = column if hasattr(column, "dictionary") else column.dictionary_encode()
    places = [-1 if text is None else texts.setdefault(text, len(texts)) for text in encoded.dictionary.to_pylist()]
    indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.array([*places, -1], dtype=np.int64)[indices]


def numbers(column: Any) -> NDArray[np.int64]:  # noqa: ANN401
    """Give whole numbers; -1 is none."""
    return column.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)


def holds_images(kind: Any) -> bool:  # noqa: ANN401
    """Whether a column holds bytes, or the hub's pair of bytes and path."""
    if str(kind) in BINARY:
        return True
    names = {field.name: str(field.type) for field in kind} if str(kind).startswith("struct<") else {}
    return names.get("bytes") in BINARY or ("bytes" in names and names.get("path") in TEXT)


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "") or "none"
