"""The order of a stream of shards: shard after shard, the next one on its way while one is read.

An epoch is the shards in an order of (seed, epoch), each in an order of (seed, epoch, shard). So a step is found from
the counts of the shards before it, and nothing else of them is needed.
"""

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from vitrail.data.source import BatchIndices, Order, Places, RankShare
from vitrail.data.sources.shards import Shards
from vitrail.errors import ConfigError, DataError, VitrailError
from vitrail.ops.random import Purpose, key, shuffled

SPAN = 1 << 32  # numbers of samples that a shard has for itself


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
