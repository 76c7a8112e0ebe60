"""A file of named tensors: names, shapes and precisions are known at once, contents are read one by one.

Here is what every format shares, and safetensors; npz, pth and shards have files of their own.
"""

import hashlib
import json
import os
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoint.archives.foreign import name_file, name_zip
from vitrail.config.check import DEEPEST
from vitrail.errors import CheckpointError, shortened
from vitrail.files import open_regular, parse_json, reading, replacing

Shape = tuple[int, ...]
Value = TypeVar("Value")
MOST_TENSORS = 10_000
LONGEST_NAME = 1000  # signs of a tensor's
MOST_AXES = 16
LARGEST_HEADER = 16 << 20  # bytes: that of 10,000 tensors has 2
PRECISIONS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
EIGHT = {"I8": torch.int8, "F8_E4M3": torch.float8_e4m3fn}  # of weights with scales beside them, read where asked for
CODES = {dtype: code for code, dtype in (PRECISIONS | EIGHT).items()}
# What compiling, sharding and recomputing put into the names of a module's parts, wherever it was done.
WRAPPING = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# What a damaged archive raises, from zlib's errors to those of zip's many features.
DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError, RuntimeError, NotImplementedError),
    *(SyntaxError, OverflowError, MemoryError, RecursionError),
)


refusing = partial(reading.refusing, kind=CheckpointError, unread="cannot be read, it may be damaged")


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
        file: BinaryIO,
        entries: Mapping[str, Entry],
        *,
        strangers: tuple[str, ...] = (),
        notes: Mapping[str, str] | None = None,
    ) -> None:
        check_names(path, (*entries, *strangers, *(notes or ())))
        if many := next((name for name, entry in entries.items() if len(entry.shape) > MOST_AXES), None):
            raise damaged(path, f"{many!r} has {len(entries[many].shape):,} axes")
        self.path, self.paths = path, (path,)
        self._file = file
        self.entries = MappingProxyType(dict(entries))
        self.strangers = strangers  # what the file holds beside tensors, by name
        self.notes = MappingProxyType(dict(notes or {}))  # texts that the file carries

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """Read one tensor into memory of its own; safe to call from several threads."""

    def sha256(self) -> str:
        """Hash the open file, whatever else reads it meanwhile."""
        found, start = hashlib.sha256(), 0
        with refusing(self.path):
            while piece := os.pread(self._file.fileno(), 1 << 20, start):
                found.update(piece)
                start += len(piece)
        return found.hexdigest()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_archive(path: Path) -> Archive:
    """Open a file of tensors in the format that its first bytes say; anything else is refused by what it is."""
    from vitrail.checkpoint.archives.npz import NpzArchive  # the other formats build on this file
    from vitrail.checkpoint.archives.pth import LEGACY, PthArchive, zip_members
    from vitrail.checkpoint.archives.sharded import ShardedArchive

    kind: Callable[[Path, BinaryIO], Archive] | None = None
    what: str | None = None
    with refusing(path), ExitStack() as opened:
        file = opened.enter_context(open_regular(path))
        start = os.pread(file.fileno(), 512, 0)
        if start[:2] == b"PK":
            members = zip_members(file)
            what, pickled = name_zip(members), any(name.endswith(".pkl") for name in members)
            kind = None if what else PthArchive if pickled else NpzArchive
        elif start.startswith(LEGACY):
            kind = PthArchive
        elif start.lstrip()[:1] == b"{" and int.from_bytes(start[:8], "little") > os.fstat(file.fileno()).st_size:
            kind = ShardedArchive
        elif start[8:9] == b"{":
            kind = SafeArchive
        if kind is not None:
            archive = kind(path, file)
            opened.pop_all()  # the archive closes it
            return archive
    what = what or name_file(start)
    what = f"it looks like {what}" if what else f"it starts with {start[:8]!r}" if start else "it is empty"
    raise CheckpointError(
        f"{path} is no file of weights: {what}. "
        "Expected .npz, safetensors (or an index of its shards), or .pth of torch.save."
    )


