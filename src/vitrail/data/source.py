"""Labelled images by number, nothing decoded, and the order in which they are read: stretches of an epoch, by rank."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from vitrail.config.check import whole
from vitrail.data.annotation import Annotation
from vitrail.data.decode import Pixels
from vitrail.errors import ConfigError, DataError
from vitrail.files import short_hash
from vitrail.ops.random import shuffled

Places = NDArray[np.int64]


class BatchIndices(NamedTuple):
    """What one step reads on this rank: samples, and their places in the epoch's order."""

    epoch: int
    step: int  # of the epoch
    samples: Places
    places: Places


class Skip(NamedTuple):
    """An image that was left out, and why."""

    sample: int
    name: str
    reason: str


class Batch(NamedTuple):
    """Images of one step on this rank: those that could be decoded."""

    images: Tensor  # uint8 B C H W; float32 where they are finished
    labels: Tensor  # B
    samples: Tensor  # B: their numbers in the source
    places: Tensor  # B: their places in the epoch's order
    absent: Tensor  # places of this step whose images could not be decoded
    epoch: int
    step: int  # of the epoch
    skipped: tuple[Skip, ...]
    targets: Tensor | None = None  # B K: several labels or numbers; or shares of the classes, of finished images
    boxes: Places | None = None  # B 4: what of each image is taken, where they are whole yet
    masks: Tensor | None = None  # uint8 B H W: the class of every pixel, where that is what is learned
    objects: Tensor | None = None  # B M 5: class + 1 (0: none) and box, in shares of the sides
    shapes: Tensor | None = None  # bool B M H W: the pixels of each object, where these are learned
    truths: list[Annotation] | None = None  # of each image as it is in its file, to measure by
    grids: Places | None = None  # B 2: rows and columns of each image, where images are all their patches: N PPC


