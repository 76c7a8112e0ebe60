"""From what a source holds to batches of numbers: transformed in the workers, or on the GPU where the model is.

Where images are augmented does not change them. On a GPU it costs the model time; in workers it takes cores.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from vitrail.config.card import Preprocessing
from vitrail.config.recipe import Augmentation, AugmentOn
from vitrail.data.decode import Box, OpenImage, Pixels, owned, with_channels
from vitrail.data.loader import Batch, Loader
from vitrail.data.source import Source
from vitrail.data.transforms import augment, draw_slots, evaluation_image, finish, inception_box, resize
from vitrail.data.transforms.geometry import SLOTS
from vitrail.ops.random import Purpose, draws

MANY_WORKERS, LARGE_SIDE = 8, 128  # from which on workers augment, where it is left to us
CHUNK = 32  # images that a worker augments at once: what they need beside stays in its core's cache
STILL = Augmentation(crop="squash", flip=False)  # nothing random


@dataclass
class TrainTransform:
    """What training sees of an image: a random part, or all, resized; a function of (seed, epoch, sample)."""

    size: tuple[int, int]
    augmentation: Augmentation
    seed: int
    channels: int = 3

    @cached_property
    def _still(self) -> Preprocessing:
        return Preprocessing(resize="squash" if self.augmentation.crop == "squash" else "crop")

    def __call__(self, data: bytes | Pixels, sample: int, epoch: int) -> UInt8[Tensor, "C H W"]:
        """Decode no more than is needed, crop and resize."""
        image = OpenImage(data) if isinstance(data, bytes) else data
        how = self.augmentation.resizing
        if self.augmentation.crop != "inception":
            whole = image if isinstance(image, OpenImage) else to_tensor(image, self.channels)
            return evaluation_image(whole, self.size, self._still, None if how == "antialias" else how, self.channels)
        height, width = (image.height, image.width) if isinstance(image, OpenImage) else image.shape[:2]
        u = draws(np.array([sample]), SLOTS, self.seed, epoch, Purpose.CROP)[0]
        box = inception_box(height, width, u, self.augmentation.crop_area, self.augmentation.aspect)
        least = self.size if how == "antialias" else (0, 0)  # the authors' ways read every pixel
        part = image.pixels(box, least, self.channels) if isinstance(image, OpenImage) else cut(image, box)
        return resize(to_tensor(part, self.channels), self.size, how)


@dataclass
class EvalTransform:
    """What evaluation sees of an image: the whole image squashed, or its middle."""

    size: tuple[int, int]
    preprocessing: Preprocessing
    channels: int = 3

    def __call__(self, data: bytes | Pixels, sample: int, epoch: int) -> UInt8[Tensor, "C H W"]:
        """Decode and resize; the same whatever the epoch."""
        image = OpenImage(data) if isinstance(data, bytes) else to_tensor(data, self.channels)
        return evaluation_image(image, self.size, self.preprocessing, None, self.channels)


def cut(pixels: Pixels, box: Box) -> Pixels:
    """Cut a part out of pixels."""
    return pixels[box.top : box.top + box.height, box.left : box.left + box.width]


def to_tensor(pixels: Pixels, channels: int) -> UInt8[Tensor, "C H W"]:
    """Give pixels as a tensor of so many channels."""
    return torch.from_numpy(owned(with_channels(pixels, channels))).permute(2, 0, 1)


@dataclass
class BatchTransform:
    """Flips, augments, scales and mixes a batch, where its images are; a function of (seed, epoch, sample) alone."""

    config: Augmentation
    preprocessing: Preprocessing
    classes: int
    seed: int

    def augment(self, batch: Batch) -> Batch:
        """Flip and augment alone, in whole levels."""
        if not len(batch.labels):
            return batch
        slots = draw_slots(self.config).items()
        u = {what: draws(batch.samples.numpy(), count, self.seed, batch.epoch, what) for what, count in slots}
        images = torch.empty_like(batch.images)
        for start in range(0, len(images), CHUNK):
            some = slice(start, start + CHUNK)
            images[some] = augment(batch.images[some], {what: part[some] for what, part in u.items()}, self.config)
        return batch._replace(images=images)

    def __call__(self, batch: Batch, *, augmented: bool = False) -> Batch:
        """Give float images and the shares of the classes."""
        made = finish(
            batch.images,
            batch.labels,
            batch.samples.numpy(),
            batch.places.numpy(),
            self.config,
            self.preprocessing,
            self.classes,
            self.seed,
            batch.epoch,
            batch.absent.numpy(),
            augmented=augmented,
        )
        return batch._replace(images=made.images, targets=made.targets)


class BatchStream:
    """A loader and what comes after it: on the CPU in its workers; on a GPU there, to which uint8 goes."""

    def __init__(
        self, loader: Loader, after: BatchTransform, device: torch.device | str = "cpu", augment_on: AugmentOn = "auto"
    ) -> None:
        self.loader, self.after, self.device = loader, after, torch.device(device)
        many = loader.workers >= MANY_WORKERS and min(loader.shape[1:]) >= LARGE_SIDE
        self.augmented = augment_on == "workers" or (augment_on == "auto" and many)
        loader.pins = self.device.type == "cuda"
        loader.after = after if self.device.type == "cpu" else after.augment if self.augmented else None

    def epoch(self, epoch: int, start: int = 0) -> Generator[Batch]:
        """Give the batches of one epoch, from a step on."""
        yield from self._placed(self.loader.epoch(epoch, start))

    def stream(self, start: int = 0) -> Generator[Batch]:
        """Give batches without end, from a step of the whole run on."""
        yield from self._placed(self.loader.stream(start))

    def _placed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Give batches where the model is; a GPU gets the next one, on a stream of its own, while it works on this."""
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
        return self.after(batch._replace(images=images, labels=labels), augmented=self.augmented)


