"""Batches in an order that is a function of (seed, epoch, place): the same for any number of workers and ranks.

A step is a stretch of the epoch's order, so a run resumes at any step at once. An image that cannot be decoded is left
out, counted and listed, never replaced by another; past a limit the run stops.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.config.check import rate, whole
from vitrail.data.decode import ImageError, Pixels
from vitrail.data.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.ops.order import shuffled

# From what a source holds of a sample, its number and the epoch, to uint8 C H W.
Take = Callable[[bytes | Pixels, int, int], Tensor]
LISTED = 1000  # bad images that are remembered by name; all are counted


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
    targets: Tensor | None = None  # B K: shares of the classes, where the images are finished


class Loader:
    """Reads a source in batches; the last one of an epoch is as large as what is left."""

    def __init__(
        self,
        source: Source,
        take: Take,
        *,
        batch: int,
        seed: int = 0,
        shuffle: bool = True,
        workers: int = 0,
        rank: int = 0,
        ranks: int = 1,
        block: int = 1,
        limit: float = 0.01,
        after: Callable[[Batch], Batch] | None = None,
    ) -> None:
        self.source, self.take, self.shuffle = source, take, shuffle
        self.after = after  # what a worker does to a whole batch
        self.batch, self.seed = whole("batch", batch), whole("seed", seed, least=0)
        self.workers, self.ranks = whole("workers", workers, least=0), whole("ranks", ranks)
        self.rank, self.block = whole("rank", rank, least=0, most=self.ranks - 1), whole("block", block)
        self.limit = rate("limit", limit)
        self.bad: dict[int, Skip | None] = {}
        if not len(source):
            raise DataError("the source holds no images. Check its path.")
        if self.batch % (self.ranks * self.block):
            raise ConfigError(
                f"the batch of {self.batch} must be shared evenly by {self.ranks} ranks in blocks of {self.block}. "
                f"Take a multiple of {self.ranks * self.block}."
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sides of an image, C H W; nothing where `take` does not say."""
        height, width = getattr(self.take, "size", (0, 0))
        return getattr(self.take, "channels", 0), height, width

    @property
    def steps(self) -> int:
        """Steps of an epoch; the last may be smaller."""
        return -(-len(self.source) // self.batch)

    def places(self, step: int) -> NDArray[np.int64]:
        """Give this rank's places of the epoch's order at a step: whole blocks, in turn."""
        start = step * self.batch
        stop = min(start + self.batch, len(self.source))
        blocks = -(-(stop - start) // self.block)
        low, high = (start + blocks * rank // self.ranks * self.block for rank in (self.rank, self.rank + 1))
        return np.arange(low, min(high, stop), dtype=np.int64)

    def samples(self, places: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Give the samples at places of an epoch's order."""
        return shuffled(places, len(self.source), self.seed, epoch) if self.shuffle else places

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Give the batches of one epoch, from a step on."""
        yield from self._read((epoch, step) for step in range(start, self.steps))

    def stream(self, start: int = 0) -> Iterator[Batch]:
        """Give batches without end, epoch after epoch, from a step of the whole run on."""
        yield from self._read(divmod(step, self.steps) for step in itertools.count(start))

    def _read(self, turns: Iterator[tuple[int, int]]) -> Iterator[Batch]:
        reader = _Reader(self)
        with _loading(reader, turns, self.workers) as batches:
            for batch in batches:
                self._note(batch.skipped)
                yield batch

    def _note(self, skipped: tuple[Skip, ...]) -> None:
        """Count what was left out, each image once, and stop past the limit."""
        for skip in skipped:
            self.bad.setdefault(skip.sample, skip if len(self.bad) < LISTED else None)
        if len(self.bad) > self.limit * len(self.source) / self.ranks:  # each rank sees its share
            some = "; ".join(f"{skip.name}: {skip.reason}" for skip in list(self.bad.values())[:5] if skip)
            raise DataError(
                f"{len(self.bad):,} of {len(self.source):,} images cannot be read, over the limit of {self.limit:.1%}: "
                f"{some}. Repair or remove them (vitrail data check lists all), or allow more with limit=..."
            )


class _Reader(Dataset[Batch]):
    """What a worker holds: reads the samples of a turn, in its own process."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __getitem__(self, turn: tuple[int, int]) -> Batch:
        epoch, step = turn
        loader = self.loader
        places = loader.places(step)
        samples = loader.samples(places, epoch)
        images, kept, skipped = [], [], []
        for index, sample in enumerate(samples.tolist()):
            try:
                images.append(loader.take(loader.source.read(sample), sample, epoch))
                kept.append(index)
            except ImageError as error:
                skipped.append(Skip(sample, loader.source.name(sample), str(error)))
        batch = Batch(
            images=torch.stack(images) if images else torch.empty(0, *loader.shape, dtype=torch.uint8),
            labels=torch.from_numpy(loader.source.labels[samples[kept]]),
            samples=torch.from_numpy(samples[kept]),
            places=torch.from_numpy(places[kept]),
            absent=torch.from_numpy(np.delete(places, kept)),
            epoch=epoch,
            step=step,
            skipped=tuple(skipped),
        )
        return batch if loader.after is None else loader.after(batch)


@contextmanager
def _loading(reader: _Reader, turns: Iterator[tuple[int, int]], workers: int) -> Iterator[Iterator[Batch]]:
    """Read turns here, or in worker processes that are stopped at the end."""
    if workers == 0:
        yield (reader[turn] for turn in turns)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of more workers than cores: the caller has counted them
        loading = DataLoader(
            reader,
            sampler=turns,  # pyright: ignore[reportArgumentType]
            batch_size=None,
            num_workers=workers,
            worker_init_fn=_start,
            collate_fn=_as_it_is,
            prefetch_factor=2,
        )
        batches = iter(loading)
    try:
        yield batches
    finally:
        stop = getattr(batches, "_shutdown_workers", None)
        if stop is not None:
            stop()


def _start(worker: int) -> None:
    """Give a worker one thread: there are as many workers as cores."""
    torch.set_num_threads(1)


def _as_it_is(batch: Any) -> Any:  # noqa: ANN401
    return batch
