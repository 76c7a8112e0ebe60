"""safetensors files, read into memory of their own, so that a file may change later."""

import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.archives.base import Archive, Entry, check_count, damaged
from vitrail.errors import CheckpointError
from vitrail.files import replacing

PRECISIONS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
CODES = {dtype: code for code, dtype in PRECISIONS.items()}


class SafeArchive(Archive):
    """One safetensors file. The library checks its header; the bytes of a tensor are read into the tensor's own."""

    kind = "safetensors"

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as checked:
                names = set(checked.keys())
            self._file = os.open(path, os.O_RDONLY)
        except SafetensorError as error:
            raise damaged(path, error) from error
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}.") from error
        try:
            length = int.from_bytes(os.pread(self._file, 8, 0), "little")
            header = json.loads(os.pread(self._file, length, 8))
            notes = header.pop("__metadata__", None) or {}
            if header.keys() != names:
                raise damaged(path, "its header names tensors twice")
            check_count(path, len(names))
        except BaseException:
            os.close(self._file)
            raise
        self._start = 8 + length
        self._places = {name: tuple(said["data_offsets"]) for name, said in header.items()}
        entries = {
            name: Entry(tuple(said["shape"]), PRECISIONS.get(said["dtype"]) or str(said["dtype"]))
            for name, said in header.items()
        }
        super().__init__(path, entries, notes=notes)

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        entry, (begin, end) = self.entries[name], self._places[name]
        assert isinstance(entry.dtype, torch.dtype)
        tensor = torch.empty(prod(entry.shape), dtype=entry.dtype)
        into: Any = memoryview(tensor.view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]
        done = 0
        while done < end - begin:
            count = os.preadv(self._file, [into[done:]], self._start + begin + done)
            if not count:
                raise damaged(self.path, f"it ends inside {name!r}")
            done += count
        return tensor.reshape(entry.shape)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Read every tensor of a file, and its notes."""
    archive = SafeArchive(path)
    try:
        return {name: archive.read(name) for name in archive.entries}, archive.notes
    finally:
        archive.close()


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Write tensors with notes, to a temporary name that is renamed last; the same bytes for the same tensors.

    The library's own writer shuffles the notes, and hides which of the disk's refusals it met.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **notes}}
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so that each is aligned
    place = 0
    for name in names:
        tensor = tensors[name]
        end = place + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": CODES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    said = json.dumps(header, separators=(",", ":")).encode()
    said += b" " * (-len(said) % 8)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(len(said).to_bytes(8, "little") + said)
        for name in names:
            file.write(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
