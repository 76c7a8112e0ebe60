"""Batches of images of many shapes: whole, in their own shape, as patches."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluating import Pictures
from PIL import Image

from vitrail.config import Preprocessing
from vitrail.data.aspect import AspectTransform, aspect_feed, scale_patches
from vitrail.data.sources.folder import FilesSource
from vitrail.data.transforms.finish import scale
from vitrail.data.transforms.resize import resize, to_tensor
from vitrail.ops.patches import patchify, unpatchify

SHAPES = [(30, 40), (7, 90), (64, 64), (51, 12), (30, 40)]
CROPPED = Preprocessing(resize="crop", crop_share=0.875, mean=(0.4, 0.5, 0.6), deviation=(0.2, 0.3, 0.1))


def photo(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def photos(tmp_path: Path) -> FilesSource:
    paths = [tmp_path / f"{number}.png" for number in range(len(SHAPES))]
    for path, shape in zip(paths, SHAPES, strict=True):
        Image.fromarray(photo(*shape)).save(path)
    paths.insert(2, tmp_path / "bad.png")
    paths[2].write_text("none")
    return FilesSource([str(path) for path in paths])


def test_an_image_is_seen_whole_at_its_own_shape() -> None:
    transform = AspectTransform(4, 12, CROPPED)
    image = photo(30, 90)
    found = transform(image, 0, 0)
    assert found.shape == (3, 8, 24)
    assert torch.equal(found, resize(to_tensor(image, 3), (8, 24), "bilinear"))


def test_a_photograph_on_its_side_is_turned_before_its_shape_is_taken() -> None:
    file, tags = io.BytesIO(), Image.Exif()
    tags[0x0112] = 6
    Image.fromarray(photo(30, 90)).save(file, "PNG", exif=tags)
    assert AspectTransform(4, 12, CROPPED)(file.getvalue(), 0, 0).shape == (3, 24, 8)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_feed_gives_the_patches_of_all_images_in_order(photos: FilesSource, workers: int) -> None:
    feed = aspect_feed(photos, 4, 12, preprocessing=CROPPED, batch=4, workers=workers, bad_image_limit=0.5)
    batches = list(feed.epoch(0))
    assert [batch.samples.tolist() for batch in batches] == [[0, 1, 3], [4, 5]]
    assert [skip.name for skip in batches[0].skipped] == [photos.name(2)]
    transform, places = AspectTransform(4, 12, CROPPED), iter(SHAPES)
    for batch in batches:
        assert batch.grids is not None
        assert batch.images.dtype == torch.float32
        counts = [rows * cols for rows, cols in batch.grids.tolist()]
        for part, grid in zip(batch.images.split(counts), batch.grids.tolist(), strict=True):
            image = transform(photo(*next(places)), 0, 0)
            assert tuple(grid) == (image.shape[1] // 4, image.shape[2] // 4)
            assert torch.equal(unpatchify(part[None], 4, tuple(grid)), scale(image[None], CROPPED))


def test_a_batch_of_which_nothing_can_be_read_is_empty() -> None:
    source = Pictures(3).spoil(0, 1, 2)
    feed = aspect_feed(source, 4, 6, preprocessing=CROPPED, batch=4)
    feed.bad_image_limit = 1.0  # as where the caller checks it
    batch = next(iter(feed.epoch(0)))
    assert batch.images.shape == (0, 48)
    assert batch.grids is not None
    assert batch.grids.shape == (0, 2)


@pytest.mark.parametrize("channels", [1, 3])
def test_patches_are_scaled_as_images_are(channels: int) -> None:
    images = torch.randint(0, 256, (2, channels, 12, 8), dtype=torch.uint8)
    wanted = patchify(scale(images, CROPPED), 4).flatten(0, 1)
    assert torch.equal(scale_patches(patchify(images, 4).flatten(0, 1), CROPPED, 4), wanted)
