"""Images of any number of channels and bits come out number by number as they were written."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from numpy.typing import NDArray
from PIL import Image

from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation
from vitrail.data import stacks
from vitrail.data.decode import Box, ImageError, OpenImage
from vitrail.data.feed import evaluation_feed, train_feed
from vitrail.data.open import open_data
from vitrail.data.pixels import to_levels, to_picture
from vitrail.data.preprocess import to_batch
from vitrail.data.source import Source
from vitrail.errors import ConfigError, DataError

GENERATOR = np.random.RandomState(5)
FULL = (0.0, 65535.0)


def drawn(channels: int, kind: str, height: int = 13, width: int = 17) -> NDArray[Any]:
    if kind.startswith("float"):
        return (GENERATOR.rand(height, width, channels) * 3 - 1).astype(kind)
    return GENERATOR.randint(0, 1 << (8 * np.dtype(kind).itemsize), (height, width, channels)).astype(kind)


def npy(array: NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def tiff(array: NDArray[Any], **options: Any) -> bytes:
    out = io.BytesIO()
    tifffile.imwrite(out, array, **options)
    return out.getvalue()


def png(array: NDArray[Any]) -> bytes:
    """Write a PNG of 16 bits by hand, rows by turns plain and as differences to the left."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, channels = array.shape
    head = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def paged(array: NDArray[Any], **options: Any) -> bytes:
    return tiff(np.moveaxis(array, 2, 0), photometric="minisblack", **options)


