"""Images in tar files on a server, streamed: a shard is fetched when it is reached, and the next one meanwhile.

An epoch is the shards in an order of (seed, epoch), each in an order of (seed, epoch, shard). So a step is found from
the counts of the shards before it, and nothing else of them is needed.
"""

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from threading import Thread
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from vitrail.config.check import whole
from vitrail.data.source import BatchIndices, Order, Places, RankShare, Source
from vitrail.data.sources.lanes import FEW, LaneOrder, lanes_of
from vitrail.data.sources.shards import SPAN as SPAN, Shards
from vitrail.data.sources.tar import TarSource, class_list, expand
from vitrail.errors import CheckpointError, ConfigError, DataError, VitrailError
from vitrail.files import fetch_if_there, place_of, read_json, short_hash
from vitrail.files.transfer import parse, shown
from vitrail.ops.random import Purpose, key, shuffled

SIZES = "sizes.json"  # samples of each shard by its name, beside them
LARGEST_SIZES = 16 << 20  # bytes


def open_remote(pattern: str, *, unlabeled: bool = False) -> Source:
    """Stream the shards of a pattern; where the server lists no classes all are fetched, since the labels say them."""
    urls = list(expand(pattern))
    parse(urls[0])  # refuses what is no address
    here = all(place_of(url).is_file() for url in urls)
    try:
        names = classes_of(urls[0], patiently=not here)
    except CheckpointError:
        if not here:
            raise
        names = None  # all were fetched before: no network is needed
    if names is None:
        return TarSource(urls, unlabeled=unlabeled)
    return RemoteShards(urls, class_names=names, unlabeled=unlabeled)


def classes_of(url: str, *, patiently: bool = True) -> tuple[str, ...] | None:
    """Fetch classes.txt from beside a shard, a name a line; None where the server has none, found by one request."""
    file = fetch_if_there(beside(url, "classes.txt"), patiently=patiently)
    names = None if file is None else class_list(file)
    # Some servers answer with a page of their own to whatever they do not have.
    return None if not names or names[0].startswith("<") else names


def sizes_of(url: str) -> dict[str, int]:
    """Fetch sizes.json from beside a shard; nothing where the server has none, or something else."""
    try:
        file = fetch_if_there(beside(url, SIZES))
        found = {} if file is None else read_json(file, most=LARGEST_SIZES)
    except (OSError, ValueError):
        return {}
    sound = isinstance(found, dict)
    return {name: size for name, size in found.items() if isinstance(size, int) and size >= 0} if sound else {}


def beside(url: str, name: str) -> str:
    """Give the address of a file beside another, with the same query."""
    parts = urlsplit(url)
    return parts._replace(path=f"{parts.path.rpartition('/')[0]}/{name}", fragment="").geturl()


class RemoteShards(Source):
    """The images of tar files on a server, none of which is fetched before a step or a question needs it.

    A loader streams them shard by shard; a sample's number is then shard * 2**32 + member. Numbers from 0 on count all
    samples, as in any source (in the first shard both are the same): those, and `labels`, bring all shards. At most
    `keep` shards stay in the cache beyond those in use. Many shards are shuffled in `lanes` side by side, whose number
    goes by the shards and the batch where it is None: each rank fetches those of its lanes alone.
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        *,
        class_names: Sequence[str] | None = None,
        unlabeled: bool = False,
        keep: int = 8,
        lanes: int | None = None,
    ) -> None:
        urls = [url for path in ([paths] if isinstance(paths, str) else paths) for url in expand(path)]
        if not urls:
            raise DataError("expected one address of a tar file or more; got none.")
        found = classes_of(urls[0]) if class_names is None else tuple(class_names)
        if not found:
            raise DataError(
                f"expected the names of the classes in classes.txt beside {shown(urls[0])}; there is none. "
                "Give class_names=..., or fetch all shards with TarSource."
            )
        self.class_names = found
        self._shards = Shards(urls, found, unlabeled=unlabeled, keep=whole("keep", keep, least=0))
        self._lanes = None if lanes is None else whole("lanes", lanes)
        if len(urls) >= FEW or lanes is not None:
            self._shards.tell(sizes_of(urls[0]))
        self._gathered: NDArray[np.int64] | None = None  # the labels of all shards
        self._ends: NDArray[np.int64] | None = None  # where each shard ends among all samples
        # Of the addresses and the names of the classes: the shards themselves may not have been seen.
        parts = "\0".join([*map(shown, urls), "", str(unlabeled), *found])
        self._fingerprint = f"remote-{short_hash(parts.encode('utf-8', 'surrogatepass')).hex()}"

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of every sample; without every shard's index all are fetched, and then none is removed."""
        if self._gathered is None:
            self._know()
            numbers = range(len(self._shards))
            self._gathered = np.concatenate([self._shards.shard(number).labels for number in numbers])
            self._gathered.flags.writeable = False
        return self._gathered

    @property
    def problems(self) -> list[tuple[str, str]]:
        """What is not used of the shards seen so far: the tar file and the reason."""
        found = self._shards.problems
        return [each for number in sorted(found) for each in found[number]]

    def __len__(self) -> int:
        self._know()
        return sum(self._shards.counts.values())

    def order(self, share: RankShare, *, seed: int, shuffle: bool) -> Order:
        """Read shard after shard, or many side by side, in an order of shards, each in an order of its own."""
        lanes = lanes_of(len(self._shards), share, self._lanes) if shuffle else 1
        if lanes > 1:
            return LaneOrder(self._shards, share, lanes=lanes, seed=seed)
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