def _hand_over(batch: Batch, event: torch.cuda.Event) -> Batch:
    """Let the stream that works wait for a batch, and keep its memory until that stream is done with it."""
    stream = torch.cuda.current_stream()
    stream.wait_event(event)
    for part in (batch.images, batch.labels, batch.targets):
        if part is not None:
            part.record_stream(stream)
    return batch


def train_feed(
    source: Source,
    size: tuple[int, int],
    *,
    batch: int,
    augmentation: Augmentation,
    preprocessing: Preprocessing,
    seed: int = 0,
    channels: int = 3,
    workers: int = 0,
    rank: int = 0,
    ranks: int = 1,
    bad_image_limit: float = 0.01,
    device: torch.device | str = "cpu",
    augment_on: AugmentOn = "auto",
    full: bool = False,
) -> BatchStream:
    """Feed training: shuffled, cropped, augmented, mixed; smaller last steps of an epoch are left out where `full`."""
    mixes = bool(augmentation.mixup or augmentation.cutmix)
    loader = Loader(
        source,
        TrainTransform(size, augmentation, seed=seed, channels=channels),
        batch=batch,
        seed=seed,
        workers=workers,
        rank=rank,
        ranks=ranks,
        block=augmentation.mix_block if mixes else 1,
        bad_image_limit=bad_image_limit,
        full=full,
    )
    return BatchStream(
        loader, BatchTransform(augmentation, preprocessing, len(source.class_names), seed), device, augment_on
    )


def evaluation_feed(
    source: Source,
    size: tuple[int, int],
    *,
    batch: int,
    preprocessing: Preprocessing,
    channels: int = 3,
    workers: int = 0,
    rank: int = 0,
    ranks: int = 1,
    bad_image_limit: float = 0.01,
    device: torch.device | str = "cpu",
) -> BatchStream:
    """Feed evaluation: every image once, in the source's order, as the preprocessing says."""
    transform = EvalTransform(size, preprocessing, channels=channels)
    loader = Loader(
        source,
        transform,
        batch=batch,
        shuffle=False,
        workers=workers,
        rank=rank,
        ranks=ranks,
        bad_image_limit=bad_image_limit,
    )
    return BatchStream(loader, BatchTransform(STILL, preprocessing, len(source.class_names), 0), device)
