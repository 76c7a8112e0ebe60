"""Many streams of shards side by side: whoever reads a part of every step needs only the shards of that part.

All epochs' shards are one sequence without end, dealt to the lanes in turn; every lane gives its part of each step. So
a step is found from the counts of the lanes that a rank reads, the others' shards are never asked for, and the steps
are the same for any number of ranks.
"""

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from threading import Thread
from typing import NamedTuple

import numpy as np

from vitrail.data.source import BatchIndices, Order, Places, RankShare
from vitrail.data.sources.shards import SPAN, Shards
from vitrail.errors import ConfigError, DataError, VitrailError
from vitrail.ops.random import Purpose, key, shuffled

FEW = 16  # shards up to which a stream is read one after the other
MOST = 16  # lanes, as the first step waits for a shard of each
EACH = 8  # shards that a lane has at least


def lanes_of(shards: int, share: RankShare, lanes: int | None) -> int:
    """Choose how many lanes shards are read in: what divides the batch's blocks, and the shards where it can."""
    blocks = share.batch // share.block
    if lanes is not None:
        if blocks % lanes or lanes > shards:
            raise ConfigError(
                f"lanes must divide the {blocks} blocks of a batch, and be at most the {shards} shards; got {lanes}."
            )
        return lanes
    if shards < FEW:
        return 1
    found = [number for number in range(1, min(MOST, shards // EACH) + 1) if blocks % number == 0]
    even = [number for number in found if shards % number == 0]
    return even[-1] if 2 * even[-1] >= found[-1] else found[-1]


class Part(NamedTuple):
    """What a rank reads of a lane in every step."""

    lane: int
    first: int
    stop: int


class LaneOrder(Order):
    """Turns of shards read in lanes; those of this rank's lanes are fetched, the next of each meanwhile."""

    def __init__(self, files: Shards, share: RankShare, *, lanes: int, seed: int) -> None:
        self._files, self._seed, self._lanes, self._width = files, seed, lanes, share.batch // lanes
        # Whole lanes, where there are enough: no shard is then read by two.
        self._share = replace(share, block=self._width) if share.ranks <= lanes else share
        places = self._share.places(0, share.batch)
        lane, offset = np.divmod(places, self._width)
        self._parts = [
            Part(number, int(offset[lane == number][0]), int(offset[lane == number][-1]) + 1)
            for number in np.unique(lane).tolist()
        ]
        self._coming: dict[int, Thread] = {}
        self.at: dict[int, int] = {}  # the shard that each lane is at
        self.taken: set[int] = set()  # shards of the turn that is being made
        self._used: deque[set[int]] = deque(maxlen=share.ahead)  # shards of the turns that may be under way
        files.remembered = max(files.remembered, 2 * len(self._parts))

    @property
    def steps(self) -> int:
        """Steps in which as many images are read as there are, once every shard's count is known."""
        if not self._files.known():
            raise ConfigError(
                f"the number of samples of {len(self._files):,} shards is not known until the stream has been read "
                "once, so that an epoch has no number of steps yet. Say how many steps to train for: steps=10_000; or "
                "put sizes.json beside the shards, with how many samples each name has."
            )
        return self._share.steps(sum(self._files.counts.values()))

    @property
    def size(self) -> int | None:
        """Samples of an epoch, as far as the shards seen so far tell."""
        counts = self._files.counts
        return round(sum(counts.values()) / len(counts) * len(self._files)) if counts else None

    def shown(self, label: int) -> int:
        """Say which epoch a label of a turn is in, roughly: lanes are not at its end at once."""
        return label * self._share.batch // self.size if self.size else 0

    def epoch(self, epoch: int, start: int = 0) -> Iterator[BatchIndices]:
        """Give this rank's samples of one epoch, each once; its last turns are smaller, as lanes end."""
        lanes = self._begin(epoch)
        for step in itertools.count():
            found = [lane.take(step * self._width) for lane in lanes]
            samples = np.concatenate(found)
            if not len(samples):
                return
            if step >= start:
                first = step * self._share.batch + self._parts[0].lane * self._width
                yield self._turn(epoch, step, samples, np.arange(first, first + len(samples)))

    def stream(self, start: int = 0) -> Iterator[BatchIndices]:
        """Give turns without end; of the shards of earlier steps only their counts are asked.

        A turn's epoch is its step: what a sample draws is then another thing each time, on any number of ranks.
        """
        lanes = self._begin(None)
        for lane in lanes:
            lane.skip(start * self._width)
        for step in itertools.count(start):
            found = [lane.take(step * self._width) for lane in lanes]
            samples = np.concatenate(found) if found else np.empty(0, np.int64)
            places = self._share.places(step, (step + 1) * self._share.batch)
            yield self._turn(step, step, samples, places)

    def _begin(self, epoch: int | None) -> "list[_Lane]":
        """Begin every lane; the first shards come at once where their counts are asked for next."""
        lanes = [_Lane(self, part, epoch) for part in self._parts]
        for lane in lanes:
            if lane.next is not None and lane.next[1] not in self._files.counts:
                self.bring(lane.next[1])
        return lanes

    def _turn(self, epoch: int, step: int, samples: Places, places: Places) -> BatchIndices:
        self._used.append(self.taken)
        self.taken = set()
        return BatchIndices(epoch, step, samples, places)

    def shard(self, number: int) -> tuple[int, int]:
        """Give a shard of the sequence of all epochs, with its epoch."""
        epoch, place = divmod(number, len(self._files))
        return epoch, int(shuffled(np.array([place], dtype=np.int64), len(self._files), self._seed, epoch)[0])

    def members(self, epoch: int, shard: int, places: Places) -> Places:
        """Give the samples at places of a shard's order in an epoch."""
        seed = int(key(self._seed, Purpose.SHARD, shard))
        return shard * SPAN + shuffled(places, self._files.count(shard), seed, epoch)

    def count(self, shard: int) -> int:
        """Ask how many samples a shard holds; it is fetched only where that is not known."""
        if (thread := self._coming.pop(shard, None)) is not None:
            thread.join()
        known = shard in self._files.counts
        found = self._files.count(shard)
        if not known:
            self.evict()
        return found

    def bring(self, shard: int) -> None:
        """Have a shard on its way; what fails is tried again, and told, when it is needed."""
        if shard in self._coming:
            return

        def fetch() -> None:
            with contextlib.suppress(VitrailError, OSError):
                self._files.bring(shard, quiet=True)

        thread = self._coming[shard] = Thread(target=fetch, name=f"vitrail-shard-{shard}", daemon=True)
        thread.start()

    def reach(self, shard: int) -> None:
        """Have a shard here; what is over the bound then goes."""
        if (thread := self._coming.pop(shard, None)) is not None:
            thread.join()
        self._files.local(shard)
        self.evict()

    def evict(self) -> None:
        """Remove what nobody needs any more, over the bound."""
        self._files.evict({*self._coming, *self.at.values(), *self.taken}.union(*self._used))


class _Lane:
    """Where one lane is: the shard that it reads, and the place at which that begins."""

    def __init__(self, order: LaneOrder, part: Part, epoch: int | None) -> None:
        self.order, self.part = order, part
        lanes, shards = order._lanes, len(order._files)
        # Of one epoch, its shards in turn; else of all of them.
        self.numbers = itertools.count(part.lane, lanes) if epoch is None else iter(range(part.lane, shards, lanes))
        self.first = 0 if epoch is None else epoch * shards
        self.begin = self.end = 0
        self.now: tuple[int, int] | None = None  # epoch and shard
        self.next = self._deal()
        self.reached = False
        self.empty = 0  # shards without a sample, one after the other

    def _deal(self) -> tuple[int, int] | None:
        number = next(self.numbers, None)
        return None if number is None else self.order.shard(self.first + number)

    def _go_on(self) -> bool:
        """Take the next shard; tells whether there is one."""
        self.now, self.next, self.reached = self.next, None, False
        if self.now is None:
            return False
        self.next = self._deal()
        self.order.at[self.part.lane] = self.now[1]
        self.begin = self.end
        self.end += self.order.count(self.now[1])
        self.empty = self.empty + 1 if self.end == self.begin else 0
        if self.empty > len(self.order._files):
            raise DataError(f"none of the {self.empty - 1:,} shards holds a labelled image. Check their address.")
        return True

    def skip(self, place: int) -> None:
        """Go to a place without reading what is before it."""
        while self.end <= place and self._go_on():
            pass

    def take(self, start: int) -> Places:
        """Give the samples of a step that starts at a place of the lane: this rank's, and fewer where the lane ends."""
        place, stop = start + self.part.first, start + self.part.stop
        found = []
        while place < stop:
            if self.end <= place:
                if not self._go_on():
                    break
                continue
            assert self.now is not None
            if not self.reached:
                self.order.reach(self.now[1])
                if self.next is not None:
                    self.order.bring(self.next[1])
                self.reached = True
            last = min(stop, self.end)
            epoch, shard = self.now
            self.order.taken.add(shard)
            found.append(self.order.members(epoch, shard, np.arange(place, last, dtype=np.int64) - self.begin))
            place = last
        return np.concatenate(found) if found else np.empty(0, np.int64)
