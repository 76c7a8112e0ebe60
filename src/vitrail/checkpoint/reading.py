"""Open a file of weights, recognise its model, and read it strictly: no tensor missing, none left over, all finite."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.adapt import Weights
from vitrail.checkpoint.archives.base import Archive, SafeArchive
from vitrail.checkpoint.archives.npz import NpzArchive
from vitrail.checkpoint.archives.pth import LEGACY, PthArchive, is_pickle
from vitrail.checkpoint.archives.sharded import ShardedArchive
from vitrail.checkpoint.layouts import LAYOUTS
from vitrail.checkpoint.layouts.base import FileHints, Found, Headers, Layout, Row
from vitrail.checkpoint.run_folder import Location
from vitrail.config import Provenance
from vitrail.errors import CheckpointError, ConfigError, ShapeError

WORKERS = min(4, os.cpu_count() or 1)
# What files begin with that people take for weights.
OTHER_KINDS = {
    b"\x93NUMPY": "a single array (.npy)",
    b"\x80": "a pickle, but not one of torch.save; a pickle can run anything, so it was not opened",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "gzip; unpack it first",
    b"version https://": "the pointer of a file in Git LFS; fetch the file itself",
    b"<": "a web page or XML",
}


def open_archive(path: Path) -> Archive:
    """Open a file of tensors in the format that its first bytes say; anything else is refused by what it is."""
    try:
        if not path.is_file():
            raise CheckpointError(f"{path} is no plain file. Give the path of a file.")
        file = path.open("rb")
        try:
            start = os.pread(file.fileno(), 16, 0)
            if start[:2] == b"PK":
                return PthArchive(path, file) if is_pickle(file) else NpzArchive(path, file)
            if start.startswith(LEGACY):
                return PthArchive(path, file)
            if start.lstrip()[:1] == b"{" and int.from_bytes(start[:8], "little") > path.stat().st_size:
                file.close()
                return ShardedArchive(path)
            if start[8:9] == b"{":
                return SafeArchive(path, file)
        except BaseException:
            file.close()
            raise
        file.close()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}.") from error
    kind = next((f"it looks like {kind}" for magic, kind in OTHER_KINDS.items() if start.startswith(magic)), None)
    raise CheckpointError(
        f"{path} is no file of weights: {kind or (f'it starts with {start[:8]!r}' if start else 'it is empty')}. "
        "Expected .npz, safetensors (or an index of its shards), or .pth of torch.save."
    )


@dataclass(frozen=True, kw_only=True)
class Recognized:
    """An open file whose layout and model are known."""

    location: Location
    archive: Archive
    layout: Layout
    found: Found

    def check(self) -> list[Row]:
        """Give the layout's rows of this model, of which the file must have every tensor and no other."""
        rows = list(self.layout.rows(self.found.config, self.found.dialect))
        wanted = {name: row.shape for row in rows for name in row.theirs}
        ignored = set(self.found.left_out)
        given = {name: entry.shape for name, entry in self.archive.entries.items() if name not in ignored}
        if difference := compare(wanted, given):
            raise CheckpointError(f"the file does not fit its own architecture: {difference}.")
        for name in wanted:
            if isinstance(self.archive.entries[name].dtype, str):
                raise CheckpointError(
                    f"expected floating-point weights; {name!r} is {self.archive.entries[name].dtype}."
                )
        return rows

    @property
    def provenance(self) -> Provenance:
        """Where the weights come from, and what was inferred and left out."""
        return Provenance(
            source=self.location.source,
            layout=self.layout.name,
            container=self.archive.kind,
            dialect=self.found.dialect,
            inferred=self.found.inferred,
            left_out=(*self.found.left_out, *self.archive.strangers),
        )


def recognize(archive: Archive, hints: FileHints, documents: Mapping[str, Any]) -> tuple[Layout, Found]:
    """Find the layout of a file and what model it holds, by its headers and the documents beside it."""
    documents = {**documents, "notes": archive.notes}
    for layout in LAYOUTS.values():
        prefix = layout.recognize(archive.entries)
        if prefix is None:
            continue
        try:
            found = layout.infer(Headers(archive.entries, prefix), hints, documents)
        except (ConfigError, ShapeError) as error:
            raise CheckpointError(f"the file's shapes make no model: {error}") from error
        return layout, found
    some = ", ".join(sorted(archive.entries)[:4])
    raise CheckpointError(
        "the file is no ViT, hybrid or BiT in any layout that is known: "
        f"{', '.join(layout.title for layout in LAYOUTS.values())}; got {len(archive.entries)} tensors such as {some}."
    )


def read_weights(opened: Recognized, dtype: torch.dtype | None) -> Weights:
    """Read every weight in our names and axes, in this precision or in the file's own."""
    rows = opened.check()
    order = [row.ours for row in rows]
    rows.sort(key=lambda row: row.theirs)  # so that stacked layers are read once
    if any(row.layer is not None for row in rows):
        kept = lru_cache(maxsize=3)(opened.archive.read)  # query, key and value of all layers
        read = {row.ours: read_row(row, kept, dtype) for row in rows}
    else:
        with ThreadPoolExecutor(WORKERS) as workers:
            tensors = workers.map(lambda row: read_row(row, opened.archive.read, dtype), rows)
            read = {row.ours: tensor for row, tensor in zip(rows, tensors, strict=True)}
    for row in rows:  # here, where torch has all its threads, and not in each worker
        if not is_finite(read[row.ours]):
            raise _blame(row, opened.archive, dtype)
    return {name: read[name] for name in order}


def read_row(row: Row, read: Callable[[str], Tensor], dtype: torch.dtype | None) -> Tensor:
    """Read one weight in our axes and in this precision."""
    parts = [read(name) if row.layer is None else read(name)[row.layer] for name in row.theirs]
    made = row.codec.read(*parts)
    made = made.to(dtype or made.dtype).contiguous()
    return made if row.layer is None else made.clone()  # a layer is a view of all of them


def _blame(row: Row, archive: Archive, dtype: torch.dtype | None) -> CheckpointError:
    """Find which of the file's tensors has numbers that are none, or that this precision cannot hold."""
    for name in row.theirs:
        if not is_finite(archive.read(name)):
            return CheckpointError(
                f"{name!r} holds numbers that are not finite (NaN or infinity): the run that wrote it diverged, or the "
                "file is damaged. Take an earlier checkpoint."
            )
    return CheckpointError(f"{row.theirs[0]!r} holds numbers too large for {dtype}. Ask for another precision.")


def is_finite(tensor: Tensor) -> bool:
    """Tell whether every number is one."""
    if tensor.numel() == 0:
        return True
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def compare(wanted: dict[str, tuple[int, ...]], given: dict[str, tuple[int, ...]]) -> str:
    """List all that is missing, unexpected or of another shape; nothing where all fits."""
    parts = {
        "missing": sorted(wanted.keys() - given.keys()),
        "unexpected": sorted(given.keys() - wanted.keys()),
        "of another shape": [
            f"{name} is {given[name]}, not {shape}" for name, shape in wanted.items() if given.get(name, shape) != shape
        ],
    }
    return "; ".join(f"{len(found)} {what}: {', '.join(found)}" for what, found in parts.items() if found)
