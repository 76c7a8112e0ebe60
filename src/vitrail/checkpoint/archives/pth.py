"""`.pth` files of torch.save, of today (a zip archive) and of before version 1.6: tensors alone, nothing is unpickled.

What the pickle says is followed on symbols (`pickles`); the numbers are then read from the file, where they must be.
"""

import io
import os
import pickle
import threading
import zipfile
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoint.archives.base import (
    CODES,
    DAMAGE,
    Archive,
    Entry,
    check_count,
    damaged,
    read_at,
    read_member,
    unwrapped,
)
from vitrail.checkpoint.archives.foreign import TENSORS, name_model
from vitrail.checkpoint.archives.pickles import Opaque, Refused, Storage, TensorRecord, follow
from vitrail.checkpoint.archives.unwrap import unwrap
from vitrail.errors import CheckpointError, shortened
from vitrail.files import replacing

STORAGES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64,
    # Of numbers that no weight is made of:
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
}
LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, 2)  # how torch.save began before version 1.6
LARGEST_PICKLE = 8 * 2**20  # bytes, of the structure without its numbers
SHARED = 4  # how many times its size the tensors of a file may be that share their numbers


class StorageSpan(NamedTuple):
    """Where a storage lies: a member of the zip archive, or a stretch of an old file."""

    size: int  # bytes
    info: zipfile.ZipInfo | None = None
    start: int = 0


class PthArchive(Archive):
    """A state dict, bare or in a trainer's checkpoint, or a whole module's."""

    kind = "pth"

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._lock, self._kept = threading.Lock(), None
        self._number = file.fileno()
        self._zip: zipfile.ZipFile | None = None
        try:
            if os.pread(self._number, 2, 0) == b"PK":
                self._zip = zipfile.ZipFile(file)
                document, self._spans = _look_at_zip(path, self._zip)
            else:
                document, self._spans = _look_at_legacy(path, file)
            tensors, strangers = unwrap(path, document)
            check_count(path, len(tensors))
            self._tensors = unwrapped(tensors)
            for name, record in self._tensors.items():
                _check(path, name, record, self._spans)
            total = sum(prod(record.size) * _itemsize(record.storage) for record in self._tensors.values())
            if total > SHARED * path.stat().st_size + 2**26:
                raise damaged(path, f"its tensors share numbers so that they would take {total:,} bytes")
        except Refused as error:
            if what := name_model([str(error)], TENSORS):
                raise CheckpointError(f"{path} holds {what}.") from error
            raise CheckpointError(
                f"{path} needs {shortened(str(error), 200)} to be read, which is more than tensors: a pickle can run "
                "anything, so it was not opened. Where you trust it, save its weights alone: "
                "torch.save(torch.load(FILE, weights_only=False)['model'], NEW), or take model.state_dict()."
            ) from error
        except DAMAGE as error:
            raise damaged(path, error) from error
        entries = {name: Entry(record.size, _precision(record.storage)) for name, record in self._tensors.items()}
        super().__init__(path, file, entries, strangers=strangers)

    def read(self, name: str) -> Tensor:
        """Read one tensor's numbers; tensors that share them are read together."""
        record = self._tensors[name]
        numbers = self._numbers(record.storage)
        tensor = torch.as_strided(numbers, record.size, record.stride, record.offset)
        whole = tensor.is_contiguous() and tensor.numel() == numbers.numel()
        return tensor if whole else tensor.clone(memory_format=torch.contiguous_format)

    def _numbers(self, storage: Storage) -> Tensor:
        with self._lock:
            if self._kept is not None and self._kept[0] == storage.key:
                return self._kept[1]
        span = self._spans[storage.key]
        buffer = np.empty(span.size, dtype=np.uint8)
        try:
            if span.info is not None and self._zip is not None:
                with self._lock:
                    read_member(self._zip, span.info, buffer)
            else:
                read_at(self._number, span.start, buffer)
        except DAMAGE as error:
            raise damaged(self.path, f"storage {storage.key!r}: {error}") from error
        numbers = torch.from_numpy(buffer).view(STORAGES[storage.kind])
        with self._lock:
            self._kept = (storage.key, numbers)
        return numbers


def is_pickle(file: BinaryIO) -> bool:
    """Tell whether a file is one of torch.save, of today or of before version 1.6."""
    start = os.pread(file.fileno(), len(LEGACY), 0)
    if start[:2] != b"PK":
        return start == LEGACY
    return any(name.endswith(".pkl") for name in zip_members(file))


