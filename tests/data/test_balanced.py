"""Classes that come equally often: counted over epochs, alike for any workers, ranks and restarts."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch

from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation
from vitrail.data.balanced import BalancedSource
from vitrail.data.feed import train_feed
from vitrail.data.source import RankShare
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import DataError

COUNTS = (61, 7, 2, 0, 1)
TOTAL = sum(COUNTS)


def source() -> MemorySource:
    labels = np.random.default_rng(3).permutation(np.repeat(np.arange(5), COUNTS))
    pixels = np.random.default_rng(4).integers(0, 256, (TOTAL, 12, 10, 3), dtype=np.uint8)
    return MemorySource(pixels, labels, tuple("abcde"))


def share(batch: int = 8, rank: int = 0, ranks: int = 1) -> RankShare:
    return RankShare(batch=batch, rank=rank, ranks=ranks, block=1, ahead=1)


def drawn(epoch: int, *, seed: int = 0) -> list[int]:
    order = BalancedSource(source()).order(share(), seed=seed, shuffle=True)
    return [sample for batch in order.epoch(epoch) for sample in batch.samples.tolist()]


def test_every_class_comes_equally_often_in_every_epoch() -> None:
    made = source()
    for epoch in range(3):
        labels = [int(made.labels[sample % TOTAL]) for sample in drawn(epoch)]
        counts = Counter(labels)
        assert counts.keys() == {0, 1, 2, 4}
        assert len(labels) == TOTAL
        assert max(counts.values()) - min(counts.values()) <= 1


def test_every_image_of_a_class_comes_before_any_comes_again_across_epochs() -> None:
    made = source()
    every = [sample % TOTAL for epoch in range(9) for sample in drawn(epoch)]
    for label in (0, 1, 2, 4):
        own = [sample for sample in every if made.labels[sample] == label]
        counts = Counter(own)
        assert set(counts) == set(np.flatnonzero(made.labels == label).tolist())
        assert max(counts.values()) - min(counts.values()) <= 1


def test_an_image_that_comes_again_in_an_epoch_has_another_number_and_so_another_crop() -> None:
    numbers = drawn(0)
    assert len(set(numbers)) == len(numbers)
    feed = train_feed(
        BalancedSource(source()), (12, 10), augmentation=Augmentation(), preprocessing=Preprocessing(), batch=71
    )
    batch = next(feed.epoch(0))
    single = batch.images[batch.labels == 4]
    assert len(single) > 10
    assert len({image.numpy().tobytes() for image in single}) == len(single)


def test_the_order_is_a_function_of_the_seed_epoch_and_place() -> None:
    order = BalancedSource(source()).order(share(), seed=0, shuffle=True)
    whole = [batch.samples.tolist() for batch in islice(order.stream(), 30)]
    assert [batch.samples.tolist() for batch in islice(order.stream(13), 17)] == whole[13:]
    assert drawn(0) != drawn(1)
    assert drawn(0) != drawn(0, seed=1)
    parts = [BalancedSource(source()).order(share(8, rank, 2), seed=0, shuffle=True) for rank in range(2)]
    joined = [
        [*one.samples.tolist(), *two.samples.tolist()]
        for one, two in zip(*(islice(part.stream(), 30) for part in parts), strict=True)
    ]
    assert joined == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_for_any_number_of_workers(workers: int) -> None:
    feed = train_feed(
        BalancedSource(source()),
        (8, 8),
        augmentation=Augmentation(mixup=0.3, mix_block=4),
        preprocessing=Preprocessing(),
        batch=8,
        workers=workers,
        seed=5,
    )
    first = next(feed.epoch(1))
    found = (float(first.images.double().sum()), first.samples.tolist(), first.labels.tolist())
    known.setdefault("first", found)
    assert found == known["first"]
    assert first.targets is not None
    assert torch.equal(first.labels, torch.from_numpy(source().labels[first.samples.numpy() % TOTAL]))


known: dict[str, object] = {}


def test_images_without_labels_are_left_out_and_no_labels_at_all_are_refused() -> None:
    made = source()
    made._labels = np.where(made.labels == 0, -1, made.labels)
    order = BalancedSource(made).order(share(), seed=0, shuffle=True)
    seen = {int(made.labels[sample % TOTAL]) for batch in order.epoch(0) for sample in batch.samples.tolist()}
    assert seen == {1, 2, 4}
    made._labels = np.full(TOTAL, -1)
    with pytest.raises(DataError, match="needs labels, and no image has one"):
        BalancedSource(made).order(share(), seed=0, shuffle=True)
