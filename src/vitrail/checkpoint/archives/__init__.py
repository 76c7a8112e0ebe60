"""Files of named tensors, whatever their format, which their first bytes say."""

from pathlib import Path

from vitrail.checkpoint.archives.base import Archive, Entry, Shape
from vitrail.checkpoint.archives.npz import NpzArchive, write_npz
from vitrail.checkpoint.archives.pth import PthArchive, is_pickle, write_pth
from vitrail.checkpoint.archives.safe import SafeArchive, write_safetensors
from vitrail.checkpoint.archives.sharded import ShardedArchive
from vitrail.errors import CheckpointError

__all__ = ["Archive", "Entry", "Shape", "open_archive", "write_npz", "write_pth", "write_safetensors"]


def open_archive(path: Path) -> Archive:
    """Open a file of tensors; anything else is refused by what it is."""
    try:
        if not path.is_file():
            raise CheckpointError(f"{path} is no plain file. Give the path of a file.")
        with path.open("rb") as file:
            start = file.read(16)
        if is_pickle(path):
            return PthArchive(path)
        if start[:2] == b"PK":
            return NpzArchive(path)
        if start.lstrip()[:1] == b"{" and int.from_bytes(start[:8], "little") > path.stat().st_size:
            return ShardedArchive(path)
        if start[8:9] == b"{":
            return SafeArchive(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}.") from error
    raise CheckpointError(
        f"{path} is no file of weights: {_looks_like(start)}. "
        "Expected .npz, safetensors (or an index of its shards), or .pth of torch.save."
    )


def _looks_like(start: bytes) -> str:
    if not start:
        return "it is empty"
    kinds = {
        b"\x93NUMPY": "a single array (.npy)",
        b"\x80": "a pickle, but not one of torch.save; a pickle can run anything, so it was not opened",
        b"\x89HDF": "an HDF5 file",
        b"\x1f\x8b": "gzip; unpack it first",
        b"version https://": "the pointer of a file in Git LFS; fetch the file itself",
        b"<": "a web page or XML",
    }
    for magic, kind in kinds.items():
        if start.startswith(magic):
            return f"it looks like {kind}"
    return f"it starts with {start[:8]!r}"
