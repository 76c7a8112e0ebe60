"""Every class as often as any other: an order that repeats the images of small classes, as a function of the seed."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import Pixels
from vitrail.data.source import BatchIndices, Order, Places, RankShare, Source
from vitrail.data.sources.remote import RemoteShards
from vitrail.errors import ConfigError, DataError
from vitrail.ops.random import Purpose, key, shuffled


class BalancedSource(Source):
    """The samples of a source, drawn so that every class comes as often as any other.

    A sample that comes again in an epoch has another number, its own and a multiple of the source's length: it is
    cropped, flipped and mixed in its own way each time.
    """

    def __init__(self, source: Source) -> None:
        if isinstance(source, RemoteShards):
            raise ConfigError(
                "sampling=balanced must know every label first, and of a stream it does not. "
                "Fetch the shards, or set logit_adjustment=1 or sampling=shuffled."
            )
        if source.targets is not None:
            raise ConfigError("sampling=balanced is of one class an image. Set sampling=shuffled.")
        self.source = source
        self.class_names = source.class_names
        self._labels = source.labels

    def read(self, index: int) -> bytes | Pixels:
        """Read from the source."""
        return self.source.read(self.own_number(index))

    def name(self, index: int) -> str:
        """Name a sample as its source does."""
        return self.source.name(self.own_number(index))

    @property
    def fingerprint(self) -> str:
        """The source's."""
        return self.source.fingerprint

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """The source's."""
        return self.source.shape

    def read_many(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read from the source."""
        return self.source.read_many(indices % len(self))

    def labels_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the labels of samples, whichever time they come."""
        return self.source.labels_of(samples % len(self))

    def own_number(self, sample: int) -> int:
        """Give a sample's number in the source, whichever time it comes."""
        return self.source.own_number(sample % len(self))

    def order(self, share: RankShare, *, seed: int, shuffle: bool) -> Order:
        """Draw every class in turn."""
        return BalancedOrder(self.labels, share, seed=seed, shuffle=shuffle)


class _Class(NamedTuple):
    members: Places
    seed: int  # of the orders in which its members come


class BalancedOrder(Order):
    """Epochs as long as the source, in which classes are drawn equally often, to within one image.

    The members of a class come in one order after the other, each a permutation of them all: none comes twice before
    every other has come once, also from one epoch to the next. What comes is a function of (seed, epoch, place) alone.
    """

    def __init__(self, labels: NDArray[np.int64], share: RankShare, *, seed: int, shuffle: bool) -> None:
        labeled = labels[labels >= 0]
        if not len(labeled):
            raise DataError("sampling=balanced needs labels, and no image has one. Set sampling=shuffled.")
        super().__init__(len(labels), share, seed=seed, shuffle=shuffle)
        order = np.argsort(labels, kind="stable")[len(labels) - len(labeled) :]
        parts = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
        self._classes = [_Class(part, int(key(seed, Purpose.CLASS, int(labels[part[0]])))) for part in parts]

    def _batch(self, epoch: int, step: int) -> BatchIndices:
        places = self._share.places(step, self._count)
        turns = shuffled(places, self._count, self._seed, epoch) if self._shuffle else places
        rounds, chosen = np.divmod(turns, len(self._classes))
        samples = np.empty_like(places)
        for number in np.unique(chosen).tolist():
            here = chosen == number
            samples[here] = self._draw(number, rounds[here], epoch)
        return BatchIndices(epoch, step, samples, places)

    def _draw(self, number: int, rounds: Places, epoch: int) -> Places:
        """Give the members of a class that are drawn in these rounds of an epoch, those that come again as others."""
        members, seed = self._classes[number]
        first = epoch * -(-(self._count - number) // len(self._classes))  # drawn in the epochs before
        passes, places = np.divmod(first + rounds, len(members))
        found = np.empty_like(rounds)
        for turn in np.unique(passes).tolist():
            here = passes == turn
            found[here] = members[shuffled(places[here], len(members), seed, turn)]
        return found + (passes - first // len(members)) * self._count
