"""Several files with an index: shards of safetensors, or of torch.save."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from vitrail.checkpoint.archives.base import Archive, SafeArchive, damaged, unwrapped
from vitrail.checkpoint.archives.pth import PthArchive, is_pickle
from vitrail.errors import CheckpointError
from vitrail.files import open_regular, parse_json

LARGEST_INDEX = 64 * 2**20  # bytes


class ShardedArchive(Archive):
    """Several files with an index that says which holds which tensor."""

    def __init__(self, index: Path, file: BinaryIO) -> None:
        shard_of, shards = unwrapped(_read_index(index, file)), dict[str, Archive]()
        with ExitStack() as opened:
            for shard in sorted(set(shard_of.values())):
                path = index.parent / shard
                if not path.is_file():
                    raise CheckpointError(
                        f"{index} names {shard!r}, which is not beside it. Download all of its files."
                    )
                part = opened.enter_context(open_regular(path))
                shards[shard] = (PthArchive if is_pickle(part) else SafeArchive)(path, part)
            held = {name: shard for shard, archive in shards.items() for name in archive.entries}
            if wrong := sorted(name for name in shard_of.keys() | held.keys() if shard_of.get(name) != held.get(name)):
                raise damaged(index, f"it and its files disagree on {len(wrong)} tensors, such as {wrong[0]!r}")
            self._parts = opened.pop_all()
        self._holders = {name: shards[shard] for name, shard in shard_of.items()}
        super().__init__(index, file, {name: archive.entries[name] for name, archive in self._holders.items()})
        self.paths = (index, *(archive.path for archive in shards.values()))
        self.kind = next(iter(shards.values())).kind

    def read(self, name: str) -> Tensor:
        """Read one tensor from the file that holds it."""
        return self._holders[name].read(name)

    def close(self) -> None:
        """Close every file."""
        super().close()
        self._parts.close()


def _read_index(index: Path, file: BinaryIO) -> dict[str, str]:
    try:
        if os.fstat(file.fileno()).st_size > LARGEST_INDEX:
            raise damaged(index, "it is too large for an index")
        document = parse_json(file.read())
        shard_of = document["weight_map"]
        fits = all(isinstance(name, str) and isinstance(shard, str) for name, shard in shard_of.items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{index} is no index of shards: expected a JSON object with a 'weight_map' from tensor to file. "
            "Give the index that came with the shards, such as model.safetensors.index.json."
        ) from error
    if not fits or not shard_of:
        raise CheckpointError(f"{index} is no index of shards: its 'weight_map' must name a file for each tensor.")
    for shard in set(shard_of.values()):
        if shard in ("", ".", "..") or Path(shard).name != shard or "\\" in shard:
            raise CheckpointError(
                f"{index} names the file {shard!r}: shards lie beside their index. It was not opened."
            )
    return shard_of
