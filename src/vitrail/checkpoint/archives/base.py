"""A file of named tensors: names, shapes and precisions are known at once, contents are read one by one."""

import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import CheckpointError

Shape = tuple[int, ...]
MOST_TENSORS = 10_000
# What a damaged archive raises, from zlib's errors to those of zip's many features.
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError, RuntimeError, NotImplementedError),
    *(SyntaxError, OverflowError),
)


class Entry(NamedTuple):
    """What a file says of a tensor; the precision is a word where torch has none that a weight could have."""

    shape: Shape
    dtype: torch.dtype | str


class Archive(ABC):
    """An open file of tensors; close it, or use it as a context."""

    kind: str  # npz, safetensors or pth

    def __init__(
        self, path: Path, entries: Mapping[str, Entry], *, strangers: tuple[str, ...] = (), notes: Mapping[str, str]
    ) -> None:
        self.path = path
        self.entries = MappingProxyType(dict(entries))
        self.strangers = strangers  # what the file holds beside tensors, by name
        self.notes = MappingProxyType(dict(notes))  # texts that the file carries

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """Read one tensor into memory of its own; safe to call from several threads."""

    @abstractmethod
    def close(self) -> None:
        """Let the file go."""

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_count(path: Path, count: int) -> None:
    """Refuse a file of more tensors than any model has, before anything is done with each."""
    if count > MOST_TENSORS:
        raise CheckpointError(f"{path} holds {count:,} tensors; a model has at most {MOST_TENSORS:,}. It was not read.")


def fill(read: Callable[[int], bytes], into: np.ndarray) -> None:
    """Read as many bytes as there is room for, a few megabytes at a time."""
    done = 0
    while done < len(into):
        piece = read(min(len(into) - done, 1 << 22))
        if not piece:
            raise EOFError("it ends too early")
        into[done : done + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
        done += len(piece)


def damaged(path: Path, why: object) -> CheckpointError:
    """Say that a file is not what it was when it was written."""
    return CheckpointError(f"{path} is damaged: {why}. Copy or download it again.")
