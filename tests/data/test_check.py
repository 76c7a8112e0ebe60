"""What is found in data: every kind of fault is planted once, among images that have none."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copies import copies, picture
from numpy.typing import NDArray
from PIL import Image

import vitrail
from vitrail.data import check
from vitrail.data.check import check_data, contact_sheet
from vitrail.data.decode import ImageError, Pixels
from vitrail.data.source import Source, Subset
from vitrail.data.splits import split


class Named(Source):
    """Contents by name, with labels; None cannot be read."""

    def __init__(self, samples: list[tuple[str, bytes | Pixels | None, int]], class_names: tuple[str, ...]) -> None:
        self.samples, self.class_names = samples, class_names

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.array([label for _, _, label in self.samples], dtype=np.int64)

    def read(self, index: int) -> bytes | Pixels:
        found = self.samples[index][1]
        if found is None:
            raise ImageError("gone")
        return found

    def name(self, index: int) -> str:
        return self.samples[index][0]

    @property
    def fingerprint(self) -> str:
        return str(id(self))


def pixels(seed: int, height: int = 40, width: int = 48, channels: int = 3) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpeg(seed: int, height: int = 40, width: int = 48) -> bytes:
    return encoded(Image.fromarray(pixels(seed, height, width)), "JPEG")


def deep_png() -> bytes:
    """Write 16 bits a colour by hand, which the image library cannot."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 40, 32, 16, 2, 0, 0, 0)
    rows = (b"\0" + bytes(40 * 6)) * 32
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def only(source: Named) -> check.SplitReport:
    return check_data({"train": source}).splits["train"]


def test_sound_images_have_no_findings() -> None:
    source = Named([(f"{i}.jpg", jpeg(i), i % 3) for i in range(9)], ("a", "b", "c"))
    told: list[tuple[int, int]] = []
    report = check_data({"train": source}, progress=lambda done, total: told.append((done, total)))
    assert report.is_clean
    assert report.splits["train"].problems == {}
    assert not report.splits["train"].traits
    assert report.splits["train"].formats == {"JPEG": 9}
    assert (report.duplicates, report.leaks, report.conflicts.count) == ({}, {}, 0)
    assert told == [(number, 9) for number in range(1, 10)]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
