"""Whole batches of pixels: the same bytes as image by image."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation
from vitrail.data.feed import Loader, _Reader, evaluation_feed, train_feed
from vitrail.data.source import Source, Subset
from vitrail.data.sources.memory import MemorySource
from vitrail.data.sources.packed import PackedSource, pack
from vitrail.data.transforms.crops import crop_resize
from vitrail.data.transforms.geometry import SLOTS, inception_box, inception_boxes
from vitrail.data.transforms.resize import resize
from vitrail.ops.random import draws


def in_memory(channels: int = 3, side: tuple[int, int] = (19, 23), count: int = 31) -> MemorySource:
    images = np.random.default_rng(5).integers(0, 256, (count, *side, channels), dtype=np.uint8)
    return MemorySource(images, np.arange(count) % 3, ["a", "b", "c"])


def packed(folder: Path, channels: int = 3, side: tuple[int, int] = (19, 23), count: int = 31) -> PackedSource:
    pack(in_memory(channels, side, count), folder / f"{side}", side, overwrite=False)
    return PackedSource(folder / f"{side}")


@pytest.mark.parametrize("size", [(24, 20), (13, 37), (7, 5)], ids=str)
def test_boxes_are_resized_to_the_same_bytes_as_one_by_one(size: tuple[int, int]) -> None:
    random, count = np.random.default_rng(0), 60
    images = torch.from_numpy(random.integers(0, 256, (count, 3, 24, 31), dtype=np.uint8))
    tall, wide = random.integers(1, 25, count), random.integers(1, 32, count)
    top, left = (
        (random.random(count) * (24 - tall + 1)).astype(int),
        (random.random(count) * (31 - wide + 1)).astype(int),
    )
    made = crop_resize(images, torch.from_numpy(np.stack([top, left, tall, wide], axis=1)), size)
    for one, image, y, x, high, broad in zip(made, images, top, left, tall, wide, strict=True):
        assert torch.equal(one, resize(image[:, y : y + high, x : x + broad], size, "antialias"))


def test_boxes_are_drawn_as_one_by_one() -> None:
    for area, aspect in (((0.05, 1.0), (3 / 4, 4 / 3)), ((0.9, 1.0), (0.2, 0.25))):  # the last rarely fit
        u = draws(np.arange(200), SLOTS, 7, 3, 1)
        boxes = inception_boxes(17, 29, u, area, aspect)
        assert boxes.tolist() == [list(inception_box(17, 29, row, area, aspect)) for row in u]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_training_batch_at_once_is_the_batch_image_by_image(tmp_path: Path, channels: int) -> None:
    source = Subset(packed(tmp_path, channels), np.arange(30)[::-1])
    feed = train_feed(source, (16, 12), augmentation=Augmentation(), preprocessing=Preprocessing(), batch=8, seed=3)
    for wanted in [*feed.order.epoch(0), *feed.order.epoch(2)]:
        slow = _Reader(source, feed.transform, (3, 16, 12), None)[wanted]
        fast = _Reader(source, feed.transform, (3, 16, 12), None, whole=True)[wanted]
        assert fast.boxes is not None
        assert torch.equal(crop_resize(fast.images, torch.from_numpy(fast.boxes), (16, 12)), slow.images)
        assert torch.equal(fast.labels, slow.labels)
        assert torch.equal(fast.samples, slow.samples)
        assert torch.equal(fast.places, slow.places)


@pytest.mark.parametrize("how", [Preprocessing(), Preprocessing(resize="crop", crop_share=0.8)], ids=["squash", "crop"])
def test_an_evaluation_at_once_is_that_image_by_image(tmp_path: Path, how: Preprocessing) -> None:
    source = packed(tmp_path)
    feed = evaluation_feed(source, (14, 11), preprocessing=how, batch=8)
    assert reads_at_once(feed)
    slow = [_Reader(source, feed.transform, (3, 14, 11), feed.after)[wanted] for wanted in feed.order.epoch(0)]
    for one, other in zip(feed.epoch(0), slow, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)


def test_only_packed_pixels_are_read_at_once(tmp_path: Path) -> None:
    def feed(source: Source, **fields: object) -> Loader:
        config = Augmentation(**fields)  # pyright: ignore[reportArgumentType]
        return train_feed(source, (16, 12), augmentation=config, preprocessing=Preprocessing(), batch=8, device="meta")

    source = packed(tmp_path)
    assert source.shape == (19, 23, 3)
    assert reads_at_once(feed(source))
    assert not reads_at_once(feed(source, resizing="gvt"))
    assert not reads_at_once(feed(source, crop="middle"))
    assert not reads_at_once(feed(packed(tmp_path, side=(300, 300), count=3)))  # its weights would take much memory
    assert not reads_at_once(feed(in_memory()))  # what is asked for image by image may fail image by image


def reads_at_once(feed: Loader) -> bool:
    return feed._whole()
