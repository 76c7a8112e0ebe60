"""Batches in an order that is a function of (seed, epoch, place): the same for any number of workers and ranks.

A step is a stretch of the epoch's order, so a run resumes at any step at once. An image that cannot be decoded is left
out, counted and listed, never replaced by another; past a limit the run stops. Where images are augmented does not
change them: on a GPU it costs the model time; in workers it takes cores.
"""

import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Required, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.config import Preprocessing
from vitrail.config.check import rate, whole
from vitrail.config.recipe import Augmentation, AugmentOn
from vitrail.data.decode import ImageError, Pixels
from vitrail.data.levels import check_channels
from vitrail.data.source import Batch, BatchIndices, RankShare, Skip, Source, check_limit, known_of
from vitrail.data.transforms.crops import crop_resize
from vitrail.data.transforms.finish import BatchTransform
from vitrail.data.transforms.resize import EvalTransform, TrainTransform
from vitrail.ops.constants import upload

# From what a source holds of a sample, its number and the epoch, to uint8 C H W, or to what its `join` takes.
Transform = Callable[[bytes | Pixels, int, int], Any]
AHEAD = 2  # batches that a worker is given before it is done with one
SWITCH = 0.0005  # seconds until a worker lets in its thread that hands memory over; Python waits ten times as long
SMALL = ("labels", "samples", "places", "absent")
KNOWN = ("masks", "objects", "shapes", "targets")  # of an image, where it has them
LISTED = 1000  # bad images that are remembered by name; all are counted
MANY_WORKERS, LARGE_SIDE = 8, 128  # from which on workers augment, where it is left to us
STILL = Augmentation(crop="squash", flip=False)  # nothing random


class Reading(TypedDict, total=False):
    """How a feed reads, in the words of `Loader`."""

    batch: Required[int]
    workers: int
    rank: int
    ranks: int
    bad_image_limit: float
    device: torch.device | str


