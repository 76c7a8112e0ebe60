"""The files of MNIST and its family: arrays of bytes with a header that says their shape."""

import gzip
import os
import struct
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.memory import MemorySource
from vitrail.errors import DataError
from vitrail.files import open_regular
from vitrail.files.reading import LARGEST_GROWTH, SMALL

SPLITS = {"train": "train", "t10k": "test"}
LARGEST_SIDE = 4096  # pixels
CHUNK = 1 << 20  # bytes
DENSEST = 1040  # bytes that deflate can make of one
AGAIN = "Download it again."


def idx_splits(folder: str | os.PathLike[str], *, class_names: Sequence[str] | None = None) -> dict[str, MemorySource]:
    """Open the splits of a folder of idx files (train, test); without names the classes are called by number."""
    arrays: dict[str, tuple[Path, NDArray[np.uint8], NDArray[np.uint8]]] = {}
    for prefix, split in SPLITS.items():
        images, labels = (
            _find(Path(folder), f"{prefix}-{what}", axes) for what, axes in (("images", 3), ("labels", 1))
        )
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            raise DataError(
                f"{folder} has only {(images or labels or Path()).name}; expected {prefix}-images-idx3-ubyte and "
                f"{prefix}-labels-idx1-ubyte, or both with .gz. Download the missing one."
            )
        arrays[split] = (images, _read(images, axes=3), _read(labels, axes=1))
        if len(arrays[split][1]) != len(arrays[split][2]):
            raise DataError(
                f"{images} holds {len(arrays[split][1])} images and {labels.name} {len(arrays[split][2])} labels; "
                "expected as many. Download both again."
            )
    if not arrays:
        raise DataError(
            f"{folder} has no idx files; expected train-images-idx3-ubyte, train-labels-idx1-ubyte, "
            "t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each as it is or with .gz. Check the path."
        )
    classes = 1 + max(int(labels.max()) for _, _, labels in arrays.values())
    names = tuple(map(str, range(classes))) if class_names is None else class_names
    return {
        split: MemorySource(images[..., None], labels, names, title=path.name)
        for split, (path, images, labels) in arrays.items()
    }


def _find(folder: Path, stem: str, axes: int) -> Path | None:
    # Some unpackers turn the last hyphen into a dot.
    names = [f"{stem}{mark}idx{axes}-ubyte{suffix}" for suffix in ("", ".gz") for mark in "-."]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read(path: Path, *, axes: int) -> NDArray[np.uint8]:
    """Read an array of bytes, and never more of it than its header says."""
    try:
        with open_regular(path) as raw, gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw as file:
            size = os.fstat(raw.fileno()).st_size
            header = file.read(4 + 4 * axes)
            shape = _shape(path, header, axes)
            packed = path.suffix == ".gz"
            if len(header) + prod(shape) > (DENSEST * size if packed else size):
                raise DataError(f"{path} is cut: its header says {prod(shape):,} bytes, it has {size:,}. {AGAIN}")
            if packed and prod(shape) > max(SMALL, LARGEST_GROWTH * size):
                raise DataError(
                    f"{path} has {size:,} bytes and says it holds {prod(shape):,}: images do not shrink so far. "
                    "If it is yours, unpack it."
                )
            array = np.empty(prod(shape), dtype=np.uint8)
            done = 0
            while done < len(array) and (count := file.readinto(array.data[done : done + CHUNK])):
                done += count
            longer = bool(file.read(1))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}. {AGAIN}") from error
    if done < len(array) or longer:
        found = "more" if longer else f"{done:,}"
        raise DataError(f"{path} must hold the {len(array):,} bytes that its header says; got {found}. {AGAIN}")
    return array.reshape(shape)


def _shape(path: Path, header: bytes, axes: int) -> tuple[int, ...]:
    if len(header) < 4 + 4 * axes or header[:4] != bytes((0, 0, 8, axes)):
        raise DataError(
            f"{path} must start with 00 00 08 {axes:02x}, bytes in {axes} axes, and its sizes; "
            f"got {header.hex(' ') or 'nothing'}. {AGAIN}"
        )
    shape = struct.unpack(f">{axes}I", header[4:])
    if min(shape) < 1 or max(shape[1:], default=1) > LARGEST_SIDE:
        raise DataError(
            f"{path} must hold images of 1 to {LARGEST_SIDE} pixels a side; its header says {shape}. {AGAIN}"
        )
    return shape
