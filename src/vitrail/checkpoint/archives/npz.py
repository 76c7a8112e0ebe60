"""`.npz` files: arrays by name, read one by one, never a pickle; bfloat16 is stored as bytes without a type (V2)."""

import os
import threading
import zipfile
from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from vitrail.checkpoint.archives.base import DAMAGE, Archive, Entry, Shape, check_count, damaged, read_member
from vitrail.errors import CheckpointError
from vitrail.files import replacing
from vitrail.files.reading import LARGEST_GROWTH, LARGEST_HEADER, SMALL, array_header

FLOATS = {"f2": torch.float16, "f4": torch.float32, "f8": torch.float64}


class Member(NamedTuple):
    """Where an array lies in the archive, and how."""

    info: zipfile.ZipInfo
    shape: Shape
    dtype: np.dtype
    columns_first: bool
    header: int  # bytes before the numbers


class NpzArchive(Archive):
    """An `.npz` file as numpy.savez or numpy.savez_compressed writes it."""

    kind = "npz"

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._lock = threading.Lock()
        try:
            self._zip = zipfile.ZipFile(file)
        except DAMAGE as error:
            raise damaged(path, error) from error
        self._members = dict(_members(path, self._zip))
        entries = {name: Entry(member.shape, _precision(member.dtype)) for name, member in self._members.items()}
        super().__init__(path, file, entries)

    def read(self, name: str) -> Tensor:
        """Read one array; its checksum in the archive is verified on the way."""
        member = self._members[name]
        array = np.empty(prod(member.shape), dtype=member.dtype)
        try:
            with self._lock:
                read_member(self._zip, member.info, array.view(np.uint8), skip=member.header)
        except DAMAGE as error:
            raise damaged(self.path, f"{name!r}: {error}") from error
        shaped = array.reshape(member.shape, order="F" if member.columns_first else "C")
        if _precision(member.dtype) is torch.bfloat16:
            return torch.from_numpy(np.ascontiguousarray(shaped.view(np.int16))).view(torch.bfloat16)
        return torch.from_numpy(np.ascontiguousarray(shaped, dtype=member.dtype.newbyteorder("=")))


def write_npz(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write arrays as numpy.savez does, to a temporary name that is renamed last."""
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, tensor in tensors.items():
            whole = tensor.detach().cpu().contiguous()
            array = whole.view(torch.int16).numpy().view("V2") if whole.dtype is torch.bfloat16 else whole.numpy()
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                npy.write_array(file, array, allow_pickle=False)


def _members(path: Path, archive: zipfile.ZipFile) -> list[tuple[str, Member]]:
    infos = archive.infolist()
    if strangers := [info.filename for info in infos if not info.filename.endswith(".npy")]:
        raise CheckpointError(
            f"{path} is a zip archive but not an .npz file: it holds {strangers[0]!r}. "
            "Expected arrays alone, as numpy.savez writes."
        )
    if not infos:
        raise CheckpointError(f"{path} holds no arrays.")
    names = [info.filename.removesuffix(".npy") for info in infos]
    if len(set(names)) < len(names):
        raise damaged(path, f"it holds {Counter(names).most_common(1)[0][0]!r} twice")
    check_count(path, len(names))
    size, whole = os.path.getsize(path), sum(info.file_size for info in infos)
    if whole > max(SMALL, LARGEST_GROWTH * size):
        raise CheckpointError(
            f"{path} has {size:,} bytes and says it holds {whole:,}: weights do not shrink so far, a zip bomb does. "
            "It was not read. If it is yours, write it again with numpy.savez."
        )
    return [(name, _member(path, archive, info)) for name, info in zip(names, infos, strict=True)]


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    name = info.filename.removesuffix(".npy")
    try:
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("it is compressed otherwise than numpy does")
        with archive.open(info) as file:
            shape, columns_first, dtype, header = array_header(file.read(LARGEST_HEADER))
    except DAMAGE as error:
        raise damaged(path, f"{name!r}: {str(error)[:200]}") from error
    if dtype.hasobject:
        raise CheckpointError(
            f"{path} holds more than plain arrays: {name!r} is pickled, and a pickle can run anything. "
            "Where you trust it, load it with numpy and save its arrays alone."
        )
    if not all(isinstance(side, int) and 0 <= side < 2**40 for side in shape):
        raise damaged(path, f"{name!r} has sides that no array has")
    if header + prod(shape) * dtype.itemsize != info.file_size:
        raise damaged(path, f"{name!r} has {info.file_size - header:,} bytes, not those of {shape} in {dtype}")
    return Member(info, shape, dtype, columns_first, header)


def _precision(dtype: np.dtype) -> torch.dtype | str:
    if dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None:
        return torch.bfloat16
    return FLOATS.get(dtype.str[1:], str(dtype))
