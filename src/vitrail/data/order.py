"""Which samples a step holds: a stretch of the epoch's order, shared by the ranks in whole blocks."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.config.check import whole
from vitrail.errors import ConfigError, DataError
from vitrail.ops.order import shuffled

Places = NDArray[np.int64]
MIXING = ", or other blocks, in which Mixup and CutMix pair (mix_block), or neither (mixup=0, cutmix=0)"


class Turn(NamedTuple):
    """What one step reads on this rank: samples, and their places in the epoch's order."""

    epoch: int
    step: int  # of the epoch
    samples: Places
    places: Places


@dataclass(frozen=True, kw_only=True)
class Share:
    """How steps are cut from an epoch's order, and which part of each is this rank's."""

    batch: int
    rank: int
    ranks: int
    block: int
    ahead: int  # turns that may be under way at once, in workers
    full: bool = False  # a smaller last step is left out, unless it is the only one

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("ranks", 1), ("block", 1), ("ahead", 1)):
            whole(name, getattr(self, name), least=least)
        whole("rank", self.rank, least=0, most=self.ranks - 1)
        if self.batch % (self.ranks * self.block):
            raise ConfigError(
                f"the batch of {self.batch} must be shared evenly by {self.ranks} ranks in blocks of {self.block}. "
                f"Take a multiple of {self.ranks * self.block}{MIXING if self.block > 1 else ''}."
            )

    def steps(self, count: int) -> int:
        """Steps of an epoch of so many samples; the last may be smaller."""
        return max(count // self.batch, 1) if self.full else -(-count // self.batch)

    def places(self, step: int, count: int) -> Places:
        """Give this rank's places at a step of an epoch of so many samples: whole blocks, in turn."""
        start = step * self.batch
        stop = min(start + self.batch, count)
        blocks = -(-(stop - start) // self.block)
        low, high = (start + blocks * rank // self.ranks * self.block for rank in (self.rank, self.rank + 1))
        return np.arange(low, min(high, stop), dtype=np.int64)


class Order(ABC):
    """The turns of epochs, made in the main process; a function of (seed, epoch, step) alone."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps of an epoch; an order that cannot know them yet says so."""

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Samples of an epoch; an estimate while not all are known, None while none is."""

    @abstractmethod
    def epoch(self, epoch: int, start: int = 0) -> Iterator[Turn]:
        """Give the turns of one epoch, from a step on."""

    @abstractmethod
    def stream(self, start: int = 0) -> Iterator[Turn]:
        """Give turns without end, epoch after epoch, from a step of the whole run on."""


class WholeOrder(Order):
    """The order of a source whose samples are all at hand: one permutation of them all."""

    def __init__(self, count: int, share: Share, *, seed: int, shuffle: bool) -> None:
        if not count:
            raise DataError("the source holds no images. Check its path.")
        self._count, self._share, self._seed, self._shuffle = count, share, seed, shuffle

    @property
    def steps(self) -> int:
        """Steps of an epoch; the last may be smaller."""
        return self._share.steps(self._count)

    @property
    def size(self) -> int:
        """Samples of an epoch."""
        return self._count

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Turn]:
        """Give the turns of one epoch, from a step on."""
        return (self._turn(epoch, step) for step in range(start, self.steps))

    def stream(self, start: int = 0) -> Iterator[Turn]:
        """Give turns without end, from a step of the whole run on."""
        return (self._turn(*divmod(step, self.steps)) for step in itertools.count(start))

    def _turn(self, epoch: int, step: int) -> Turn:
        places = self._share.places(step, self._count)
        samples = shuffled(places, self._count, self._seed, epoch) if self._shuffle else places
        return Turn(epoch, step, samples, places)