class Loader:
    """Reads a source in batches; the last one of an epoch is as large as what is left, or is left out where `full`.

    What comes `after` the transform of each image is done in the workers for the CPU, and on a GPU there, to which
    uint8 goes.
    """

    def __init__(
        self,
        source: Source,
        transform: Transform,
        *,
        batch: int,
        after: BatchTransform | None = None,
        seed: int = 0,
        shuffle: bool = True,
        workers: int = 0,
        rank: int = 0,
        ranks: int = 1,
        block: int = 1,
        bad_image_limit: float = 0.01,
        full: bool = False,
        device: torch.device | str = "cpu",
        augment_on: AugmentOn = "auto",
    ) -> None:
        self.source, self.transform, self.after, self.device = source, transform, after, torch.device(device)
        self.workers = whole("workers", workers, least=0)
        self.bad_image_limit = rate("bad_image_limit", bad_image_limit)
        self.bad: dict[int, Skip | None] = {}
        ahead = max(self.workers * AHEAD, 1)
        share = RankShare(batch=batch, rank=rank, ranks=ranks, block=block, ahead=ahead, full=full)
        self.order = source.order(share, seed=whole("seed", seed, least=0), shuffle=shuffle)
        many = self.workers >= MANY_WORKERS and min(self._shape[1:]) >= LARGE_SIDE
        check_channels(source, self._shape[0])
        self.augmented = augment_on == "workers" or (augment_on == "auto" and many)

    @property
    def steps(self) -> int:
        """Steps of an epoch; the last may be smaller."""
        return self.order.steps

    def epoch(self, epoch: int, start: int = 0) -> Generator[Batch]:
        """Give the batches of one epoch, from a step on."""
        yield from self._placed(self.order.epoch(epoch, start))

    def stream(self, start: int = 0) -> Generator[Batch]:
        """Give batches without end, epoch after epoch, from a step of the whole run on."""
        yield from self._placed(self.order.stream(start))

    def note(self, skipped: tuple[Skip, ...]) -> None:
        """Count what was left out, each image once, and stop past the limit."""
        for skip in skipped:
            self.bad.setdefault(skip.sample, skip if len(self.bad) < LISTED else None)
        if (size := self.order.size) is not None:
            some = [(skip.name, skip.reason) for skip in islice(self.bad.values(), 5) if skip]
            check_limit(some, len(self.bad), size, self.bad_image_limit)

    @property
    def _shape(self) -> tuple[int, int, int]:
        """Sides of an image, C H W; nothing where `transform` does not say."""
        height, width = getattr(self.transform, "size", (0, 0))
        return getattr(self.transform, "channels", 0), height, width

    def _read(self, steps: Iterator[BatchIndices]) -> Iterator[Batch]:
        """Read batches, here or in workers."""
        after = self.after
        if after is not None and self.device.type != "cpu":
            after = after.augment if self.augmented else None
        reader = _Reader(self.source, self.transform, self._shape, after, self._whole())
        # To copy images that are there costs less than to start workers and to be handed what they copied.
        copied = reader.whole and isinstance(self.transform, EvalTransform)
        copied = copied and (self.source.shape or ())[:2] == self._shape[1:]
        with _loading(reader, steps, 0 if copied else self.workers, pins=self.device.type == "cuda") as batches:
            for batch in batches:
                self.note(batch.skipped)
                yield batch

    def _whole(self) -> bool:
        """Tell whether batches are read at once, as their images are pixels of one size; a GPU then crops them too."""
        shape, channels = self.source.shape, self._shape[0]
        if shape is None or shape[2] not in (1, channels):
            return False
        if isinstance(self.transform, TrainTransform):
            by_boxes = self.transform.boxes(shape[:2], np.empty(0, dtype=np.int64), 0) is not None
            return by_boxes and self.device.type != "cpu" and not self.augmented
        return isinstance(self.transform, EvalTransform)

    def _placed(self, steps: Iterator[BatchIndices]) -> Iterator[Batch]:
        """Give batches where the model is; a GPU gets the next one, on a stream of its own, while it works on this."""
        batches = self._read(steps)
        if self.device.type != "cuda":
            yield from batches if self.device.type == "cpu" else map(self._place, batches)
            return
        side = torch.cuda.Stream(self.device)
        ready: tuple[Batch, torch.cuda.Event] | None = None
        for batch in batches:
            with torch.cuda.stream(side):
                placed = self._place(batch)
                event = torch.cuda.Event()
                event.record(side)
            if ready is not None:
                yield _hand_over(*ready)
            ready = placed, event
        if ready is not None:
            yield _hand_over(*ready)

    def _place(self, batch: Batch) -> Batch:
        images, labels = (part.pin_memory().to(self.device, non_blocking=True) for part in (batch.images, batch.labels))
        if batch.boxes is not None:
            images = crop_resize(images, upload(batch.boxes, self.device), self._shape[1:])
        known = {name: part for name in KNOWN if (part := getattr(batch, name)) is not None}
        known = {name: part.pin_memory().to(self.device, non_blocking=True) for name, part in known.items()}
        placed = batch._replace(images=images, labels=labels, boxes=None, **known)
        return placed if self.after is None else self.after(placed, augmented=self.augmented)


def train_feed(
    source: Source,
    size: tuple[int, int],
    *,
    augmentation: Augmentation,
    preprocessing: Preprocessing,
    seed: int = 0,
    channels: int = 3,
    augment_on: AugmentOn = "auto",
    full: bool = False,
    **options: Unpack[Reading],
) -> Loader:
    """Feed training: shuffled, cropped, augmented, mixed; smaller last steps of an epoch are left out where `full`."""
    augmentation = _fit_blocks(augmentation, options["batch"], options.get("ranks", 1))
    return Loader(
        source,
        TrainTransform(size, augmentation, seed=seed, channels=channels, value_range=preprocessing.value_range),
        after=BatchTransform(augmentation, preprocessing, len(source.class_names), seed),
        seed=seed,
        block=augmentation.mix_block if augmentation.mixup or augmentation.cutmix else 1,
        augment_on=augment_on,
        full=full,
        **options,
    )


def _fit_blocks(config: Augmentation, batch: int, ranks: int) -> Augmentation:
    """Make the blocks in which images mix the largest that divide a rank's part of a batch, up to `mix_block`.

    Of a batch that ranks cannot share evenly they divide the whole. A part that only 1 divides up to there is one
    block; an image alone is not mixed.
    """
    part = batch if batch % ranks else batch // ranks
    if part == 1:
        return replace(config, mixup=0.0, cutmix=0.0)
    found = (block for block in range(config.mix_block, 1, -1) if part % block == 0)
    return replace(config, mix_block=next(found, part))


