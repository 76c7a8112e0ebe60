"""Several files with an index: shards of safetensors, or of torch.save."""

import json
from contextlib import ExitStack
from pathlib import Path

from torch import Tensor

from vitrail.checkpoint.archives.base import Archive, SafeArchive, damaged
from vitrail.checkpoint.archives.pth import PthArchive, is_pickle
from vitrail.errors import CheckpointError

LARGEST_INDEX = 64 * 2**20  # bytes


class ShardedArchive(Archive):
    """Several files with an index that says which holds which tensor."""

    def __init__(self, index: Path) -> None:
        shard_of = _read_index(index)
        self._shards: dict[str, Archive] = {}
        with ExitStack() as opened:
            for shard in sorted(set(shard_of.values())):
                path = index.parent / shard
                if not path.is_file():
                    raise CheckpointError(
                        f"{index} names {shard!r}, which is not beside it. Download all of its files."
                    )
                self._shards[shard] = opened.enter_context(_open_shard(path))
            self._close = opened.pop_all()
        held = {name: shard for shard, archive in self._shards.items() for name in archive.entries}
        if wrong := sorted(name for name in shard_of.keys() | held.keys() if shard_of.get(name) != held.get(name)):
            self.close()
            raise damaged(index, f"it and its files disagree on {len(wrong)} tensors, such as {wrong[0]!r}")
        self._shard_of = shard_of
        self.paths = tuple(archive.path for archive in self._shards.values())
        self.kind = next(iter(self._shards.values())).kind
        entries = {name: self._shards[shard].entries[name] for name, shard in shard_of.items()}
        super().__init__(index, entries, notes={})

    def read(self, name: str) -> Tensor:
        """Read one tensor from the file that holds it."""
        return self._shards[self._shard_of[name]].read(name)

    def close(self) -> None:
        """Close every file."""
        self._close.close()


def _open_shard(path: Path) -> Archive:
    file = path.open("rb")
    try:
        return PthArchive(path, file) if is_pickle(file) else SafeArchive(path, file)
    except BaseException:
        file.close()
        raise


def _read_index(index: Path) -> dict[str, str]:
    try:
        if index.stat().st_size > LARGEST_INDEX:
            raise damaged(index, "it is too large for an index")
        document = json.loads(index.read_text(encoding="utf-8"))
        shard_of = document["weight_map"]
        fits = all(isinstance(name, str) and isinstance(shard, str) for name, shard in shard_of.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
