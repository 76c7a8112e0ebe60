"""Images of any kind become the numbers that evaluation feeds a model, to the bit."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.config import Preprocessing
from vitrail.data.decode import ImageError, decode
from vitrail.data.feed import evaluation_feed
from vitrail.data.pixels import owned
from vitrail.data.preprocess import read_image, to_batch
from vitrail.data.sources.folder import FolderSource
from vitrail.errors import DataError

GENERATOR = np.random.RandomState(7)
COLORS = np.asarray(
    Image.fromarray(GENERATOR.randint(0, 256, (6, 9, 3)).astype(np.uint8)).resize((90, 60), Image.Resampling.BICUBIC)
)
CARDS = (
    Preprocessing(),
    Preprocessing(
        mean=(0.485, 0.456, 0.406),
        deviation=(0.229, 0.224, 0.225),
        resize="crop",
        crop_share=0.875,
        interpolation="bicubic",
    ),
)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """One photo of each kind that differs on its way: large, turned, grey, transparent, 16 bits, animated."""
    folder = tmp_path / "photos" / "one"
    folder.mkdir(parents=True)
    image = Image.fromarray(COLORS)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.resize((900, 600)).save(folder / "a-large.jpg", quality=95)
    image.save(folder / "b-turned.jpg", exif=exif.tobytes())
    image.convert("L").save(folder / "c-grey.png")
    image.convert("RGBA").rotate(30).save(folder / "d-transparent.png")
    Image.fromarray(COLORS[:, :, 0].astype(np.uint16) * 257).save(folder / "e-deep.png")
    image.quantize(32).save(folder / "f.gif", save_all=True, append_images=[image.rotate(90).quantize(32)])
    image.convert("CMYK").save(folder / "g-ink.jpg")
    return folder


def fed(folder: Path, card: Preprocessing, channels: int = 3) -> torch.Tensor:
    feed = evaluation_feed(FolderSource(folder.parent), (32, 24), batch=32, preprocessing=card, channels=channels)
    return next(iter(feed.epoch(0))).images


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_files_bytes_and_opened_images_are_what_evaluation_feeds(
    photos: Path, card: Preprocessing, channels: int
) -> None:
    paths = sorted(photos.iterdir())
    expected = fed(photos, card, channels)
    opened = [Image.open(io.BytesIO(path.read_bytes())) for path in paths]
    for images in (paths, tuple(map(str, paths)), [path.read_bytes() for path in paths], opened):
        torch.testing.assert_close(to_batch(images, card, (32, 24), channels), expected, rtol=0, atol=0)
    torch.testing.assert_close(to_batch(paths[1], card, (32, 24), channels), expected[1:2], rtol=0, atol=0)


def test_images_that_were_decoded_are_what_evaluation_feeds(photos: Path) -> None:
    paths = sorted(photos.iterdir())[1:]  # the large one is decoded smaller by itself
    expected = fed(photos, CARDS[1])[1:]
    decoded = [Image.open(io.BytesIO(path.read_bytes())) for path in paths]
    for image in decoded:
        image.load()
    arrays = [owned(decode(path.read_bytes())) for path in paths]
    for images in (decoded, arrays, [torch.from_numpy(array).permute(2, 0, 1) for array in arrays]):
        torch.testing.assert_close(to_batch(images, CARDS[1], (32, 24)), expected, rtol=0, atol=0)


def test_pixels_in_any_order_of_axes_are_one_image() -> None:
    array = COLORS.copy()
    tensor = torch.from_numpy(array)
    expected = to_batch(Image.fromarray(array), CARDS[0], 16)
    for image in (array, tensor, tensor.permute(2, 0, 1), np.flip(array[::-1], 0), array[None], tensor[None]):
        torch.testing.assert_close(to_batch(image, CARDS[0], 16), expected, rtol=0, atol=0)
    gray = to_batch(array[:, :, 0], CARDS[0], 16)
    for image in (array[:, :, :1], tensor[:, :, 0], Image.fromarray(array[:, :, 0])):
        torch.testing.assert_close(to_batch(image, CARDS[0], 16), gray, rtol=0, atol=0)
    both = to_batch(torch.stack([tensor, tensor]).permute(0, 3, 1, 2), CARDS[0], 16)
    torch.testing.assert_close(both, torch.cat([expected, expected]), rtol=0, atol=0)


def test_transparent_pixels_are_shown_on_white() -> None:
    clear = np.zeros((5, 7, 4), dtype=np.uint8)
    np.testing.assert_array_equal(read_image(clear), np.full((5, 7, 3), 255))
    np.testing.assert_array_equal(read_image(torch.from_numpy(clear).permute(2, 0, 1)), np.full((5, 7, 3), 255))


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (torch.rand(3, 8, 9), "torch.float32|float32.*before transforms"),
        (np.zeros((8, 9, 3), dtype=np.float64), "float64.*before transforms"),
        (np.zeros((8, 9, 5), dtype=np.uint8), "5 channels; the model reads 3"),
        (torch.zeros(3, 9, 3, dtype=torch.uint8), "may be C H W or H W C"),
        (np.zeros((0, 9, 3), dtype=np.uint8), "channels; got"),
        (b"", "image 0: empty file"),
        (b"hello", "no image of a known format"),
        ("nowhere.jpg", r"^nowhere\.jpg: cannot be read: No such file"),
        (7, "expected a path.*got int"),
        ([], "got none"),
    ],
)
def test_what_is_no_image_is_a_data_error_that_says_so(image: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        to_batch(image, CARDS[0], 16)


def test_the_bad_one_of_several_is_named(photos: Path) -> None:
    bad = photos / "z.jpg"
    bad.write_bytes((photos / "a-large.jpg").read_bytes()[:900])
    with pytest.raises(ImageError, match=r"z\.jpg: .*Repair it, or leave it out\."):
        to_batch([photos / "c-grey.png", bad], CARDS[0], 16)
    with pytest.raises(ImageError, match="1 channel; the model reads 5"):
        to_batch(photos / "c-grey.png", CARDS[0], 16, channels=5)


def test_whole_numbers_of_a_program_are_8_bits_where_they_fit_and_of_a_file_16() -> None:
    levels = np.arange(56, dtype=np.int32).reshape(7, 8) * 4
    np.testing.assert_array_equal(read_image(Image.fromarray(levels)), levels[:, :, None].astype(np.uint8))
    deep = levels * 257
    np.testing.assert_array_equal(read_image(Image.fromarray(deep)), levels[:, :, None].astype(np.uint8))
    with pytest.raises(ImageError, match="numbers from -1 to 219"):
        read_image(Image.fromarray(levels - 1))
    dark = Image.open(io.BytesIO(b"P5 8 7 65535 " + levels.astype(">u2").tobytes()))
    dark.load()
    assert dark.mode == "I"
    np.testing.assert_array_equal(read_image(dark), (levels[:, :, None] > 128).astype(np.uint8))