def evaluation_feed(
    source: Source,
    size: tuple[int, int],
    *,
    preprocessing: Preprocessing,
    channels: int = 3,
    **options: Unpack[Reading],
) -> Loader:
    """Feed evaluation: every image once, in the source's order, as the preprocessing says."""
    transform = EvalTransform(size, preprocessing, channels=channels)
    after = BatchTransform(STILL, preprocessing, len(source.class_names), 0)
    return Loader(source, transform, after=after, shuffle=False, **options)


def _hand_over(batch: Batch, event: torch.cuda.Event) -> Batch:
    """Let the stream that works wait for a batch, and keep its memory until that stream is done with it."""
    stream = torch.cuda.current_stream()
    stream.wait_event(event)
    for part in (batch.images, batch.labels, *(getattr(batch, name) for name in KNOWN)):
        if part is not None:
            part.record_stream(stream)
    return batch


@dataclass
class _Reader(Dataset[Batch]):
    """What a worker holds: reads the samples of a batch, in its own process."""

    source: Source
    transform: Transform
    shape: tuple[int, int, int]
    after: Callable[[Batch], Batch] | None
    whole: bool = False  # batches are read at once

    def __getitem__(self, wanted: BatchIndices) -> Batch:
        if self.whole:
            batch = self._at_once(wanted)
            return batch if self.after is None else self.after(batch)
        epoch, step, samples, places = wanted
        images, kept, skipped = [], [], []
        for index, sample in enumerate(samples.tolist()):
            try:
                images.append(self.transform(self.source.read(sample), sample, epoch))
                kept.append(index)
            except ImageError as error:
                skipped.append(Skip(self.source.own_number(sample), self.source.name(sample), str(error)))
        batch = Batch(
            **(getattr(self.transform, "join", None) or self._stack)(images),  # a transform to several shapes has one
            **known_of(self.source, samples[kept]),
            samples=torch.from_numpy(samples[kept]),
            places=torch.from_numpy(places[kept]),
            absent=torch.from_numpy(np.delete(places, kept)),
            epoch=epoch,
            step=step,
            skipped=tuple(skipped),
        )
        return batch if self.after is None else self.after(batch)

    def _stack(self, images: list[Tensor]) -> dict[str, Any]:
        return {"images": torch.stack(images) if images else torch.empty(0, *self.shape, dtype=torch.uint8)}

    def _at_once(self, wanted: BatchIndices) -> Batch:
        """Read pixels of one size, a batch at a time; what is cropped later says its boxes."""
        epoch, step, samples, places = wanted
        images = torch.from_numpy(self.source.read_many(samples)).permute(0, 3, 1, 2)
        if images.shape[1] != self.shape[0]:
            images = images.expand(-1, self.shape[0], -1, -1)  # grey
        boxes = None
        if isinstance(self.transform, TrainTransform):
            boxes = self.transform.boxes((images.shape[2], images.shape[3]), samples, epoch)
        elif isinstance(self.transform, EvalTransform):
            images = self.transform.many(images)
        return Batch(
            images=images.contiguous(),
            **known_of(self.source, samples),
            samples=torch.from_numpy(samples),
            places=torch.from_numpy(places),
            absent=torch.empty(0, dtype=torch.int64),
            epoch=epoch,
            step=step,
            skipped=(),
            boxes=boxes,
        )


def _send(batch: Batch) -> list[Any]:
    """Send what is small by value: each tensor is shared memory, asked for of its worker, one by one."""
    return list(batch._replace(**{name: getattr(batch, name).numpy() for name in SMALL}))


def _receive(sent: list[Any]) -> Batch:
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
            reader,
            sampler=steps,  # pyright: ignore[reportArgumentType]
            batch_size=None,
            num_workers=workers,
            worker_init_fn=_start,
            collate_fn=_send,  # pyright: ignore[reportArgumentType]
            prefetch_factor=AHEAD,
            pin_memory=pins,
        )
        with _undisturbed():
            batches = iter(loading)
    try:
        yield map(_receive, batches)
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