class Headers:
    """Names and shapes of a file under one prefix, with an answer or a refusal to each question."""

    def __init__(self, entries: Mapping[str, Entry], prefix: str) -> None:
        self.prefix = prefix
        self.shapes = {
            name.removeprefix(prefix): entry.shape for name, entry in entries.items() if name.startswith(prefix)
        }
        self.everything = {name: entry.shape for name, entry in entries.items()}
        self.outside = tuple(sorted(name for name in entries if not name.startswith(prefix)))

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def shape(self, name: str, axes: int) -> Shape:
        """Give the shape of a tensor that must be there with this many axes."""
        if name not in self.shapes:
            raise CheckpointError(f"the file lacks {self.prefix + name!r}.")
        if len(self.shapes[name]) != axes:
            raise CheckpointError(f"{self.prefix + name!r} must have {axes} axes; its shape is {self.shapes[name]}.")
        return self.shapes[name]

    def rows(self, name: str) -> int | None:
        """Count the rows of a matrix, torch's outputs; nothing where it is not there."""
        return self.shape(name, 2)[0] if name in self else None

    def patches(self, name: str, *, flax: bool = False) -> Shape:
        """Give the width, channels and side of square patches, of a convolution in torch's axes or in Flax's."""
        shape = self.shape(name, 4)
        width, channels, patch, across = (shape[3], shape[2], *shape[:2]) if flax else shape
        if patch != across:
            raise CheckpointError(f"patches must be square; {name!r} has {patch}x{across}.")
        return width, channels, patch

    def refuse(self, strangers: Mapping[str, str], why: str) -> None:
        """Refuse tensors with these marks in their names, each of which is something that no model here has."""
        for mark, what in strangers.items():
            if name := next((name for name in self.shapes if mark in name), None):
                raise CheckpointError(f"{self.prefix + name!r}: the file's model has {what}, {why}.")

    def count(self, prefix: str, what: str, *, start: int = 0, end: str = "/", most: int = DEEPEST) -> int:
        """Count numbered parts, such as encoderblock_0, encoderblock_1; none may be missing."""
        pattern = re.compile(re.escape(prefix) + r"(\d{1,6})" + re.escape(end))
        found = sorted({int(match[1]) for name in self.shapes if (match := pattern.match(name))})
        if found != list(range(start, start + len(found))) or not 0 < len(found) <= most:
            some = f"{found[:8]}" + (" and more" if len(found) > 8 else "")
            raise CheckpointError(
                f"the file's {what}s {prefix}* must be numbered from {start} without a gap; got {some}."
            )
        return len(found)

    def units(self, stage: str, unit: str, *, start: int = 0, end: str = "/") -> tuple[int, ...]:
        """Count the units of every stage of a ResNet."""
        stages = range(start, start + self.count(stage, "stage", start=start, end=end, most=16))
        return tuple(self.count(f"{stage}{number}{unit}", "unit", start=start, end=end) for number in stages)

    def take(self, *prefixes: str) -> tuple[str, ...]:
        """Take away the tensors that begin so, which no model needs, and give their names."""
        taken = sorted(name for name in self.shapes if name.startswith(prefixes))
        for name in taken:
            del self.shapes[name]
        return tuple(self.prefix + name for name in taken)


def check_count(path: Path, count: int) -> None:
    """Refuse a file of more tensors than any model has, before anything is done with each."""
    if count > MOST_TENSORS:
        raise CheckpointError(f"{path} holds {count:,} tensors; a model has at most {MOST_TENSORS:,}. It was not read.")


def unwrapped(named: Mapping[str, Value]) -> dict[str, Value]:
    """Name tensors as the module does that torch wrapped in others; as they are where two would have one name."""
    found = {WRAPPING.sub("", name): value for name, value in named.items()}
    return found if len(found) == len(named) else dict(named)


