"""Batches in an order that is a function of (seed, epoch, place): the same for any number of workers and ranks.

A step is a stretch of the epoch's order, so a run resumes at any step at once. An image that cannot be decoded is left
out, counted and listed, never replaced by another; past a limit the run stops.
"""

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.config.check import rate, whole
from vitrail.data.decode import ImageError, Pixels
from vitrail.data.source import BatchIndices, RankShare, Source, check_limit

# From what a source holds of a sample, its number and the epoch, to uint8 C H W.
Transform = Callable[[bytes | Pixels, int, int], Tensor]
AHEAD = 2  # batches that a worker is given before it is done with one
SWITCH = 0.0005  # seconds until a worker lets in its thread that hands memory over; Python waits ten times as long
SMALL = ("labels", "samples", "places", "absent")
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
    """Reads a source in batches; the last one of an epoch is as large as what is left, or is left out where `full`."""

    def __init__(
        self,
        source: Source,
        transform: Transform,
        *,
        batch: int,
        seed: int = 0,
        shuffle: bool = True,
        workers: int = 0,
        rank: int = 0,
        ranks: int = 1,
        block: int = 1,
        bad_image_limit: float = 0.01,
        full: bool = False,
        after: Callable[[Batch], Batch] | None = None,
    ) -> None:
        self.source, self.transform, self.shuffle = source, transform, shuffle
        self.after = after  # what a worker does to a whole batch
        self.pins = False  # whether batches come in pinned memory, for a GPU
        self.batch, self.seed = whole("batch", batch), whole("seed", seed, least=0)
        self.workers, self.ranks = whole("workers", workers, least=0), whole("ranks", ranks)
        self.rank, self.block = whole("rank", rank, least=0, most=self.ranks - 1), whole("block", block)
        self.bad_image_limit = rate("bad_image_limit", bad_image_limit)
        self.bad: dict[int, Skip | None] = {}
        ahead = max(self.workers * AHEAD, 1)
        share = RankShare(batch=self.batch, rank=self.rank, ranks=self.ranks, block=self.block, ahead=ahead, full=full)
        self.order = source.order(share, seed=self.seed, shuffle=shuffle)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sides of an image, C H W; nothing where `transform` does not say."""
        height, width = getattr(self.transform, "size", (0, 0))
        return getattr(self.transform, "channels", 0), height, width

    @property
    def steps(self) -> int:
        """Steps of an epoch; the last may be smaller."""
        return self.order.steps

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Give the batches of one epoch, from a step on."""
        yield from self._read(self.order.epoch(epoch, start))

    def stream(self, start: int = 0) -> Iterator[Batch]:
        """Give batches without end, epoch after epoch, from a step of the whole run on."""
        yield from self._read(self.order.stream(start))

    def _read(self, steps: Iterator[BatchIndices]) -> Iterator[Batch]:
        reader = _Reader(self.source, self.transform, self.shape, self.after)
        with _loading(reader, steps, self.workers, pins=self.pins) as batches:
            for batch in batches:
                self.note(batch.skipped)
                yield batch

    def note(self, skipped: tuple[Skip, ...]) -> None:
        """Count what was left out, each image once, and stop past the limit."""
        for skip in skipped:
            self.bad.setdefault(skip.sample, skip if len(self.bad) < LISTED else None)
        if (size := self.order.size) is not None:
            some = [(skip.name, skip.reason) for skip in islice(self.bad.values(), 5) if skip]
            check_limit(some, len(self.bad), size, self.bad_image_limit)


class _Reader(Dataset[Batch]):
    """What a worker holds: reads the samples of a batch, in its own process."""

    def __init__(
        self, source: Source, transform: Transform, shape: tuple[int, int, int], after: Callable[[Batch], Batch] | None
    ) -> None:
        self.source, self.transform, self.shape, self.after = source, transform, shape, after

    def __getitem__(self, wanted: BatchIndices) -> Batch:
        epoch, step, samples, places = wanted
        images, kept, skipped = [], [], []
        for index, sample in enumerate(samples.tolist()):
            try:
                images.append(self.transform(self.source.read(sample), sample, epoch))
                kept.append(index)
            except ImageError as error:
                skipped.append(Skip(sample, self.source.name(sample), str(error)))
        batch = Batch(
            images=torch.stack(images) if images else torch.empty(0, *self.shape, dtype=torch.uint8),
            labels=torch.from_numpy(self.source.labels_of(samples[kept])),
            samples=torch.from_numpy(samples[kept]),
            places=torch.from_numpy(places[kept]),
            absent=torch.from_numpy(np.delete(places, kept)),
            epoch=epoch,
            step=step,
            skipped=tuple(skipped),
        )
        return batch if self.after is None else self.after(batch)


class _Sender(Dataset[list[Any]]):
    """Sends what is small by value: each tensor is shared memory, which is asked for of its worker, one by one."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader

    def __getitem__(self, wanted: BatchIndices) -> list[Any]:
        batch = self.reader[wanted]
        return list(batch._replace(**{name: getattr(batch, name).numpy() for name in SMALL}))


def _received(sent: list[Any]) -> Batch:
    batch = Batch(*sent)
    return batch._replace(**{name: torch.from_numpy(getattr(batch, name)) for name in SMALL})


@contextmanager
def _loading(reader: _Reader, steps: Iterator[BatchIndices], workers: int, *, pins: bool) -> Iterator[Iterator[Batch]]:
    """Read batches here, or in worker processes that are stopped at the end."""
    if workers == 0:
        yield (reader[wanted] for wanted in steps)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of more workers than cores: the caller has counted them
        loading = DataLoader(
            _Sender(reader),
            sampler=steps,  # pyright: ignore[reportArgumentType]
            batch_size=None,
            num_workers=workers,
            worker_init_fn=_start,
            collate_fn=_as_it_is,
            prefetch_factor=AHEAD,
            pin_memory=pins,
        )
        with _undisturbed():
            batches = iter(loading)
    try:
        yield map(_received, batches)
    finally:
        stop = getattr(batches, "_shutdown_workers", None)
        if stop is not None:
            stop()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back; processes begun meanwhile never get them: they are for the one that they serve."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(worker: int) -> None:
    """Give a worker one thread, as there are as many workers as cores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH)
    torch.set_num_threads(1)


def _as_it_is(batch: Any) -> Any:  # noqa: ANN401
    return batch
