"""A file's names for `vitrail.describe`: proposed, settled on images and outputs, and written down."""

import os
from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoint.archives.base import Archive
from vitrail.checkpoint.cards import find_normalization
from vitrail.checkpoint.description import Arrays, Proposal
from vitrail.checkpoint.proposing.propose import propose, title_of
from vitrail.checkpoint.proposing.settle import settle
from vitrail.config.name_tables import NamesTable
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import check_writable, home_path, open_regular, write_bytes
from vitrail.files.reading import array_header

HEADER = 1 << 16
LARGEST = 1 << 32  # bytes of images


def find_names(
    archive: Archive,
    table: NamesTable | None,
    check: tuple[Arrays, Arrays] | None,
    progress: Callable[[int, int], object],
) -> Proposal:
    """Take a table, or propose one; settle what is open in it where there are images and outputs."""
    before = find_normalization(archive.entries) or ()
    entries = {name: entry for name, entry in archive.entries.items() if name not in before}
    found = Proposal(table=table, why={}) if table is not None else propose(entries)
    if check is None:
        return found
    if not isinstance(check, tuple | list) or len(check) != 2:
        raise ConfigError("check must be two arrays or .npy files: images B C H W, and the outputs of their model.")
    images, outputs = map(read_array, check)
    if found.table is None:
        return found
    settled = settle(archive, found.table, images, outputs, progress)
    return replace(found, table=settled.table, check=str(settled), agrees=settled.agrees)


def read_array(source: Arrays) -> Tensor:
    """Read numbers from an .npy file, or take those in memory."""
    if isinstance(source, Tensor):
        return source.detach().cpu()
    if isinstance(source, np.ndarray):
        if source.dtype.kind not in "fiu":
            raise ConfigError(f"expected an array of numbers; got {source.dtype}.")
        return torch.from_numpy(np.ascontiguousarray(source))
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(f"expected an .npy file or an array; got {type(source).__name__}.")
    path = home_path(os.fspath(source))
    try:
        with open_regular(path, most=LARGEST) as file:
            size = os.fstat(file.fileno()).st_size
            header = array_header(file.read(HEADER))
            if header.dtype.kind not in "fiu" or min(header.shape, default=1) < 0:
                raise ValueError(f"it holds {header.dtype}, not numbers")
            count = prod(header.shape)
            if header.start + count * header.dtype.itemsize != size:
                raise ValueError(f"its {size:,} bytes are not those of {header.shape}")
            file.seek(header.start)
            numbers = np.frombuffer(file.read(), dtype=header.dtype)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no array that numpy.save wrote: {error}.") from error
    shaped = numbers.reshape(header.shape, order="F" if header.columns_first else "C")
    return torch.from_numpy(np.ascontiguousarray(shaped, dtype=shaped.dtype.newbyteorder("=")).copy())


def write_names(found: Proposal, path: str | os.PathLike[str], source: str, *, overwrite: bool = False) -> Path:
    """Write the table where there is one; nothing is replaced unless it may be."""
    target = check_target(path, overwrite=overwrite)
    if found.table is None:
        raise CheckpointError(f"there is no table of names to write: {found.reason}.")
    write_bytes(target, found.text(title_of(source)).encode())
    return target


def check_target(path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """Refuse a name that a table cannot be written under, before any work."""
    if not isinstance(path, str | os.PathLike) or Path(os.fspath(path)).suffix != ".toml":
        raise ConfigError(f"a table of names is a file that ends in .toml; got {path!r}.")
    target = home_path(os.fspath(path))
    if target.exists() and not overwrite:
        raise ConfigError(f"{target} exists already. Choose another name, or give overwrite=True.")
    check_writable(target)
    return target