def check_names(path: Path, names: Iterable[str]) -> None:
    """Refuse names that are as long as no tensor's is: they would be printed, logged and written."""
    if long := next((name for name in names if len(name) > LONGEST_NAME), None):
        raise CheckpointError(
            f"{path} holds something under a name of {len(long):,} signs, {long[:40]!r}...; expected at most "
            f"{LONGEST_NAME:,}. It was not read."
        )


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, into: np.ndarray, *, skip: int = 0) -> None:
    """Fill bytes from a member of a zip archive, a few megabytes at a time; one at a time, for zipfile is one file."""
    done = 0
    with archive.open(info) as member:
        member.seek(skip)
        while piece := member.read(1 << 22):  # reaching the end is what checks the sum
            if done + len(piece) > len(into):
                raise EOFError("it is longer than it says")
            into[done : done + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
            done += len(piece)
    if done < len(into):
        raise EOFError("it ends too early")


def read_at(number: int, start: int, into: np.ndarray) -> None:
    """Fill bytes from an open file, from an offset on; safe in threads."""
    done = 0
    while done < len(into):
        count = os.preadv(number, [into[done:].data], start + done)
        if not count:
            raise EOFError("it ends too early")
        done += count


def damaged(path: Path, why: object) -> CheckpointError:
    """Say that a file is not what it was when it was written."""
    return CheckpointError(f"{path} is damaged: {shortened(str(why), 400)}. Copy or download it again.")


def room_for(path: Path, name: str, entry: Entry) -> Tensor:
    """Make a tensor to be filled, or refuse the file where this machine's memory is too small for it."""
    assert isinstance(entry.dtype, torch.dtype)
    try:
        return torch.empty(prod(entry.shape), dtype=entry.dtype)
    except (RuntimeError, MemoryError) as error:
        size = prod(entry.shape) * entry.dtype.itemsize
        raise CheckpointError(
            f"{path}: {name!r} takes {size:,} bytes of memory, more than there are. Use a machine with more, or close "
            "other programs."
        ) from error


class SafeArchive(Archive):
    """One safetensors file. The library checks its header; a tensor's bytes are read into memory of their own."""

    kind = "safetensors"

    def __init__(self, path: Path, file: BinaryIO, precisions: Mapping[str, torch.dtype] = PRECISIONS) -> None:
        from safetensors import SafetensorError, safe_open

        self._number = file.fileno()
        length = int.from_bytes(os.pread(self._number, 8, 0), "little")
        if length > min(LARGEST_HEADER, os.fstat(self._number).st_size):
            raise damaged(path, f"its header would have {length:,} bytes")
        with refusing(path):
            try:
                with safe_open(path, framework="pt") as checked:
                    names = set(checked.keys())
            except SafetensorError as error:
                raise damaged(path, error) from error
        try:
            header = parse_json(os.pread(self._number, length, 8))
        except ValueError as error:  # of numbers that the library takes, such as one of 5,000 digits
            raise damaged(path, f"its header: {error}") from error
        notes = header.pop("__metadata__", None) or {}
        if header.keys() != names:
            raise damaged(path, "its header names tensors twice")
        check_count(path, len(names))
        header = unwrapped(header)
        self._starts = {name: 8 + length + said["data_offsets"][0] for name, said in header.items()}
        entries = {
            name: Entry(tuple(said["shape"]), precisions.get(said["dtype"]) or str(said["dtype"]))
            for name, said in header.items()
        }
        super().__init__(path, file, entries, notes=notes)

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        entry = self.entries[name]
        tensor = room_for(self.path, name, entry)
        try:
            read_at(self._number, self._starts[name], tensor.view(torch.uint8).numpy())
        except EOFError as error:
            raise damaged(self.path, f"it ends inside {name!r}") from error
        return tensor.reshape(entry.shape)


def read_safetensors(
    path: Path, precisions: Mapping[str, torch.dtype] = PRECISIONS
) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """Read every tensor of a file, and its notes."""
    with refusing(path), open_regular(path) as file:
        archive = SafeArchive(path, file, precisions)
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
