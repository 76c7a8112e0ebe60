"""Open weights, recognise them, and read them strictly: every tensor is used, none is missing, all are finite."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from vitrail.checkpoint.adapt import Weights
from vitrail.checkpoint.archives import Archive, open_archive
from vitrail.checkpoint.layouts import Asked, Found, Layout, Row, recognize
from vitrail.checkpoint.place import RUN_FILES, Place, find
from vitrail.config import Provenance
from vitrail.errors import CheckpointError
from vitrail.files import verify_sums

WORKERS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An open checkpoint: where it lies, its file, its layout and what it holds."""

    place: Place
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
            source=self.place.source,
            layout=self.layout.name,
            container=self.archive.kind,
            dialect=self.found.dialect,
            inferred=self.found.inferred,
            left_out=(*self.found.left_out, *self.archive.strangers),
        )


@contextmanager
def opening(name: object, asked: Asked) -> Iterator[Opened]:
    """Open what a name means and recognise it, its sums checked meanwhile."""
    with recognizing(name, asked) as opened, verifying(opened.place):
        yield opened


@contextmanager
def recognizing(name: object, asked: Asked) -> Iterator[Opened]:
    """Open what a name means by its headers alone; every refusal inside says which file it is about."""
    place = find(name)
    with saying(place):
        documents = dict(place.documents)
        with open_archive(place.weights) as archive:
            documents["notes"] = archive.notes
            layout, found = recognize(archive, asked, documents)
            yield Opened(place=place, archive=archive, layout=layout, found=found)


@contextmanager
def saying(place: Place) -> Iterator[None]:
    """Put the file's name before a refusal that lacks it."""
    try:
        yield
    except CheckpointError as error:
        if str(place.weights) in str(error) or (place.run is not None and str(place.run) in str(error)):
            raise
        raise CheckpointError(f"{place.weights}: {error}") from error


@contextmanager
def verifying(place: Place) -> Iterator[None]:
    """Check a run folder's sums while its weights are read; a refusal of the sums comes before any other."""
    if place.run is None:
        yield
        return
    with ThreadPoolExecutor(1) as side:
        sums = side.submit(verify_sums, place.run, known=RUN_FILES)
        try:
            yield
        finally:
            sums.result()


def read_weights(opened: Opened, dtype: torch.dtype | None) -> Weights:
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
