"""A file's tensors, read by the rows of its layout: in our names and axes, in one precision, all of them finite."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import torch
from torch import Tensor

from vitrail.checkpoint.adapt import Weights
from vitrail.checkpoint.archives.base import Archive
from vitrail.checkpoint.layouts.base import Row
from vitrail.errors import CheckpointError

WORKERS = min(4, os.cpu_count() or 1)


def read_weights(rows: list[Row], archive: Archive, dtype: torch.dtype | None) -> Weights:
    """Read every weight of these rows in our names and axes, in this precision or in the file's own."""
    order = [row.ours for row in rows]
    rows.sort(key=lambda row: row.theirs)  # so that stacked layers are read once
    if any(row.layer is not None for row in rows):
        kept = lru_cache(maxsize=3)(archive.read)  # query, key and value of all layers
        read = {row.ours: read_row(row, kept, dtype) for row in rows}
    else:
        with ThreadPoolExecutor(WORKERS) as workers:
            tensors = workers.map(lambda row: read_row(row, archive.read, dtype), rows)
            read = {row.ours: tensor for row, tensor in zip(rows, tensors, strict=True)}
    for row in rows:  # here, where torch has all its threads, and not in each worker
        if not is_finite(read[row.ours]):
            raise _blame(row, archive, dtype)
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
