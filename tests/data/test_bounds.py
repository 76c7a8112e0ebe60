"""Bounds of every source of images: what never ends, leads back or is nested without end is refused soon."""

import gzip
import io
import json
import os
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from pyarrow import parquet

from vitrail.data import decode as decoding, levels as levels_of, modes, pixels as pixels_of
from vitrail.data.decode import ImageError, decode, with_channels
from vitrail.data.levels import measure_levels
from vitrail.data.open import open_data
from vitrail.data.sources import table as tables
from vitrail.data.sources.folder import FolderSource
from vitrail.data.sources.packed import PackedSource, pack
from vitrail.data.sources.table import TableSource
from vitrail.data.sources.tar import TarSource
from vitrail.data.transforms import resize as resizing
from vitrail.data.transforms.resize import resize, resize_small
from vitrail.errors import CheckpointError, DataError
from vitrail.files import write_sums
from vitrail.ops import near
from vitrail.ops.near import thumbnail
from vitrail.runtime.reporter import SILENT
from vitrail.verbs.images import find_images

PNG = io.BytesIO()
Image.new("RGB", (9, 8)).save(PNG, "PNG")
END = bytes(1024)


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        open_data(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.csv", "path,label\n" + "x" * 140_000 + ",a\n", "field larger than field limit"),
        ("t.csv", "x" * 140_000 + ",label\na,b\n", "field larger than field limit"),
        ("t.csv", "path,label\n" + "x" * (1 << 20), "expected lines of less than 1,048,576 signs"),
        ("t.csv", "path,label" + ",x" * 600_000, "expected lines of less than 1,048,576 signs"),
        ("t.csv", "place,label" + ",x" * 100_000, "more signs"),
        ("t.csv", 'path,label\n"' + "x\n" * 100_000, "field larger than field limit"),
        ("t.jsonl", "[" * 100_000, "nested too deep"),
        ("t.jsonl", '{"path": "a.png", "label": ' + "9" * 5000 + "}", "4300 digits"),
        ("t.jsonl", '{"path": "\\ud800.png", "label": "a"}', "of plain text"),
        ("t.jsonl", '{"path": "a.png", "label": "\\ud800"}', "of plain text"),
    ],
)
def test_a_table_is_bounded(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    message = refusal(tmp_path / name)
    assert words in message
    assert len(message) < 5000


def test_labels_that_are_no_classes_are_refused_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MANY", 50)
    lines = [f"{number}.png,{number}" for number in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *lines]))
    assert "nearly every one of 50 images has a label of its own" in refusal(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *(f"{n}.png,{n // 2}" for n in range(60))]))
    assert len(TableSource(tmp_path / "t.csv").class_names) == 30


def block(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def member(name: str, data: bytes, kind: bytes = b"0", size: bytes | None = None) -> bytes:
    """A header and what it says of; the size may be a lie."""
    info = tarfile.TarInfo(name)
    info.size, info.type = len(data), kind
    made = bytearray(info.tobuf(tarfile.GNU_FORMAT)[:512])
    if size is not None:
        made[124:136], made[148:156] = size, b" " * 8
        made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made) + block(data)