def test_a_cut_image_is_truncated_or_unreadable_in_every_format(kind: str) -> None:
    data = encoded(Image.fromarray(pixels(0, 64, 80)), kind)
    source = Named([("whole", data, 0), ("cut", data[: len(data) * 2 // 3], 0)], ("a",))
    problems = only(source).problems
    assert {name: found.count for name, found in problems.items()} in ({"truncated": 1}, {"unreadable": 1})
    assert all(found.examples[0].startswith("cut: ") for found in problems.values())


def test_what_cannot_be_read_is_told_by_its_kind() -> None:
    source = Named([("a.jpg", b"", 0), ("b.jpg", None, 0), ("c.jpg", b"no image", 0), ("d.jpg", jpeg(1), 0)], ("a",))
    report = check_data({"train": source})
    problems = report.splits["train"].problems
    assert problems["empty"].examples == ["a.jpg: no bytes"]
    assert problems["unreadable"].count == 2
    assert problems["unreadable"].examples[0] == "b.jpg: gone"
    assert not report.is_clean


def test_what_a_source_left_out_is_told_too() -> None:
    source = Named([("a.jpg", jpeg(1), 0)], ("a",))
    vars(source)["problems"] = [("one.tar", "b.jpg is cut off")]
    assert only(source).problems["left_out"].examples == ["one.tar: b.jpg is cut off"]


def test_files_that_a_source_ignored_are_told_and_are_no_damage() -> None:
    source = Named([("a.jpg", jpeg(1), 0)], ("a",))
    vars(source).update(ignored=31, ignored_names=["loose.jpg", "a/notes.txt"])
    report = check_data({"train": source})
    found = report.splits["train"].problems["ignored"]
    assert (found.count, found.examples) == (
        31,
        ["loose.jpg: in no class folder", "a/notes.txt: no image by its suffix"],
    )
    assert report.is_clean


def test_a_suffix_that_says_another_format_is_told() -> None:
    png = encoded(Image.fromarray(pixels(0)), "PNG")
    gif = encoded(Image.fromarray(pixels(1)), "GIF")
    source = Named(
        [
            ("x/a.jpg", png, 0),
            ("b.JPEG", jpeg(0), 0),
            ("c.png", gif, 0),
            ("row 7", gif[:] + b"\0", 0),
            ("d.PNG", png, 0),
        ],
        ("a",),
    )
    found = only(source).problems["misnamed"]
    assert found.examples == ["x/a.jpg: is PNG", "c.png: is GIF"]


def test_odd_sizes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "HUGE", 200 * 300)
    sizes = {"tiny": (31, 60), "edge": (32, 160), "wide": (33, 166), "tall": (200, 39), "huge": (201, 300)}
    source = Named([(name, jpeg(i, *size), 0) for i, (name, size) in enumerate(sizes.items())], ("a",))
    problems = only(source).problems
    assert problems["tiny"].examples == ["tiny: 31x60 pixels"]
    assert problems["huge"].examples == ["huge: 201x300 pixels"]
    assert problems["extreme"].examples == ["wide: 33x166 pixels", "tall: 200x39 pixels"]


def test_unusual_pixels_are_counted_by_kind() -> None:
    color, gray = Image.fromarray(pixels(0)), Image.fromarray(pixels(1)[:, :, 0])
    deep = Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40)
    made = [
        encoded(gray, "JPEG"),
        encoded(color.convert("RGBA"), "PNG"),
        encoded(gray.convert("LA"), "PNG"),
        encoded(color.convert("CMYK"), "JPEG"),
        encoded(deep, "PNG"),
        deep_png(),
        encoded(color, "GIF", save_all=True, append_images=[color.rotate(90)]),
        encoded(color, "WEBP", save_all=True, append_images=[color.rotate(90)]),
        encoded(color, "PNG"),
    ]
    report = only(Named([(str(i), data, 0) for i, data in enumerate(made)], ("a",)))
    assert report.traits == {"grey": 3, "alpha": 2, "cmyk": 1, "sixteen_bit": 2, "animated": 2}
    assert "truncated" not in report.problems


def test_pixel_sources_are_judged_without_decoding() -> None:
    source = Named([("0", pixels(0), 0), ("1", pixels(1, 28, 28, 1), 0), ("2", pixels(0), 0)], ("a",))
    report = check_data({"train": source})
    assert report.splits["train"].formats == {"pixels": 3}
    assert report.splits["train"].traits == {"grey": 1}
    assert report.splits["train"].problems["tiny"].count == 1
    assert report.duplicates["train"].examples == ["train:0 = train:2"]


def test_duplicates_leaks_and_contradictions_are_found_by_content_and_class_name() -> None:
    train = Named([("a", jpeg(1), 0), ("b", jpeg(2), 1), ("c", jpeg(1), 0), ("d", jpeg(1), 0)], ("cat", "dog"))
    dev = Named([("e", jpeg(3), 0), ("f", jpeg(2), 0)], ("dog",))  # the same class by another number
    test = Named([("g", jpeg(3), 1), ("h", jpeg(1), 1), ("i", b"", 0), ("j", b"", 0)], ("dog", "eel"))
    report = check_data({"train": train, "dev": dev, "test": test})
    assert {name: found.count for name, found in report.duplicates.items()} == {"train": 2}
    assert {pair: found.count for pair, found in report.leaks.items()} == {
        ("train", "dev"): 1,
        ("train", "test"): 1,
        ("dev", "test"): 1,
    }
    assert report.leaks["train", "dev"].examples == ["train:b = dev:f"]
    assert sorted(example.split(": ")[1] for example in report.conflicts.examples) == ["cat, eel", "dog, eel"]
    assert not report.is_clean


def test_what_split_makes_never_leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    source = Named([(str(i), jpeg(i % 17), i % 17 % 2) for i in range(60)], ("a", "b"))
    half = Subset(source, list(range(30))), Subset(source, list(range(30, 60)))
    assert check_data({"train": half[0], "dev": half[1]}).leaks
    assert check_data(split(source, {"train": 0.5, "dev": 0.5}, seed=1)).is_clean


def test_examples_are_few_and_counts_are_whole() -> None:
    source = Named([(str(i), b"", 0) for i in range(100)], ("a",))
    found = only(source).problems["empty"]
    assert (found.count, len(found.examples)) == (100, check.EXAMPLES)


def test_imbalance_is_the_largest_class_by_the_smallest() -> None:
    labels = [0] * 6 + [1] * 4 + [-1]
    samples = [(str(i), pixels(i), label) for i, label in enumerate(labels)]
    report = only(Named(list(samples), ("a", "b")))
    assert (report.class_counts, report.imbalance) == ({"a": 6, "b": 4}, 1.5)
    assert only(Named(list(samples), ("a", "b", "c"))).imbalance == float("inf")
    assert only(Named([], ())).imbalance == 1.0


def test_uneven_classes_are_named_with_what_helps() -> None:
    samples: list[tuple[str, bytes | Pixels | None, int]] = [
        (f"{number}.jpg", jpeg(number), int(number == 0)) for number in range(11)
    ]
    said = vitrail.check_data({"train": Named(samples, ("often", "seldom", "never"))})
    report = said.splits["train"]
    assert report.uneven is not None
    assert "10 to 1: often has 10 images, seldom 1" in report.uneven
    assert "logit_adjustment=1" in str(said)
    assert said.document()["splits"]["train"]["uneven"] == report.uneven
    assert only(Named(samples[7:], ("often", "seldom"))).uneven is None


def test_a_contact_sheet_has_a_row_a_class_and_letterboxes() -> None:
    red, blue = np.zeros((20, 40, 3), np.uint8), np.zeros((60, 30, 3), np.uint8)
    red[..., 0], blue[..., 2] = 210, 190
    samples = [("b", blue, 1), ("r", encoded(Image.fromarray(red), "PNG"), 0), ("r", red, 0), ("x", b"broken", 1)]
    sheet = contact_sheet(Named(list(samples), ("red", "blue")), range(4), cell=32)
    assert sheet.shape == (64, 64, 3)
    assert sheet.dtype == np.uint8
    wide = np.full((32, 32, 3), 255, np.uint8)
    wide[8:24] = (210, 0, 0)
    tall = np.full((32, 32, 3), 255, np.uint8)
    tall[:, 8:24] = (0, 0, 190)
    assert np.array_equal(sheet[:32], np.concatenate([wide, wide], axis=1))
    assert np.array_equal(sheet[32:, :32], tall)
    assert (sheet[32:, 32:] == (200, 30, 30)).all()


def test_a_contact_sheet_is_bounded_and_keeps_the_brightness() -> None:
    samples = [(str(i), pixels(i, 97, 53, 1), i % 15) for i in range(15 * 14)]
    source = Named(list(samples), tuple(map(str, range(15))))
    sheet = contact_sheet(source, range(len(source)), cell=24)
    assert sheet.shape == (12 * 24, 12 * 24, 3)
    cell = sheet[:24, 5:18, 0].astype(float)  # 13 columns of the image, 11 of white
    assert abs(cell[:, 1:-1].mean() - pixels(0, 97, 53, 1).mean()) < 4
    assert cell[:, 1:-1].std() < 30  # of noise whose own is 74: every pixel has its part
    assert contact_sheet(source, []).shape == (0, 0, 3)


def test_near_copies_are_named_those_of_training_images_first() -> None:
    originals = [picture(seed) for seed in range(24)]
    made = [copies(each) for each in originals]
    train: list[Any] = [(f"t{number}", each, 0) for number, each in enumerate(originals[:16])]
    train.append(("again", made[5]["twice"], 0))
    test: list[Any] = [(f"e{number}", originals[number], 0) for number in range(16, 24)]
    test += [("small", made[3]["a quarter"], 0), ("cut", made[4]["cropped"], 0), ("cut too", made[4]["a corner"], 0)]
    val: list[Any] = [("coarse", made[17]["quality 30"], 0), ("same", originals[1], 0), ("large", made[2]["twice"], 0)]
    splits = {"val": Named(val, ("a",)), "train": Named(train, ("a",)), "test": Named(test, ("a",))}
    report = check_data(splits)
    assert sorted(list(report.near)[:2]) == [("test", "train"), ("val", "train")]
    assert list(report.near)[2:] == [("test", "val"), ("train", "train"), ("test", "test")]
    assert report.near["val", "train"].pairs == [("large", "t2")]
    first = report.near["test", "train"]
    assert (first.count, first.images) == (3, 11)
    assert first.pairs == [("small", "t3"), ("cut", "t4"), ("cut too", "t4")]
    assert first.examples[0] == "test:small ~ train:t3"
    assert first.places == [(8, 3), (9, 4), (10, 4)]  # their numbers in test and in train
    assert report.near["test", "val"].pairs == [("e17", "coarse")]
    assert report.near["train", "train"].pairs == [("again", "t5")]
    assert report.leaks.keys() == {("val", "train")}  # which is the same to the byte, and no near-copy
    assert not report.is_clean


def test_near_copies_within_a_split_spoil_no_run_and_mirrored_ones_are_asked_for() -> None:
    pictures = [picture(seed) for seed in range(12)]
    turned = Named([(str(n), each, 0) for n, each in enumerate([*pictures, pictures[2][:, ::-1].copy()])], ("a",))
    assert check_data({"all": turned}).near == {}
    report = check_data({"all": turned}, mirrored=True)
    assert report.near["all", "all"].pairs == [("12", "2")]
    assert report.is_clean


def test_contents_that_come_again_are_decoded_once_and_judged_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bytes] = []

    class Watched(check.OpenImage):
        def __init__(self, data: bytes) -> None:
            opened.append(data)
            super().__init__(data)

    monkeypatch.setattr(check, "OpenImage", Watched)
    monkeypatch.setattr("vitrail.data.near.OpenImage", Watched)
    kinds = [jpeg(1), jpeg(2, 8, 60), jpeg(3)[:700]]
    samples = [(f"{number}.{'jpg' if number % 2 else 'png'}", kinds[number % 3], 0) for number in range(600)]
    report = check_data({"train": Named([*samples[:300]], ("a",)), "val": Named([*samples[300:]], ("a",))})
    assert len(opened) == 2 * 3  # for its thumbnail, and whole
    for found in report.splits.values():
        assert found.formats == {"JPEG": 300}
        assert {kind: each.count for kind, each in found.problems.items()} == {
            "misnamed": 150,
            "tiny": 100,
            "extreme": 100,
            "truncated": 100,
        }
    copied = report.duplicates["train"]
    assert copied.count == 297
    assert len(copied.samples) <= check.EXAMPLES  # a list of all would be gone through for each


def test_near_copies_are_told_of_every_copy() -> None:
    originals = [picture(seed) for seed in range(12)]
    again = copies(originals[3])["twice"]
    train = Named([(f"t{n}", each, 0) for n, each in enumerate([*originals, originals[3]])], ("a",))
    test = Named([("one", again, 0), ("other", again, 0)], ("a",))
    found = check_data({"train": train, "test": test}).near["test", "train"]
    assert found.pairs == [("one", "t3"), ("one", "t12"), ("other", "t3"), ("other", "t12")]
    assert (found.count, found.images) == (2, 2)
