"""Read `.npz` files: arrays by name, never a pickle."""

import os
import zipfile
from pathlib import Path

import numpy as np

from vitrail.errors import CheckpointError

Arrays = dict[str, np.ndarray]


def read_npz(path: str | os.PathLike[str]) -> Arrays:
    """Read every array of an `.npz` file; anything else is refused by name."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise CheckpointError(f"expected the path of an .npz file; got {path!r}.")
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"there is no file {path}. Check the path.")
    if path.is_dir():
        raise CheckpointError(f"expected an .npz file; {path} is a folder.")
    try:
        with zipfile.ZipFile(path) as archive:
            strangers = [name for name in archive.namelist() if not name.endswith(".npy")]
    except zipfile.BadZipFile as error:
        raise CheckpointError(
            f"{path} is not an .npz file: {_looks_like(path)}. Expected a zip archive of arrays as numpy.savez writes."
        ) from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}.") from error
    if strangers:
        raise CheckpointError(
            f"{path} is a zip archive but not an .npz file: it holds {strangers[0]!r}. "
            "Expected arrays alone, as numpy.savez writes."
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # damage shows itself in many types, from zlib's to the tokenizer's
        raise CheckpointError(f"{path} is damaged or holds more than plain arrays: {error}.") from error
    if not arrays:
        raise CheckpointError(f"{path} holds no arrays.")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise CheckpointError(f"{path} is damaged: {name!r} is no array.")
        if array.dtype.kind != "f":
            raise CheckpointError(f"{path}: expected floating-point weights; {name!r} is {array.dtype}.")
    return arrays


def _looks_like(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(8)
    if not start:
        return "it is empty"
    kinds = {b"\x93NUMPY": "a single array (.npy)", b"\x80": "a pickle", b"PK": "a cut-off zip archive"}
    for magic, kind in kinds.items():
        if start.startswith(magic):
            return f"it looks like {kind}"
    return f"it starts with {start!r}"
