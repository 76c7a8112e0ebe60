"""Images in tar files on a server, streamed: a shard is fetched when it is reached."""

from collections.abc import Sequence
from urllib.parse import urljoin, urlsplit

import numpy as np
from numpy.typing import NDArray

from vitrail.config.check import whole
from vitrail.data.source import Order, RankShare, Source
from vitrail.data.sources.remote_order import SPAN, ShardOrder
from vitrail.data.sources.shards import Shards, shown
from vitrail.data.sources.tar import TarSource, class_list, expand
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import fetch_if_there, place_of, short_hash


def open_remote(pattern: str, *, unlabeled: bool = False) -> Source:
    """Stream the shards of a pattern; where the server lists no classes all are fetched, since the labels say them."""
    urls = list(expand(pattern))
    try:
        names = classes_of(urls[0])
    except CheckpointError:
        if not all(place_of(url).is_file() for url in urls):
            raise
        names = None  # all were fetched before: no network is needed
    if names is None:
        return TarSource(urls, unlabeled=unlabeled)
    return RemoteShards(urls, class_names=names, unlabeled=unlabeled)


def classes_of(url: str) -> tuple[str, ...] | None:
    """Fetch classes.txt from beside a shard, a name a line; None where the server has none, found by one request."""
    query = urlsplit(url).query
    file = fetch_if_there(urljoin(url, "classes.txt") + (f"?{query}" if query else ""))
    names = None if file is None else class_list(file)
    # Some servers answer with a page of their own to whatever they do not have.
    return None if not names or names[0].startswith("<") else names


class RemoteShards(Source):
    """The images of tar files on a server, none of which is fetched before a step or a question needs it.

    A loader streams them shard by shard; a sample's number is then shard * 2**32 + member. Numbers from 0 on count all
    samples, as in any source (in the first shard both are the same): those, and `labels`, bring all shards. At most
    `keep` shards stay in the cache beyond those in use.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        *,
        class_names: Sequence[str] | None = None,
        unlabeled: bool = False,
        keep: int = 8,
    ) -> None:
        urls = [url for path in ([paths] if isinstance(paths, str) else paths) for url in expand(path)]
        if not urls:
            raise ConfigError("expected one address of a tar file or more; got none.")
        found = classes_of(urls[0]) if class_names is None else tuple(class_names)
        if not found:
            raise ConfigError(
                f"expected the names of the classes in classes.txt beside {shown(urls[0])}; there is none. "
                "Give class_names=..., or fetch all shards with TarSource."
            )
        self.class_names = found
        self._shards = Shards(urls, found, unlabeled=unlabeled, keep=whole("keep", keep, least=0))
        self._labels: NDArray[np.int64] | None = None
        self._ends: NDArray[np.int64] | None = None  # where each shard ends among all samples
        parts = "\0".join([*map(shown, urls), "", str(unlabeled), *found])
        self._digest = short_hash(parts.encode("utf-8", "surrogatepass")).hex()

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of every sample; without every shard's index all are fetched, and then none is removed."""
        if self._labels is None:
            self._know()
            numbers = range(len(self._shards))
            self._labels = np.concatenate([self._shards.shard(number).labels for number in numbers])
            self._labels.flags.writeable = False
        return self._labels

    @property
    def fingerprint(self) -> str:
        """A digest of the addresses and of the names of the classes: the shards themselves may not have been seen."""
        return f"remote-{self._digest}"

    @property
    def problems(self) -> list[tuple[str, str]]:
        """What is not used of the shards seen so far: the tar file and the reason."""
        found = self._shards.problems
        return [each for number in sorted(found) for each in found[number]]

    def __len__(self) -> int:
        self._know()
        return sum(self._shards.counts.values())

    def order(self, share: RankShare, *, seed: int, shuffle: bool) -> Order:
        """Read shard after shard, in an order of shards, and inside each in an order of its own."""
        return ShardOrder(self._shards, share, seed=seed, shuffle=shuffle)

    def labels_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the labels of the samples of a turn."""
        numbers, members = np.divmod(samples, SPAN)
        found = np.empty_like(samples)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            found[here] = self._shards.shard(number).labels[members[here]]
        return found

    def read(self, index: int) -> bytes:
        """Read an image's bytes where they lie; a shard that is not there is fetched."""
        return self._shards.read(*self._locate(index))

    def name(self, index: int) -> str:
        """Name a member by its tar file and its name there."""
        number, member = self._locate(index)
        return f"{self._shards.name(number)}/{self._shards.shard(number).names[member]}"

    def _locate(self, index: int) -> tuple[int, int]:
        """Find the shard and the member that a number of either kind means."""
        number, member = divmod(index, SPAN)
        if not 0 <= number < len(self._shards):
            raise IndexError(index)
        if number == 0 and member >= self._shards.count(0):  # a number that counts all samples
            self._shards.hold()
            if self._ends is None:
                self._ends = np.cumsum([self._shards.counts[each] for each in range(len(self._shards))])
            number = int(np.searchsorted(self._ends, member, side="right"))
            member -= int(self._ends[number - 1])
        if number == len(self._shards) or member >= self._shards.count(number):
            raise IndexError(index)
        return number, member

    def _know(self) -> None:
        """See every shard's index, which fetches those shards whose index is not in the cache."""
        if not self._shards.known():
            self._shards.hold()