def zip_members(file: BinaryIO) -> list[str]:
    """List the names in a zip archive; none where it is damaged, which whoever reads it finds."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return []


def write_pth(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a bare state dict, to a temporary name that is renamed last."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        torch.save(ready, temporary)


def _look_at_zip(path: Path, archive: zipfile.ZipFile) -> tuple[Any, dict[str, StorageSpan]]:
    infos = archive.infolist()
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise CheckpointError(f"{path} holds {info.filename!r} compressed, which torch.save never does.")
    if sum(info.file_size for info in infos) > path.stat().st_size:
        raise damaged(path, "its parts are larger than the whole")
    if len({info.filename for info in infos}) < len(infos):
        raise damaged(path, "it holds a part twice")
    pickles = [info for info in infos if info.filename.lower().endswith(".pkl")]
    roots = [info for info in pickles if info.filename.count("/") == 1 and info.filename.endswith("/data.pkl")]
    if len(pickles) != 1 or len(roots) != 1 or roots[0].file_size > LARGEST_PICKLE:
        names = ", ".join(info.filename for info in pickles[:3])
        raise CheckpointError(
            f"{path} is no file of weights: expected one pickle, NAME/data.pkl, of at most {LARGEST_PICKLE:,} bytes; "
            f"got {names}."
        )
    root = roots[0].filename.removesuffix("data.pkl")
    by_name = {info.filename: info for info in infos}
    order = by_name.get(f"{root}byteorder")
    if order is not None and (order.file_size > 16 or archive.read(order) != b"little"):
        raise CheckpointError(f"{path} was written on a big-endian machine. Save it again on a little-endian one.")
    document = follow(io.BytesIO(archive.read(roots[0])))
    start = f"{root}data/"
    spans = {
        name.removeprefix(start): StorageSpan(info.file_size, info=info)
        for name, info in by_name.items()
        if name.startswith(start)
    }
    return document, spans


def _look_at_legacy(path: Path, file: BinaryIO) -> tuple[Any, dict[str, StorageSpan]]:
    """Follow the five pickles of an old file; the numbers come after them, a count before each storage's."""
    file.seek(0)
    limited = file.read(LARGEST_PICKLE)
    stream = io.BytesIO(limited)
    parts = [follow(stream) for _ in range(5)]
    if evil := next((part for part in parts if isinstance(part, Opaque) and not part.attributes), None):
        raise Refused(evil.name)
    _, _, machine, document, keys = parts
    if not isinstance(machine, dict) or machine.get("little_endian") is not True or not isinstance(keys, list):
        raise damaged(path, "it does not begin as torch.save's files of before 1.6 do")
    counts = {storage.key: storage for storage in _storages(document)}
    spans, start, size = {}, stream.tell(), path.stat().st_size
    for name in keys:
        if not isinstance(name, str) or name not in counts or name in spans:
            raise damaged(path, f"it lists a storage {name!r} that no tensor has")
        held = counts[name].length * _itemsize(counts[name])
        said = int.from_bytes(os.pread(file.fileno(), 8, start), "little")
        if said != counts[name].length or start + 8 + held > size:
            raise damaged(path, f"storage {name!r} should have {counts[name].length:,} numbers")
        spans[name] = StorageSpan(held, start=start + 8)
        start += 8 + held
    return document, spans


def _storages(document: object) -> Iterator[Storage]:
    """List the storages of every tensor, once each object."""
    seen: set[int] = set()
    waiting = [document]
    while waiting:
        item = waiting.pop()
        if isinstance(item, TensorRecord):
            yield item.storage
        elif isinstance(item, Storage):
            yield item
        elif isinstance(item, dict | list | tuple | Opaque) and id(item) not in seen:
            seen.add(id(item))
            inside = item.given if isinstance(item, Opaque) else item
            waiting.extend(inside.values() if isinstance(inside, dict) else inside)


def _check(path: Path, name: str, record: TensorRecord, spans: Mapping[str, StorageSpan]) -> None:
    """Refuse a tensor that reaches beyond its numbers, or whose numbers are not there."""
    storage = record.storage
    span = spans.get(storage.key)
    if span is None:
        raise damaged(path, f"the numbers of {name!r} are missing")
    if storage.kind not in STORAGES:
        raise CheckpointError(f"{path}: {name!r} is made of {storage.kind}, which no weight is. Save floats.")
    if span.size != storage.length * _itemsize(storage):
        raise damaged(path, f"{name!r} has {span.size:,} bytes, not those of {storage.length:,} numbers")
    last = record.offset + sum((side - 1) * step for side, step in zip(record.size, record.stride, strict=True))
    if all(record.size) and last >= storage.length:
        raise damaged(path, f"{name!r} reaches beyond its numbers")
    if any(side > 2**40 for side in record.size):
        raise damaged(path, f"{name!r} has the shape {record.size}")


def _itemsize(storage: Storage) -> int:
    return STORAGES.get(storage.kind, torch.uint8).itemsize


def _precision(storage: Storage) -> torch.dtype | str:
    dtype = STORAGES[storage.kind]
    return dtype if dtype in CODES else str(dtype).removeprefix("torch.")