@dataclass(frozen=True, kw_only=True)
class RankShare:
    """How steps are cut from an epoch's order, and which part of each is this rank's."""

    batch: int
    rank: int
    ranks: int
    block: int
    ahead: int  # batches that may be under way at once, in workers
    full: bool = False  # a smaller last step is left out, unless it is the only one

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("ranks", 1), ("block", 1), ("ahead", 1)):
            whole(name, getattr(self, name), least=least)
        whole("rank", self.rank, least=0, most=self.ranks - 1)
        if self.batch % self.block:
            raise ConfigError(
                f"the batch of {self.batch} must be whole blocks of {self.block}. Take a multiple of {self.block}."
            )

    def steps(self, count: int) -> int:
        """Steps of an epoch of so many samples; the last may be smaller."""
        return max(count // self.batch, 1) if self.full else -(-count // self.batch)

    def places(self, step: int, count: int) -> Places:
        """Give this rank's places at a step of an epoch of so many samples: whole blocks, in turn; perhaps none."""
        start = step * self.batch
        stop = min(start + self.batch, count)
        blocks = -(-(stop - start) // self.block)
        low, high = (start + blocks * rank // self.ranks * self.block for rank in (self.rank, self.rank + 1))
        return np.arange(low, min(high, stop), dtype=np.int64)


class Order:
    """The batches of epochs, made in the main process: one permutation of all samples, of (seed, epoch, step) alone."""

    def __init__(self, count: int, share: RankShare, *, seed: int, shuffle: bool) -> None:
        if not count:
            raise DataError("the source holds no images. Check its path.")
        self._count, self._share, self._seed, self._shuffle = count, share, seed, shuffle

    @property
    def steps(self) -> int:
        """Steps of an epoch; an order that cannot know them yet says so."""
        return self._share.steps(self._count)

    @property
    def size(self) -> int | None:
        """Samples of an epoch; an estimate while not all are known, None while none is."""
        return self._count

    def shown(self, label: int) -> int:
        """Say for people which epoch a batch is of, by what it calls its epoch."""
        return label

    def epoch(self, epoch: int, start: int = 0) -> Iterator[BatchIndices]:
        """Give the batches of one epoch, from a step on."""
        return (self._batch(epoch, step) for step in range(start, self.steps))

    def stream(self, start: int = 0) -> Iterator[BatchIndices]:
        """Give batches without end, epoch after epoch, from a step of the whole run on."""
        return (self._batch(*divmod(step, self.steps)) for step in itertools.count(start))

    def _batch(self, epoch: int, step: int) -> BatchIndices:
        places = self._share.places(step, self._count)
        samples = shuffled(places, self._count, self._seed, epoch) if self._shuffle else places
        return BatchIndices(epoch, step, samples, places)


class Source(ABC):
    """Labelled images by number; `_labels` and `_fingerprint` are what its constructor sets.

    It is given to worker processes, so it must be picklable and cheap to copy: long lists of names are kept as one
    buffer of bytes with offsets (`Names`), never as objects, whose counters would copy the pages of every process.
    """

    class_names: tuple[str, ...]
    _labels: NDArray[np.int64]
    _fingerprint = ""

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of every sample, -1 where it has none; its length is the source's."""
        return self._labels

    @property
    def fingerprint(self) -> str:
        """A short text that changes when the samples do: names, order, labels; for caches and provenance."""
        return self._fingerprint

    @abstractmethod
    def read(self, index: int) -> bytes | Pixels:
        """Give the encoded bytes of an image, or its pixels (uint8, H W C) where the source holds pixels.

        What cannot be read raises `ImageError` with the reason; OSErrors are turned into it.
        """

    @abstractmethod
    def name(self, index: int) -> str:
        """Name a sample for people: a path, a row of a file, a member of an archive."""

    def annotation(self, index: int) -> Annotation:
        """Give the classes of an image's pixels, or its objects, of a source that has such; as their file says them.

        What cannot be read raises `ImageError` with the reason.
        """
        raise DataError(f"{self.name(index)} has no mask and no boxes. docs/dense.md says how to give them.")

    @property
    def targets(self) -> NDArray[np.float32] | None:
        """What is known of every image, N K, where that is several labels or numbers; `class_names` are their names."""
        return None

    def targets_of(self, samples: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """Give the targets of the samples of a batch, which `order` has numbered."""
        return None if self.targets is None else self.targets[samples]

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels, where the source holds pixels and all images are alike; else None."""
        return None

    def read_many(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Give a copy of the pixels of several images, N H W C, of a source that has a `shape`."""
        raise NotImplementedError

    def _within(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return index

    def labels_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the labels of the samples of a batch, which `order` has numbered."""
        return self.labels[samples]

    def own_number(self, sample: int) -> int:
        """Give the number of a sample that an order has numbered: another where it repeats some."""
        return sample

    def order(self, share: RankShare, *, seed: int, shuffle: bool) -> Order:
        """Say in which order the samples are read."""
        return Order(len(self), share, seed=seed, shuffle=shuffle)

    def __len__(self) -> int:
        return len(self.labels)


class Subset(Source):
    """Some samples of a source, by their numbers there and in that order."""

    def __init__(self, source: Source, indices: Sequence[int] | NDArray[np.int64]) -> None:
        self.source = source
        self.indices = np.array(indices, dtype=np.int64)
        if len(self.indices) and not 0 <= self.indices.min() <= self.indices.max() < len(source):
            raise ConfigError(
                f"expected numbers of samples from 0 to {len(source) - 1}; "
                f"got some from {self.indices.min()} to {self.indices.max()}."
            )
        self.indices.flags.writeable = False
        self.class_names = source.class_names
        self._labels = source.labels[self.indices]

    def read(self, index: int) -> bytes | Pixels:
        """Read from the source."""
        return self.source.read(int(self.indices[self._within(index)]))

    def name(self, index: int) -> str:
        """Name a sample as its source does."""
        return self.source.name(int(self.indices[self._within(index)]))

    def annotation(self, index: int) -> Annotation:
        """Give the source's."""
        return self.source.annotation(int(self.indices[self._within(index)]))

    @property
    def targets(self) -> NDArray[np.float32] | None:
        """Those of the samples chosen."""
        whole = self.source.targets
        return None if whole is None else whole[self.indices]

    def targets_of(self, samples: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """Give the source's."""
        return self.source.targets_of(self.indices[samples])

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """The source's."""
        return self.source.shape

    def read_many(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read from the source."""
        return self.source.read_many(self.indices[indices])

    @property
    def fingerprint(self) -> str:
        """A digest of the source's and of the numbers chosen."""
        return f"subset-{short_hash(self.source.fingerprint, self.indices.tobytes()).hex()}"

    def __len__(self) -> int:
        return len(self.indices)


def known_of(source: Source, samples: Places) -> dict[str, Any]:
    """Give the labels of the samples of a batch, and their targets where the source has such."""
    targets = source.targets_of(samples)
    labels = from_numpy(source.labels_of(samples))
    return {"labels": labels, "targets": None if targets is None else from_numpy(targets)}


def check_limit(bad: Sequence[tuple[str, str]], count: int, size: int, limit: float) -> None:
    """Stop where more images cannot be read than may; `bad` are names and reasons of some."""
    if count > limit * size:
        some = "; ".join(f"{name}: {reason}" for name, reason in bad[:5])
        raise DataError(
            f"{count:,} of {size:,} images cannot be read, over the limit of {limit:.1%}: {some}. "
            f"Repair or remove them (vitrail data check lists all), or allow more: bad_image_limit=0.05."
        )


def is_name(text: str) -> bool:
    """Tell a text that can be written, and be the name of a class or a file: JSON may hold halves of signs."""
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


class Names:
    """Many short texts in one buffer: sixteen bytes each and the text, whatever their number."""

    def __init__(self, texts: list[str]) -> None:
        encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
        self._ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        self._bytes = np.frombuffer(b"".join(encoded), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self._ends):
            raise IndexError(index)
        start = int(self._ends[index - 1]) if index else 0
        return self._bytes[start : int(self._ends[index])].tobytes().decode("utf-8", "surrogateescape")