IMAGE = member("a.png", PNG.getvalue()) + member("a.cls", b"1")


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (member("././@LongLink", b"name\0", b"L") * 5000, "a chain of headers"),
        (member("x", b"11 path=ab\n", b"x") * 5000, "a chain of headers"),
        (member("x", b"1" * 900_000, b"x"), "a number that has no end"),
        (member("x", b"1" * 2_000_000, b"x"), "a header of 2,000,384 bytes"),
        (member("b.png", b"", size=b"\xff" * 10 + b"\xfe\x00"), "has a negative size"),
        (member("x", b"13 size=-512\n", b"x") + member("b.png", b"x"), "has a negative size"),
    ],
    ids=["names", "pax", "digits", "long", "negative", "again"],
)
def test_the_headers_of_a_tar_end(before: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(IMAGE + before + member("c.png", PNG.getvalue()) + member("c.cls", b"1") + END)
    source = TarSource(tmp_path / "x.tar")
    assert [source.name(index) for index in range(len(source))] == ["x.tar/a.png"]
    assert any(words in reason for _, reason in source.problems), source.problems


def test_a_few_headers_that_make_names_longer_are_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in (("long" * 60 + "é.png", PNG.getvalue()), ("long" * 60 + "é.cls", b"1")):
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(data), {"SCHILY.xattr.user.note": "x" * 50_000}
            tar.addfile(info, io.BytesIO(data))
    source = TarSource(tmp_path / "x.tar")
    assert (len(source), source.problems, source.read(0)) == (1, [], PNG.getvalue())


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(CheckpointError, match="got one that is none"):
        open_data("https://[::1")


def test_a_pattern_of_a_number_without_end_is_a_name() -> None:
    with pytest.raises(DataError, match="cannot read"):
        TarSource("x-{0.." + "9" * 5000 + "}.tar")


@pytest.mark.parametrize("label", [b"[" * 50_000, b"9" * 5000, b"9" * 4000, b'"\\ud800"', b"-5", b"1000000"])
def test_a_label_in_a_tar_that_is_none_is_told(label: bytes, tmp_path: Path) -> None:
    body = b'{"label": ' + label + b"}"
    (tmp_path / "x.tar").write_bytes(IMAGE + member("b.png", PNG.getvalue()) + member("b.json", body) + END)
    source = TarSource(tmp_path / "x.tar")
    assert len(source) == 1
    assert any("b.json holds no label" in reason for _, reason in source.problems)
    assert len(str(source.problems)) < 1000


def test_numbers_that_are_no_classes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(member("a.png", PNG.getvalue()) + member("a.cls", b"999999") + END)
    assert "the highest label is 999,999, in 1 samples" in refusal(tmp_path / "x.tar")
    parquet.write_table(arrow.table({"image": [PNG.getvalue()], "label": [999_999]}), tmp_path / "x.parquet")
    assert "the highest label is 999,999, in 1 rows" in refusal(tmp_path / "x.parquet")


@pytest.mark.parametrize("said", ["[" * 100_000, '{"info": {"features": {"label": {"names": ' + "9" * 5000 + "}}}}"])
def test_what_a_parquet_file_says_of_its_classes_may_be_nonsense(said: str, tmp_path: Path) -> None:
    rows = arrow.table({"image": [PNG.getvalue()], "label": [0]}).replace_schema_metadata({"huggingface": said})
    parquet.write_table(rows, tmp_path / "x.parquet")
    assert open_data(tmp_path / "x.parquet")["all"].class_names == ("0",)


def test_a_parquet_file_of_more_rows_than_bytes_is_refused(tmp_path: Path) -> None:
    rows = {"image": arrow.nulls(300_000, arrow.binary()), "label": arrow.array(np.zeros(300_000, np.int64))}
    parquet.write_table(arrow.table(rows), tmp_path / "x.parquet")
    assert "it says that it has 300,000 images" in refusal(tmp_path / "x.parquet")


@pytest.mark.parametrize("column", ["image", "label"])
def test_a_parquet_file_that_grows_beyond_any_picture_is_refused(
    column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitrail.files.tables.SMALL", 1 << 20)
    rows = {"image": [PNG.getvalue()] * 3, "label": ["a"] * 3}
    parquet.write_table(arrow.table(rows), tmp_path / "x.parquet", compression="zstd")
    assert len(open_data(tmp_path / "x.parquet")["all"]) == 3
    rows[column] = [bytes(1 << 20) if column == "image" else "a" * (1 << 20)] * 3
    parquet.write_table(arrow.table(rows), tmp_path / "x.parquet", compression="zstd", use_dictionary=False)
    assert "images do not shrink so far" in refusal(tmp_path / "x.parquet")


def test_an_image_that_a_parquet_file_repeats_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written once, in a dictionary, and takes its size for every row."""
    monkeypatch.setattr("vitrail.files.tables.SMALL", 1 << 20)
    rows = {"image": [os.urandom(300_000)] * 50, "label": ["a"] * 50}
    parquet.write_table(arrow.table(rows), tmp_path / "x.parquet")
    source = open_data(tmp_path / "x.parquet")["all"]
    with pytest.raises(ImageError, match="expected row groups of at most"):
        source.read(0)


def test_an_idx_file_that_grows_beyond_any_picture_is_refused(tmp_path: Path) -> None:
    for name, shape in (("images-idx3", (300, 1024, 1024)), ("labels-idx1", (300,))):
        with gzip.open(tmp_path / f"train-{name}-ubyte.gz", "wb", compresslevel=1) as file:
            file.write(bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + os.urandom(400_000))
    assert "images do not shrink so far" in refusal(tmp_path)


def test_packed_labels_that_promise_more_are_not_read(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "photos" / "cat").mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / "cat" / f"{number}.png").write_bytes(PNG.getvalue())
    folder = tmp_path / "packed"
    pack(open_data(tmp_path / "photos")["all"], folder, 8, overwrite=False)
    assert len(PackedSource(folder)) == 3
    start = (folder / "labels.npy").read_bytes()
    for lie in (
        start.replace(b"(3,), }      ", b"(10**12,), }  "),
        start.replace(b"(3,), }           ", b"(999999999999,), }"),
    ):
        (folder / "labels.npy").write_bytes(lie)
        write_sums(folder)
        assert "is damaged" in refusal(folder)


def test_a_folder_of_odd_files_is_read_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "good.png").write_bytes(PNG.getvalue())
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    (tmp_path / "cat" / "zero.png").symlink_to("/dev/zero")
    os.truncate(os.open(tmp_path / "cat" / "holes.png", os.O_CREAT | os.O_WRONLY), 1 << 40)
    source = open_data(tmp_path)["all"]
    for index in range(1, 4):
        with pytest.raises(ImageError, match=r"no plain file|at most"):
            source.read(index)
    for name in ("x.csv", "x.tar", "x.parquet", "x.jsonl"):
        os.mkfifo(tmp_path / name)
        assert "no plain file" in refusal(tmp_path / name)


def test_a_link_to_a_folder_above_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "private.png").write_bytes(PNG.getvalue())
    (tmp_path / "set" / "cat").mkdir(parents=True)
    (tmp_path / "set" / "cat" / "a.png").write_bytes(PNG.getvalue())
    (tmp_path / "set" / "cat" / "up").symlink_to("../..")
    (tmp_path / "set" / "cat" / "root").symlink_to("/")
    source = open_data(tmp_path / "set")["all"]
    assert isinstance(source, FolderSource)
    assert [source.name(index) for index in range(len(source))] == ["cat/a.png"]
    assert sorted(source.problems) == [
        (f"cat/{name}", "leads to a folder that this one is in") for name in ("root", "up")
    ]


def test_a_jpeg_of_many_scans_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(out, "JPEG", progressive=True)
    assert decode(out.getvalue()).shape == (64, 64, 3)
    last = out.getvalue().rindex(b"\xff\xda")
    with pytest.raises(ImageError, match=r"a JPEG of .* scans"):
        decode(out.getvalue()[:-2] + out.getvalue()[last:-2] * 500 + b"\xff\xd9")


def test_a_jpeg_whose_scans_go_over_too_many_pixels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(out, "JPEG", progressive=True)
    scans = out.getvalue().count(b"\xff\xda")
    monkeypatch.setattr(decoding, "MOST_SCANNED", scans * 64 * 64)
    assert decode(out.getvalue()).shape == (64, 64, 3)
    monkeypatch.setattr(decoding, "MOST_SCANNED", scans * 64 * 64 - 1)
    with pytest.raises(ImageError, match=rf"{scans} scans of 64x64 pixels"):
        decode(out.getvalue())


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "I;16", "CMYK"])
def test_a_large_image_is_the_same_in_bands(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.RandomState(1)
    image = Image.fromarray(generator.randint(0, 256, (13, 17, 4)).astype(np.uint8), "RGBA")
    image = image.convert("I").convert("I;16") if mode == "I;16" else image.convert(mode)
    options = {"transparency": 3} if mode == "P" else {}
    out = io.BytesIO()
    image.save(out, "TIFF" if mode == "CMYK" else "PNG", **options)
    whole = decode(out.getvalue())
    monkeypatch.setattr(modes, "BAND", 40)
    assert np.array_equal(decode(out.getvalue()), whole)


def test_the_one_clear_colour_of_a_deep_png_is_the_same_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    pixels = np.random.RandomState(2).randint(0, 3, (13, 17, 3)).astype(">u2") * 257 + 1
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", 17, 13, 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"tRNS", pixels[4, 5].tobytes())
    data += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    whole = decode(data)
    assert (whole[4, 5] == 255).all()
    monkeypatch.setattr(pixels_of, "BAND", 40)
    assert np.array_equal(decode(data), whole)


def test_large_images_are_measured_and_shrunk_in_parts_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.RandomState(3).randint(0, 256, (31, 37, 3)).astype(np.uint8)
    image = torch.from_numpy(pixels).permute(2, 0, 1)
    source = open_data((pixels[None], np.zeros(1, np.int64)))["all"]

    def made() -> list[NDArray[np.float64]]:
        ways = [resize(image, (5, 7), how) for how in ("gvt", "bv", "lanczos", "area")]
        levels = measure_levels(source)
        assert levels is not None
        shrunk = [with_channels(pixels, 1), thumbnail(pixels), *(way.numpy() for way in ways), levels.mean]
        return [
            np.asarray(each, dtype=np.float64) for each in (*shrunk, resize_small(image, 9, "bv"), levels.deviation)
        ]

    whole = made()
    for module, name in (
        (modes, "BAND"),
        (pixels_of, "BAND"),
        (near, "BAND"),
        (levels_of, "BAND"),
        (resizing, "LARGE"),
    ):
        monkeypatch.setattr(module, name, 100)
    for one, other in zip(whole, made(), strict=True):
        assert np.abs(one - other).max() <= 1e-6


def test_a_path_that_no_file_can_have_is_no_image() -> None:
    for name in ("x" * 300, "a\0b", "y/" * 4000):
        assert find_images(name, SILENT) == []


def test_documents_that_never_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "packed.json").write_text('{"a":' * 100_000)
    assert "nested too deep" in refusal(tmp_path)
    (tmp_path / "packed.json").write_text(json.dumps({"format": "x" * 100_000}))
    assert len(refusal(tmp_path)) < 1000
