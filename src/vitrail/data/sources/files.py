"""Image files by their paths: no classes, no labels."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import SUFFIXES, Pixels
from vitrail.data.source import Names, Source
from vitrail.data.sources.folder import read_file
from vitrail.errors import DataError
from vitrail.files import fingerprint_of


class FilesSource(Source):
    """Some image files, as they are named; their labels are -1."""

    class_names = ()

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        if not paths:
            raise DataError("expected an image file at least; none is named.")
        names = [os.fspath(path) for path in paths]
        self._names = Names(names)
        self._labels = np.full(len(names), -1, dtype=np.int64)
        self._fingerprint = fingerprint_of("\0".join(names))

    @property
    def labels(self) -> NDArray[np.int64]:
        """Minus one for each: there are none."""
        return self._labels

    @property
    def fingerprint(self) -> str:
        """A short text that changes with the paths and their order."""
        return self._fingerprint

    def read(self, index: int) -> bytes | Pixels:
        """Give the bytes of a file; what cannot be read is an `ImageError`."""
        return read_file(self._names[index])

    def name(self, index: int) -> str:
        """Give the file's name."""
        return os.path.basename(self._names[index])


def is_image(path: Path) -> bool:
    """Tell an image file by its suffix."""
    return path.suffix.lower().removeprefix(".") in SUFFIXES and path.is_file()


def loose_images(folder: Path) -> list[Path]:
    """List the images that lie in a folder itself, in the order of their names."""
    return sorted(path for path in folder.iterdir() if is_image(path))
