"""Batches as training and evaluation take them: finished in the workers, or on the GPU where the model is."""

from collections.abc import Iterator

import torch

from vitrail.config.augment import Augmentation
from vitrail.config.card import Preprocessing
from vitrail.data.loader import Batch, Loader
from vitrail.data.source import Source
from vitrail.data.take import EvaluationTake, TrainTake
from vitrail.data.transforms import finish

STILL = Augmentation(crop="squash", flip=False)  # nothing random


class Finish:
    """Flips, augments, scales and mixes a batch, where its images are; a function of (seed, epoch, sample) alone."""

    def __init__(self, config: Augmentation, preprocessing: Preprocessing, classes: int, seed: int) -> None:
        self.config, self.preprocessing, self.classes, self.seed = config, preprocessing, classes, seed

    def __call__(self, batch: Batch) -> Batch:
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
        )
        return batch._replace(images=made.images, targets=made.targets)


class Feed:
    """A loader and what comes after it: on the CPU in its workers; on a GPU there, to which uint8 goes."""

    def __init__(self, loader: Loader, after: Finish, device: torch.device | str = "cpu") -> None:
        self.loader, self.after, self.device = loader, after, torch.device(device)
        loader.after = after if self.device.type == "cpu" else None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Give the batches of one epoch, from a step on."""
        yield from map(self._place, self.loader.epoch(epoch, start))

    def stream(self, start: int = 0) -> Iterator[Batch]:
        """Give batches without end, from a step of the whole run on."""
        yield from map(self._place, self.loader.stream(start))

    def _place(self, batch: Batch) -> Batch:
        if self.device.type == "cpu":
            return batch
        images, labels = (part.pin_memory().to(self.device, non_blocking=True) for part in (batch.images, batch.labels))
        return self.after(batch._replace(images=images, labels=labels))


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
    limit: float = 0.01,
    device: torch.device | str = "cpu",
) -> Feed:
    """Feed training: shuffled, cropped, augmented, mixed."""
    mixes = bool(augmentation.mixup or augmentation.cutmix)
    loader = Loader(
        source,
        TrainTake(size, augmentation, seed=seed, channels=channels),
        batch=batch,
        seed=seed,
        workers=workers,
        rank=rank,
        ranks=ranks,
        block=augmentation.mix_block if mixes else 1,
        limit=limit,
    )
    return Feed(loader, Finish(augmentation, preprocessing, len(source.class_names), seed), device)


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
    limit: float = 0.01,
    device: torch.device | str = "cpu",
) -> Feed:
    """Feed evaluation: every image once, in the source's order, as the preprocessing says."""
    take = EvaluationTake(size, preprocessing, channels=channels)
    loader = Loader(source, take, batch=batch, shuffle=False, workers=workers, rank=rank, ranks=ranks, limit=limit)
    return Feed(loader, Finish(STILL, preprocessing, len(source.class_names), 0), device)
