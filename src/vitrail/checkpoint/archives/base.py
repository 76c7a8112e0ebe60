"""A file of named tensors: names, shapes and precisions are known at once, contents are read one by one.

Here is what every format shares, and safetensors; npz, pth and shards have files of their own.
"""

import json
import os
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.files import replacing

Shape = tuple[int, ...]
MOST_TENSORS = 10_000
PRECISIONS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
CODES = {dtype: code for code, dtype in PRECISIONS.items()}
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
        self,
        path: Path,
        entries: Mapping[str, Entry],
        *,
        file: BinaryIO | None = None,
        strangers: tuple[str, ...] = (),
        notes: Mapping[str, str],
    ) -> None:
        self.path = path
        self._file = file
        self.entries = MappingProxyType(dict(entries))
        self.strangers = strangers  # what the file holds beside tensors, by name
        self.notes = MappingProxyType(dict(notes))  # texts that the file carries

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """Read one tensor into memory of its own; safe to call from several threads."""

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

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


class SafeArchive(Archive):
    """One safetensors file. The library checks its header; a tensor's bytes are read into memory of their own."""

    kind = "safetensors"

    def __init__(self, path: Path, file: BinaryIO) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as checked:
                names = set(checked.keys())
        except SafetensorError as error:
            raise damaged(path, error) from error
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}.") from error
        self._number = file.fileno()
        length = int.from_bytes(os.pread(self._number, 8, 0), "little")
        header = json.loads(os.pread(self._number, length, 8))
        notes = header.pop("__metadata__", None) or {}
        if header.keys() != names:
            raise damaged(path, "its header names tensors twice")
        check_count(path, len(names))
        self._start = 8 + length
        self._spans = {name: tuple(said["data_offsets"]) for name, said in header.items()}
        entries = {
            name: Entry(tuple(said["shape"]), PRECISIONS.get(said["dtype"]) or str(said["dtype"]))
            for name, said in header.items()
        }
        super().__init__(path, entries, file=file, notes=notes)

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        entry, (begin, end) = self.entries[name], self._spans[name]
        assert isinstance(entry.dtype, torch.dtype)
        tensor = torch.empty(prod(entry.shape), dtype=entry.dtype)
        into: Any = memoryview(tensor.view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]
        done = 0
        while done < end - begin:
            count = os.preadv(self._number, [into[done:]], self._start + begin + done)
            if not count:
                raise damaged(self.path, f"it ends inside {name!r}")
            done += count
        return tensor.reshape(entry.shape)


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Read every tensor of a file, and its notes."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}.") from error
    with file:
        archive = SafeArchive(path, file)
        return {name: archive.read(name) for name in archive.entries}, archive.notes


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Write tensors with notes, to a temporary name that is renamed last; the same bytes for the same tensors.

    The library's own writer shuffles the notes, and hides which of the disk's refusals it met.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **notes}}
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so that each is aligned
    start = 0
    for name in names:
        tensor = tensors[name]
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    said = json.dumps(header, separators=(",", ":")).encode()
    said += b" " * (-len(said) % 8)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(len(said).to_bytes(8, "little") + said)
        for name in names:
            file.write(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
