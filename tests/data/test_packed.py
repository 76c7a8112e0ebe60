"""Packed arrays: what goes in comes out, what is bad is listed, and nothing is lost."""

import io
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.decode import ImageError, Pixels
from vitrail.data.source import Source
from vitrail.data.sources.memory import MemorySource
from vitrail.data.sources.packed import PackedSource, pack, squash
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.files import verify_sums, write_sums

RANDOM = np.random.default_rng(2)
IMAGES = RANDOM.integers(0, 256, (7, 5, 6, 3), dtype=np.uint8)
NAMES = ("ant", "bee", "cat", "dog")
SOURCE = MemorySource(IMAGES, [3, 0, 1, 1, 2, 0, 3], NAMES)


def png(pixels: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


class Files(Source):
    """Encoded images, two of them bad."""

    class_names = NAMES

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.array([0, 1, 2, 3, 1])

    @property
    def fingerprint(self) -> str:
        return "files"

    def read(self, index: int) -> bytes | Pixels:
        match index:
            case 1:
                raise ImageError("cannot be read: Input/output error")
            case 3:
                return b"GIF?"
            case _:
                return png(IMAGES[index])

    def name(self, index: int) -> str:
        return f"file {index}"


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_was_packed_comes_out(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    report = pack(SOURCE, tmp_path / "out", (5, 6), overwrite=False, progress=lambda *step: steps.append(step))
    assert (report.count, report.skipped) == (7, [])
    assert steps == [(done, 7) for done in range(1, 8)]
    packed = PackedSource(tmp_path / "out")
    assert len(packed) == 7
    assert packed.labels.tolist() == [3, 0, 1, 1, 2, 0, 3]
    assert packed.labels.dtype == np.int64
    assert packed.class_names == NAMES
    assert packed.packed_from == SOURCE.fingerprint
    assert packed.name(6) == "out 6"
    assert all(np.array_equal(packed.read(i), IMAGES[i]) for i in range(7))
    packed.read(2)[:] = 0
    assert np.array_equal(packed.read(2), IMAGES[2])
    verify_sums(packed.folder)
    for index in (-1, 7):
        with pytest.raises(IndexError):
            packed.read(index)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_bad_images_are_left_out_and_listed(tmp_path: Path) -> None:
    report = pack(Files(), tmp_path / "out", (5, 6), overwrite=False, bad_image_limit=0.4)
    assert report.count == 3
    assert report.skipped[0] == ("file 1", "cannot be read: Input/output error")
    assert report.skipped[1][0] == "file 3"
    assert "no image of a known format" in report.skipped[1][1]
    packed = PackedSource(tmp_path / "out")
    assert packed.labels.tolist() == [0, 2, 1]
    assert [np.array_equal(packed.read(new), IMAGES[old]) for new, old in enumerate((0, 2, 4))] == [True] * 3
    verify_sums(packed.folder)


def test_past_the_limit_of_bad_images_it_stops_and_nothing_is_written(tmp_path: Path) -> None:
    pack(SOURCE, tmp_path / "old", 4, overwrite=False)
    before = snapshot(tmp_path)
    steps: list[int] = []

    def packed_into(name: str, limit: float) -> None:
        steps.clear()
        pack(
            Files(),
            tmp_path / name,
            4,
            overwrite=True,
            bad_image_limit=limit,
            progress=lambda done, _: steps.append(done),
        )

    first = (
        r"1 of 5 images cannot be read, over the limit of 1\.0%: file 1: cannot be read: Input/output error\. Repair"
    )
    for name in ("new", "old"):
        with pytest.raises(DataError, match=first):
            packed_into(name, 0.01)
        assert steps == [1]  # at the second image it stops
        with pytest.raises(
            DataError, match=r"2 of 5 .* of 39\.0%: file 1: .*; file 3: no image .*bad_image_limit=0\.05"
        ):
            packed_into(name, 0.39)
        assert steps == [1, 2, 3]
    assert snapshot(tmp_path) == before
    packed_into("old", 0.4)  # two of five are not past it
    assert len(PackedSource(tmp_path / "old")) == 3
    for limit in (-0.1, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="bad_image_limit must be a"):
            packed_into("new", limit)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


@pytest.mark.parametrize("names", [NAMES, ()])
def test_images_without_labels_and_classes_are_packed_too(tmp_path: Path, names: tuple[str, ...]) -> None:
    class Unlabeled(Files):
        class_names = names

        @property
        def labels(self) -> NDArray[np.int64]:
            return np.array([-1, -1, 2, -1, -1]) if names else np.full(5, -1)

    pack(Unlabeled(), tmp_path / "out", (5, 6), overwrite=False, bad_image_limit=0.4)
    packed = PackedSource(tmp_path / "out")
    assert packed.class_names == names
    assert packed.labels.tolist() == ([-1, 2, -1] if names else [-1, -1, -1])
    assert [np.array_equal(packed.read(new), IMAGES[old]) for new, old in enumerate((0, 2, 4))] == [True] * 3
    again = pickle.loads(pickle.dumps(packed))
    assert (again.labels.tolist(), again.fingerprint) == (packed.labels.tolist(), packed.fingerprint)


@pytest.mark.parametrize("labels", [[-2, 0, 0, 0, 0, 0, 0], [0, 0, 0, 4, 0, 0, 0], [0]])
def test_labels_of_no_class_are_damage(tmp_path: Path, labels: list[int]) -> None:
    pack(SOURCE, tmp_path / "out", 4, overwrite=False)
    np.save(tmp_path / "out" / "labels.npy", np.array(labels))
    write_sums(tmp_path / "out")
    with pytest.raises(DataError, match=r"is damaged: labels must be .*Pack it again"):
        PackedSource(tmp_path / "out")


def test_sizes_are_squashed_and_averaged_where_they_shrink() -> None:
    step = np.repeat(np.array([[0, 200]], dtype=np.uint8), 6, axis=1).repeat(8, axis=0)[:, :, None]
    assert squash(step, (4, 2))[:, :, 0].tolist() == [[29, 171]] * 4  # 200 * 0.75 / 5.25, by the triangle of nine taps
    assert squash(step, (8, 12)) is step
    assert squash(IMAGES[0], (11, 3)).shape == (11, 3, 3)
    flat = np.full((9, 7, 3), 77, dtype=np.uint8)
    assert (squash(flat, (4, 13)) == 77).all()
    exact = torch.nn.functional.interpolate(
        torch.tensor(IMAGES[1]).permute(2, 0, 1)[None].double(), size=(3, 4), mode="bilinear", antialias=True
    )
    assert np.abs(squash(IMAGES[1], (3, 4)) - exact[0].permute(1, 2, 0).numpy()).max() < 1


def test_gray_and_color_become_what_is_asked_for(tmp_path: Path) -> None:
    gray = MemorySource(IMAGES[..., :1], [0] * 7, NAMES)
    pack(gray, tmp_path / "colour", (5, 6), overwrite=False)
    assert np.array_equal(PackedSource(tmp_path / "colour").read(3), IMAGES[3, :, :, [0, 0, 0]].transpose(1, 2, 0))
    pack(SOURCE, tmp_path / "grey", (5, 6), overwrite=False, channels=1)
    wanted = np.asarray(Image.fromarray(IMAGES[3]).convert("L"), dtype=np.int64)
    assert np.abs(PackedSource(tmp_path / "grey").read(3)[..., 0] - wanted).max() <= 1
    with pytest.raises(ConfigError, match="channels must be 1 or 3; got 2"):
        pack(SOURCE, tmp_path / "two", 5, overwrite=False, channels=2)


def test_only_packed_folders_are_overwritten_and_only_when_asked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack(SOURCE, out, 4, overwrite=False)
    before = snapshot(tmp_path)
    with pytest.raises(CheckpointError, match="exists already and is not empty"):
        pack(Files(), out, 4, overwrite=False)
    (out / "mine.txt").write_text("keep")
    with pytest.raises(CheckpointError, match=r"it also holds mine\.txt, which would be lost\. Choose another name"):
        pack(Files(), out, 4, overwrite=True)
    (out / "mine.txt").unlink()
    assert snapshot(tmp_path) == before
    pack(Files(), out, (9, 8), overwrite=True, bad_image_limit=0.4)
    assert PackedSource(out).read(0).shape == (9, 8, 3)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "sun.jpg").write_text("sun")
    with pytest.raises(CheckpointError, match=r"will not overwrite .*photos: it has no packed\.json"):
        pack(Files(), tmp_path / "photos", 4, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "photos"]


def test_an_interrupted_packing_leaves_the_old_folder(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    pack(SOURCE, tmp_path / "out", 4, overwrite=False)
    before = snapshot(tmp_path)
    for target in ("out", "new"):
        with pytest.raises(KeyboardInterrupt):
            pack(Files(), tmp_path / target, 4, overwrite=True, progress=stop)
    assert snapshot(tmp_path) == before


def test_a_source_without_one_good_image_is_refused(tmp_path: Path) -> None:
    class Bad(Files):
        def read(self, index: int) -> bytes | Pixels:
            return b""

    with pytest.raises(DataError, match="none of 5 images can be decoded; the first, file 0: empty file"):
        pack(Bad(), tmp_path / "out", 4, overwrite=False, bad_image_limit=1)
    assert list(tmp_path.iterdir()) == []


def test_a_packed_source_is_pickled_without_its_pixels(tmp_path: Path) -> None:
    pack(SOURCE, tmp_path / "out", 211, overwrite=False)
    source = PackedSource(tmp_path / "out")
    pickled = pickle.dumps(source)
    assert len(pickled) < 2_000
    copy = pickle.loads(pickled)
    assert np.array_equal(copy.read(5), source.read(5))
    assert copy.fingerprint == source.fingerprint


def test_the_fingerprint_follows_source_and_size(tmp_path: Path) -> None:
    for name, source, size in [("a", SOURCE, 4), ("b", SOURCE, 4), ("c", SOURCE, 5), ("d", Files(), 4)]:
        pack(source, tmp_path / name, size, overwrite=False, bad_image_limit=0.4)
    prints = [PackedSource(tmp_path / name).fingerprint for name in "abcd"]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("packed.json", None, "expected a folder of packed images; .*packed.json cannot be read: No such file"),
        ("packed.json", b"{", "packed.json is damaged: .*Pack it again"),
        ("packed.json", b"[]", r"must say \('vitrail packed images', 1\); it says \[\]"),
        ("packed.json", b'{"format": "vitrail packed images", "version": 2}', r"it says \('vitrail packed images', 2"),
        ("packed.json", b'{"format": "vitrail packed images", "version": 1}', "is not the file that SHA256SUMS"),
        ("labels.npy", b"", "labels.npy is not the file that SHA256SUMS lists"),
        ("images.npy", None, "images.npy cannot be mapped: .*No such file"),
        ("images.npy", b"", "images.npy cannot be mapped"),
    ],
)
def test_damaged_folders_are_refused(tmp_path: Path, file: str, damage: bytes | None, message: str) -> None:
    pack(SOURCE, tmp_path / "out", 4, overwrite=False)
    path = tmp_path / "out" / file
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    with pytest.raises((DataError, CheckpointError), match=message):
        PackedSource(tmp_path / "out")


def test_cut_and_changed_images_are_refused(tmp_path: Path) -> None:
    pack(SOURCE, tmp_path / "out", 4, overwrite=False)
    path = tmp_path / "out" / "images.npy"
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"images\.npy is not the file that SHA256SUMS lists"):
        verify_sums(tmp_path / "out")
    path.write_bytes(sound[:-1])
    with pytest.raises(DataError, match="cannot be mapped: mmap length is greater than file size"):
        PackedSource(tmp_path / "out")
    np.save(path, IMAGES)
    with pytest.raises(DataError, match=r"must hold bytes of shape \(7, 4, 4, 3\), as packed.json says"):
        PackedSource(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "packed.json").read_text())["class_names"] == list(NAMES)
