"""Batches of images with their masks or boxes, to train on and to measure by."""

from typing import Unpack

from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation, AugmentOn
from vitrail.data.feed import STILL, Loader, Reading
from vitrail.data.source import Source
from vitrail.data.transforms.annotated import (
    AnnotatedBatchTransform,
    AnnotatedTransform,
    WholeTransform,
    squashed,
)
from vitrail.data.transforms.finish import BatchTransform


def annotated_train_feed(
    source: Source,
    size: tuple[int, int],
    *,
    augmentation: Augmentation,
    preprocessing: Preprocessing,
    seed: int = 0,
    channels: int = 3,
    augment_on: AugmentOn = "auto",
    full: bool = False,
    shapes: bool = False,
    **options: Unpack[Reading],
) -> Loader:
    """Feed training: shuffled, cropped, flipped, jittered, with masks, boxes and shapes that go with it."""
    return Loader(
        source,
        AnnotatedTransform(source, size, augmentation, seed, channels, preprocessing.value_range, shapes),
        after=AnnotatedBatchTransform(augmentation, squashed(preprocessing), 0, seed),
        seed=seed,
        augment_on=augment_on,
        full=full,
        **options,
    )


def annotated_feed(
    source: Source,
    size: tuple[int, int],
    *,
    preprocessing: Preprocessing,
    channels: int = 3,
    shapes: bool = False,
    **options: Unpack[Reading],
) -> Loader:
    """Feed every image once, whole, in the source's order, with what its file says of it."""
    transform = WholeTransform(source, size, preprocessing, channels, shapes)
    return Loader(source, transform, after=BatchTransform(STILL, preprocessing, 0, 0), shuffle=False, **options)