WAYS = {
    "npy-5-u8": (lambda a: npy(a), 5, "uint8"),
    "npy-1-f4": (lambda a: npy(a[:, :, 0]), 1, "float32"),
    "npy-2-f2": (lambda a: npy(a), 2, "float16"),
    "npy-5-first": (lambda a: npy(np.ascontiguousarray(np.moveaxis(a, 2, 0))), 5, "uint16"),
    "npy-4-fortran": (lambda a: npy(np.asfortranarray(a)), 4, "uint16"),
    "npy-4-big": (lambda a: npy(a.astype(">u2")), 4, "uint16"),
    "png-1": (png, 1, "uint16"),
    "png-3": (png, 3, "uint16"),
    "png-4": (png, 4, "uint16"),
    "pages-5-u8": (paged, 5, "uint8"),
    "pages-10-u16": (paged, 10, "uint16"),
    "pages-4-f4": (paged, 4, "float32"),
    "pages-4-f8": (paged, 4, "float64"),
    "pages-3-big": (lambda a: paged(a, byteorder=">"), 3, "uint16"),
    "samples-5-u8": (lambda a: tiff(a, photometric="minisblack", planarconfig=1), 5, "uint8"),
    "samples-2-u8": (lambda a: tiff(a, photometric="minisblack", planarconfig=1), 2, "uint8"),
    "samples-10-u16": (lambda a: tiff(a, photometric="minisblack", planarconfig=1), 10, "uint16"),
    "samples-3-f4": (lambda a: tiff(a, photometric="rgb"), 3, "float32"),
    "samples-5-lzw": (lambda a: tiff(a, photometric="minisblack", planarconfig=1, compression="lzw"), 5, "uint16"),
    "samples-5-deflate": (
        lambda a: tiff(a, photometric="minisblack", planarconfig=1, compression="zlib", predictor=True),
        5,
        "uint16",
    ),
    "planes-5": (
        lambda a: tiff(np.moveaxis(a, 2, 0), photometric="minisblack", planarconfig=2, metadata=None),
        5,
        "uint16",
    ),
    "rgb-16": (lambda a: tiff(a, photometric="rgb"), 3, "uint16"),
    "rgb-16-planes": (lambda a: tiff(np.moveaxis(a, 2, 0), photometric="rgb", planarconfig=2), 3, "uint16"),
    "rgb-8-planes": (lambda a: tiff(np.moveaxis(a, 2, 0), photometric="rgb", planarconfig=2), 3, "uint8"),
    "bands-4-u16": (lambda a: tiff(a, photometric="minisblack", planarconfig=1), 4, "uint16"),  # as GDAL writes them
    "bands-3-u8": (lambda a: tiff(a, photometric="minisblack", planarconfig=1, compression="lzw"), 3, "uint8"),
    "rgb-and-infrared-u8": (lambda a: tiff(a, photometric="rgb", extrasamples=["unspecified"]), 4, "uint8"),
    "rgb-and-infrared-u16": (lambda a: tiff(a, photometric="rgb", extrasamples=["unspecified"]), 4, "uint16"),
    "gray-f4-big-packed": (lambda a: tiff(a[:, :, 0], byteorder=">", compression="zlib"), 1, "float32"),
    "gray-u4-big": (lambda a: tiff(a[:, :, 0], byteorder=">"), 1, "uint32"),
    "gray-16": (lambda a: tiff(a[:, :, 0]), 1, "uint16"),
    "gray-i4": (lambda a: tiff(a[:, :, 0]), 1, "int32"),
    "gray-12": (lambda a: tiff(a[:, :, 0] >> 4), 1, "uint16"),
    "big-tiff": (lambda a: tiff(a, photometric="minisblack", planarconfig=1, bigtiff=True), 6, "uint16"),
    "tiles": (lambda a: tiff(a, photometric="minisblack", planarconfig=1, tile=(16, 16)), 6, "uint16"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_number_is_read_as_it_was_written(way: str) -> None:
    write, channels, kind = WAYS[way]
    array = drawn(channels, "uint16" if kind in ("int32", "uint32") else kind).astype(kind)
    opened = OpenImage(write(array))
    array = array >> 4 if way == "gray-12" else array
    assert (opened.height, opened.width) == (13, 17)
    assert channels in opened.channels
    assert np.array_equal(opened.numbers(), array)
    low, high = (-1.0, 2.0) if kind.startswith("float") else (0.0, 255.0 if kind == "uint8" else 65535.0)
    expected = (array.astype(np.float64) - low) * 255 / (high - low)
    found = opened.pixels(Box(2, 3, 7, 11), channels=channels, value_range=(low, high))
    assert found.dtype == np.float32
    assert np.abs(found - expected[2:9, 3:14]).max() < 1e-4  # a step of 16 bits is 4e-3


def test_eight_bits_stay_whole_levels_and_sixteen_are_rounded_where_no_range_is_said() -> None:
    array = drawn(5, "uint8")
    assert np.array_equal(OpenImage(npy(array)).pixels(channels=5), array)
    deep = drawn(5, "uint16")
    assert np.array_equal(OpenImage(npy(deep)).pixels(channels=5), np.round(deep / 257).astype(np.uint8))
    color = OpenImage(tiff(deep[:, :, :3], photometric="rgb", planarconfig=1)).pixels()
    assert np.abs(color.astype(int) - (deep[:, :, :3] >> 8)).max() <= 1
    apart = OpenImage(tiff(np.moveaxis(deep[:, :, :3], 2, 0), photometric="rgb", planarconfig=2)).pixels()
    assert np.array_equal(apart, np.round(deep[:, :, :3] / 257).astype(np.uint8))


def test_three_of_four_bands_of_eight_bits_are_colors_to_a_model_of_three() -> None:
    array = drawn(4, "uint8")
    opened = OpenImage(tiff(array, photometric="rgb", extrasamples=["unspecified"]))
    assert opened.channels == (3, 4)
    assert np.array_equal(opened.pixels(channels=4), array)
    for found in (opened.pixels(), opened.picture(), opened.pixels(value_range=(0.0, 255.0))):
        assert np.array_equal(found, array[:, :, :3])


def test_photographs_are_decoded_as_before() -> None:
    image = Image.fromarray(drawn(4, "uint8"), "RGBA")
    for kind, mode in (
        ("PNG", "RGBA"),
        ("TIFF", "RGBA"),
        ("TIFF", "L"),
        ("TIFF", "P"),
        ("TIFF", "CMYK"),
        ("TIFF", "1"),
    ):
        out = io.BytesIO()
        image.convert("RGB" if mode == "CMYK" else mode).convert(mode).save(out, kind)
        found = OpenImage(out.getvalue())
        assert found._stack is None, (kind, mode)
        assert found.pixels().shape == (13, 17, 3)
    out = io.BytesIO()
    image.save(out, "PNG")
    assert np.array_equal(OpenImage(out.getvalue()).pixels(channels=4), np.asarray(image))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_deep_image_is_turned_as_the_library_turns_it(orientation: int) -> None:
    array = drawn(3, "uint16")
    exif = Image.Exif()
    exif[0x0112] = orientation
    block = b"eXIf" + exif.tobytes().removeprefix(b"Exif\0\0")
    data = png(array)
    data = data[:33] + struct.pack(">I", len(block) - 4) + block + struct.pack(">I", zlib.crc32(block)) + data[33:]
    opened = OpenImage(data)
    assert opened.orientation == orientation
    deep = opened.pixels(value_range=FULL)
    assert deep.shape[:2] == (opened.height, opened.width)
    assert np.abs(deep - opened.pixels()).max() <= 1


def bad_tiff(**tags: int) -> bytes:
    """Write the header of a TIFF with one directory of these tags, by their numbers."""
    numbers = {"width": 256, "height": 257, "bits": 258, "samples": 277, "next": 0}
    entries = b"".join(
        struct.pack("<HHII", numbers[name], 4, 1, value) for name, value in tags.items() if name != "next"
    )
    return (
        b"II*\0"
        + struct.pack("<IH", 8, len(tags) - ("next" in tags))
        + entries
        + struct.pack("<I", tags.get("next", 0))
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (npy(drawn(5, "uint8"))[:300], "truncated"),
        (npy(np.zeros((4, 5, 6, 7), np.uint8)), "expected H W, H W C or C H W"),
        (npy(np.zeros((4, 5, 4), np.uint8)), "may be H W C or C H W"),
        (npy(np.zeros((4, 5), np.complex64)), "whole or real numbers"),
        (npy(np.zeros((0, 5), np.uint8)), "truncated"),
        (b"\x93NUMPY\x01\x00\xff\xffgarbage", "damaged header of an array"),
        (npy(np.array([{"a": 1}], dtype=object)), "whole or real numbers"),
        (b"II*\0\xff\xff\xff\x7f", "damaged header of a TIFF"),
        (bad_tiff(width=5, height=5, next=8), "no end"),
        (bad_tiff(width=5, bits=16), "damaged header of a TIFF"),
        (bad_tiff(width=1 << 20, height=1 << 20, bits=16, samples=5), "at most"),
        (bad_tiff(width=5, height=5, bits=8, samples=5000), "channels"),
        (bad_tiff(width=5, height=5, bits=8, samples=5), "damaged or truncated"),
    ],
)
def test_hostile_files_are_refused_with_the_reason(data: bytes, words: str) -> None:
    with pytest.raises(ImageError) as caught:
        OpenImage(data).pixels(channels=5)
    assert words in str(caught.value)


def test_numbers_that_a_model_cannot_read_are_refused_by_what_they_are() -> None:
    for numbers, value_range, words in (
        (drawn(3, "float32"), None, "range is not said. Set value_range"),
        (drawn(3, "uint8"), FULL, "levels of 8 bits; the model reads numbers from 0 to 65535"),
        (drawn(3, "uint16"), (0.0, 1.0), "whole numbers of 16 bits; the model reads numbers from 0 to 1"),
        (np.full((2, 3, 1), np.nan, np.float32), (0.0, 1.0), "6 of its numbers are NaN"),
    ):
        with pytest.raises(ImageError) as caught:
            to_levels(numbers, value_range)
        assert words in str(caught.value)
    with pytest.raises(ConfigError, match="must rise"):
        Preprocessing(value_range=(5, 5))


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tifffile", None)
    data = tiff(drawn(5, "uint16"), photometric="minisblack", planarconfig=1)
    with pytest.raises(ImageError, match=r"pip install 'vitrail\[tiff\]'"):
        OpenImage(data).numbers()
    paged_data = paged(drawn(5, "uint16"))
    assert OpenImage(paged_data).numbers().shape == (13, 17, 5)
    assert stacks.EXTRA


def read(source: Source, place: int) -> bytes:
    found = source.read(place)
    assert isinstance(found, bytes)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five channels in each kind of file, half of one class and half of the other."""
    for number, write in enumerate((npy, paged, npy, lambda a: tiff(a, photometric="minisblack", planarconfig=1))):
        place = tmp_path / "five" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.{'npy' if write is npy else 'tif'}").write_bytes(write(drawn(5, "uint16")))
    return tmp_path / "five"


def test_a_feed_gives_what_the_files_hold_in_float_with_all_bits(folder: Path) -> None:
    how = Preprocessing(
        mean=(0.1, 0.2, 0.3, 0.4, 0.5), deviation=(0.5, 0.4, 0.3, 0.2, 0.1), value_range=FULL, resize="squash"
    )
    source = open_data(folder)["all"]
    batch = next(evaluation_feed(source, (13, 17), batch=9, preprocessing=how, channels=5).epoch(0))
    assert not batch.skipped
    for place, images in enumerate(batch.images):
        data = read(source, place)
        array = (np.load(io.BytesIO(data)) if data[:1] == b"\x93" else tifffile.imread(io.BytesIO(data))).astype(float)
        array = np.moveaxis(array, 0, 2) if array.shape[0] == 5 else array
        expected = (array / 65535 - how.mean) / how.deviation
        assert np.abs(images.permute(1, 2, 0).numpy() - expected).max() < 1e-5
    assert torch.equal(to_batch([source.read(0)], how, (13, 17), 5)[0], batch.images[0])


def test_training_crops_and_flips_are_those_of_whole_levels_up_to_their_rounding(folder: Path) -> None:
    source = open_data(folder)["all"]
    config = Augmentation(random_erasing=0.5, mixup=0.3)
    made = [
        next(train_feed(source, (8, 6), batch=4, augmentation=config, preprocessing=how, channels=5, seed=3).epoch(0))
        for how in (Preprocessing(), Preprocessing(value_range=FULL))
    ]
    assert torch.equal(made[0].labels, made[1].labels)
    assert (made[0].images - made[1].images).abs().max() <= 2.5 / 127.5
    assert made[0].images.shape == (4, 5, 8, 6)


def test_five_channels_to_a_model_of_three_are_refused_before_anything_is_read(folder: Path) -> None:
    source = open_data(folder)["all"]
    with pytest.raises(DataError, match=r"has 5 channels; the model reads 3.*model.channels=5"):
        evaluation_feed(source, (8, 8), batch=2, preprocessing=Preprocessing())
    with pytest.raises(DataError, match="5 channels; the model reads 3"):
        to_batch(source.read(0), Preprocessing(), 8)
    with pytest.raises(DataError, match="10 channels"):
        to_batch(npy(drawn(10, "uint8")), Preprocessing(), 8, 5)


def test_a_table_names_such_files_too(folder: Path) -> None:
    rows = [f"{path.relative_to(folder)},{path.parent.name}" for path in sorted(folder.rglob("*.*"))]
    (folder / "list.csv").write_text("\n".join(["path,label", *rows]))
    source = open_data(folder / "list.csv")["all"]
    assert [OpenImage(read(source, index)).channels for index in range(4)] == [(5,)] * 4


def test_people_see_the_first_three_channels_stretched() -> None:
    array = drawn(5, "uint16")
    shown = to_picture(array)
    assert shown.shape == (13, 17, 3)
    low, high = np.percentile(array[:, :, 1], (1, 99))
    expected = ((array[:, :, 1] - low) / (high - low) * 255).clip(0, 255)
    assert np.abs(shown[:, :, 1] - expected).max() <= 0.51