class ShardOrder(Order):
    """Turns of a stream of shards; each is fetched when a turn of this rank first needs it."""

    def __init__(self, files: Shards, share: RankShare, *, seed: int, shuffle: bool) -> None:
        self._files, self._share, self._seed, self._shuffle = files, share, seed, shuffle
        self._ahead: tuple[int, Thread] | None = None
        self._used: deque[set[int]] = deque(maxlen=share.ahead)  # shards of the turns that may be under way

    @property
    def steps(self) -> int:
        """Steps of an epoch, once every shard has been seen."""
        if not self._files.known():
            raise ConfigError(
                f"the number of samples of {len(self._files):,} shards is not known until the stream has been read "
                "once, so that an epoch has no number of steps yet. Say how many steps to train for: steps=10_000."
            )
        return self._share.steps(sum(self._files.counts.values()))

    @property
    def size(self) -> int | None:
        """Samples of an epoch, as far as the shards seen so far tell."""
        counts = self._files.counts
        return round(sum(counts.values()) / len(counts) * len(self._files)) if counts else None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[BatchIndices]:
        """Give the turns of one epoch, from a step on."""
        return self._walk(epoch, start, onward=False)

    def stream(self, start: int = 0) -> Iterator[BatchIndices]:
        """Give turns without end; of the shards before the first step only their counts are asked."""
        epoch, step = self._find(start)
        while True:
            yield from self._walk(epoch, step, onward=True)
            epoch, step = epoch + 1, 0

    def shards(self, epoch: int) -> NDArray[np.int64]:
        """Give the shards in the order of an epoch."""
        numbers = np.arange(len(self._files), dtype=np.int64)
        return shuffled(numbers, len(numbers), self._seed, epoch) if self._shuffle else numbers

    def _find(self, start: int) -> tuple[int, int]:
        """Find the epoch and the step in it of a step of the whole run; every epoch has as many."""
        passed = 0
        for number in self.shards(0).tolist():
            passed += self._count(number)
            if passed > start * self._share.batch:
                return 0, start
            self._evict()
        return divmod(start, max(self._share.steps(passed), 1))

    def _walk(self, epoch: int, start: int, *, onward: bool) -> Iterator[BatchIndices]:
        numbers = self.shards(epoch)
        following = [*numbers[1:].tolist(), int(self.shards(epoch + 1)[0]) if onward else None]
        ends = np.zeros(len(numbers) + 1, dtype=np.int64)  # places of the order at which shards end
        asked = 0  # shards whose ends are known
        for step in itertools.count(start):
            first = step * self._share.batch
            while ends[asked] < first + self._share.batch and asked < len(numbers):
                ends[asked + 1] = ends[asked] + self._count(int(numbers[asked]))
                asked += 1
                if ends[asked] <= first:  # passed: no more than its count was wanted
                    self._evict()
            if not ends[asked]:
                raise DataError(f"none of the {len(numbers):,} shards holds a labelled image. Check their address.")
            if ends[asked] <= first or (self._share.full and step and ends[asked] < first + self._share.batch):
                return  # all was read, but for what does not fill a step
            places = self._share.places(step, int(ends[asked]))
            positions = np.searchsorted(ends[: asked + 1], places, side="right") - 1
            reached = np.unique(positions).tolist()
            self._used.append({int(numbers[position]) for position in reached})
            for position in reached:
                self._reach(int(numbers[position]), following[position])
            yield BatchIndices(epoch, step, self._samples(places, positions, numbers, ends, epoch), places)

    def _samples(
        self, places: Places, positions: Places, numbers: NDArray[np.int64], ends: NDArray[np.int64], epoch: int
    ) -> Places:
        """Give the samples at places of an epoch's order: numbers of shards and of members in them."""
        members = places - ends[positions]
        for position in np.unique(positions).tolist() if self._shuffle else ():
            here, number = positions == position, int(numbers[position])
            seed = int(key(self._seed, Purpose.SHARD, number))
            members[here] = shuffled(members[here], self._files.count(number), seed, epoch)
        return numbers[positions] * SPAN + members

    def _count(self, number: int) -> int:
        """Ask how many samples a shard holds; it is fetched only where that is not known."""
        self._wait(number)
        return self._files.count(number)

    def _reach(self, number: int, following: int | None) -> None:
        """Have a shard here and the following one on its way; what is over the bound then goes."""
        self._wait(number)
        self._files.local(number)
        if self._ahead is not None and self._ahead[0] == number:
            self._ahead = None
        if following is not None and (self._ahead is None or self._ahead[0] != following):
            self._wait()
            thread = Thread(target=self._bring, args=(following,), name=f"vitrail-shard-{following}", daemon=True)
            self._ahead = following, thread
            thread.start()
            self._evict()

    def _bring(self, number: int) -> None:
        """Fetch a shard before it is needed; what fails is tried again, and told, when it is."""
        with contextlib.suppress(VitrailError, OSError):
            self._files.bring(number, quiet=True)

    def _wait(self, number: int | None = None) -> None:
        """Wait for the shard on its way, where it is this one or any is meant."""
        if self._ahead is not None and number in (self._ahead[0], None):
            self._ahead[1].join()

    def _evict(self) -> None:
        coming = set() if self._ahead is None else {self._ahead[0]}
        self._files.evict(coming.union(*self._used))
