"""Folders of class folders: what is found, what is remembered, and what is refused."""

import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.decode import ImageError
from vitrail.data.sources import folder as module
from vitrail.data.sources.folder import FolderSource, folder_splits
from vitrail.errors import DataError

LONG_AGO = 1_600_000_000_000_000_123  # ns


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "folders"


def make(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(f"bytes of {file}".encode())
    return settle(root)


def settle(root: Path) -> Path:
    """Let the folders have changed long ago, so that what they hold may be remembered."""
    for place, _, _ in os.walk(root):
        os.utime(place, ns=(LONG_AGO, LONG_AGO))
    return root


def listed(source: FolderSource) -> list[tuple[str, str]]:
    return [(source.name(i), source.class_names[label]) for i, label in enumerate(source.labels)]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made: list[Path] = []
    real = module._scan

    def counted(root: Path) -> module.Index:
        made.append(root)
        return real(root)

    monkeypatch.setattr(module, "_scan", counted)
    return made


def test_classes_are_sorted_and_images_of_any_depth_and_case_found(tmp_path: Path) -> None:
    root = make(
        tmp_path / "pets",
        *("dog/b.JPG", "dog/a.jpeg", "cat/deep/er/c.PnG", "cat/z.webp", "cat/notes.txt", "cat/png", "README.md"),
        *("loose.jpg", ".git/x.png", "cat/.hidden.png", "__MACOSX/cat/z.webp"),
    )
    (root / "ant").mkdir()
    source = FolderSource(root)
    assert source.class_names == ("ant", "cat", "dog")
    assert listed(source) == [
        ("cat/deep/er/c.PnG", "cat"),
        ("cat/z.webp", "cat"),
        ("dog/a.jpeg", "dog"),
        ("dog/b.JPG", "dog"),
    ]
    assert source.labels.dtype == np.int64
    assert len(source) == 4
    assert source.ignored == 4
    assert source.ignored_names == ["loose.jpg", "README.md", "cat/notes.txt", "cat/png"]
    assert source.problems == []
    assert source.read(3) == b"bytes of dog/b.JPG"


def test_of_many_files_that_are_no_images_some_are_named(tmp_path: Path) -> None:
    source = FolderSource(make(tmp_path / "pets", "cat/1.png", *(f"cat/{number:02}.txt" for number in range(31))))
    assert source.ignored == 31
    assert source.ignored_names == [f"cat/{number:02}.txt" for number in range(20)]


def test_the_fingerprint_follows_names_and_labels_but_not_the_place(tmp_path: Path) -> None:
    first = FolderSource(make(tmp_path / "one", "a/1.png", "b/2.png")).fingerprint
    assert FolderSource(make(tmp_path / "two", "a/1.png", "b/2.png")).fingerprint == first
    assert FolderSource(make(tmp_path / "three", "a/1.png", "b/3.png")).fingerprint != first
    assert FolderSource(tmp_path / "one", class_names=("b", "a")).fingerprint != first
    assert len(first) == 16


def test_what_cannot_be_read_stays_in_the_list_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path / "pets", "cat/full.png")
    (root / "cat" / "empty.png").touch()
    (root / "cat" / "broken.png").symlink_to("nowhere")
    (root / "cat" / "loop.png").symlink_to("loop.png")
    os.mkfifo(root / "cat" / "pipe.png")
    source = FolderSource(root)
    assert [source.name(i)[4:-4] for i in range(5)] == ["broken", "empty", "full", "loop", "pipe"]
    assert source.read(1) == b""
    for index, reason in [(0, "No such file"), (3, "symbolic links"), (4, "no plain file")]:
        with pytest.raises(ImageError, match=f"cannot be read: .*{reason}"):
            source.read(index)
    monkeypatch.setattr(module, "LARGEST", 17)
    with pytest.raises(ImageError, match="cannot be read: 21 bytes; at most 17 are read"):
        source.read(2)
    with pytest.raises(IndexError):
        source.read(-1)


def test_links_to_folders_are_followed_once_and_loops_end(tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", "x.png", "y.png")
    root = make(tmp_path / "pets", "ant/1.png", "cat/2.png")
    (root / "ant" / "all").symlink_to(root)
    (root / "ant" / "cats").symlink_to(root / "cat")
    (root / "bee").symlink_to(tmp_path / "elsewhere")
    (root / "aaa").symlink_to(root / "cat")
    source = FolderSource(root)
    assert listed(source) == [("ant/1.png", "ant"), ("bee/x.png", "bee"), ("bee/y.png", "bee"), ("cat/2.png", "cat")]
    again = "leads to a folder that was read already"
    assert sorted(source.problems) == [("aaa", again), ("ant/all", again), ("ant/cats", again)]
    assert source.class_names == ("aaa", "ant", "bee", "cat")


def test_a_folder_that_cannot_be_read_is_a_problem_and_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    root = make(tmp_path / "pets", "ant/1.png", "cat/2.png")
    real = os.scandir

    def refusing(path: str | Path) -> object:
        if str(path).endswith("cat"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refusing)
        source = FolderSource(root)
    assert source.problems == [("cat", "Permission denied")]
    assert source.class_names == ("ant", "cat")
    assert listed(source) == [("ant/1.png", "ant")]
    assert not cache.exists()
    assert len(FolderSource(root)) == 2


def test_the_second_start_reads_no_folder_and_finds_the_same(tmp_path: Path, scans: list[Path]) -> None:
    root = make(tmp_path / "pets", "ant/1.png", "cat/sub/2.png", "cat/odd.txt")
    os.close(os.open(os.fsencode(root) + b"/ant/\xff.png", os.O_CREAT))
    (root / "cat" / "loop").symlink_to(root / "cat")
    settle(root)
    first, second = FolderSource(root), FolderSource(root)
    assert len(scans) == 1
    assert (
        listed(second)
        == listed(first)
        == [
            ("ant/1.png", "ant"),
            ("ant/\udcff.png", "ant"),
            ("cat/sub/2.png", "cat"),
        ]
    )
    assert second.read(1) == b""
    assert second.ignored_names == first.ignored_names == ["cat/odd.txt"]
    assert (second.ignored, second.problems) == (first.ignored, first.problems) == (1, [("cat/loop", module.AGAIN)])
    assert second.fingerprint == first.fingerprint


@pytest.mark.parametrize("change", ["add", "remove", "folder", "class"])
def test_any_change_of_the_list_is_seen(tmp_path: Path, scans: list[Path], change: str) -> None:
    root = make(tmp_path / "pets", "ant/1.png", "ant/2.png", "cat/sub/3.png")
    FolderSource(root)
    match change:
        case "add":
            (root / "cat" / "sub" / "4.png").touch()
        case "remove":
            (root / "ant" / "2.png").unlink()
        case "folder":
            (root / "cat" / "sub").rename(root / "cat" / "bus")
        case _:
            (root / "bee").mkdir()
    source = FolderSource(root)
    assert len(scans) == 2
    assert len(source) == {"add": 4, "remove": 2}.get(change, 3)
    assert source.class_names == (("ant", "bee", "cat") if change == "class" else ("ant", "cat"))
    assert (source.name(len(source) - 1) == "cat/bus/3.png") == (change == "folder")


def test_a_folder_changed_just_now_is_not_trusted(tmp_path: Path, scans: list[Path]) -> None:
    root = make(tmp_path / "pets", "ant/1.png")
    os.utime(root / "ant", ns=(0, time.time_ns()))
    FolderSource(root)
    FolderSource(root)
    assert len(scans) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "empty", "other"])
def test_a_damaged_memory_is_ignored_and_written_anew(
    tmp_path: Path, scans: list[Path], cache: Path, damage: str
) -> None:
    root = make(tmp_path / "pets", "ant/1.png", "cat/2.png")
    wanted = listed(FolderSource(root))
    (file,) = cache.iterdir()
    sound = file.read_bytes()
    at = sound.index(b"ant/1.png")
    flipped = sound[:at] + b"bee" + sound[at + 3 :]
    file.write_bytes({"cut": sound[:-40], "flipped": flipped, "text": b"PK", "empty": b""}.get(damage, sound))
    if damage == "other":
        np.savez(file, numbers=np.array([1, 2]), labels=np.array([7]), changed=np.array([7]), texts=np.array([7]))
    assert listed(FolderSource(root)) == wanted
    assert len(scans) == 2
    assert file.read_bytes() == sound
    assert listed(FolderSource(root)) == wanted
    assert len(scans) == 2


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path / "pets", "ant/1.png")
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "file"))
    assert listed(FolderSource(root)) == listed(FolderSource(root)) == [("ant/1.png", "ant")]


def test_splits_are_named_alike_and_share_their_classes(tmp_path: Path) -> None:
    root = make(
        tmp_path / "pets", "Train/ant/1.png", "Train/cat/2.png", "validation/cat/3.png", "test/bee/4.png", "x.md"
    )
    splits = folder_splits(root)
    assert list(splits) == ["train", "val", "test"]
    assert {source.class_names for source in splits.values()} == {("ant", "bee", "cat")}
    assert {split: source.labels.tolist() for split, source in splits.items()} == {
        "train": [0, 2],
        "val": [2],
        "test": [1],
    }
    assert splits["val"].read(0) == b"bytes of validation/cat/3.png"
    whole = folder_splits(make(tmp_path / "plain", "ant/1.png"))
    assert {split: listed(source) for split, source in whole.items()} == {"all": [("ant/1.png", "ant")]}


def test_folders_that_are_no_source_are_refused_with_a_way_out(tmp_path: Path) -> None:
    mixed = make(tmp_path / "mixed", "train/ant/1.png", "cat/2.png", "test/ant/3.png")
    with pytest.raises(DataError, match=r"either splits or classes; it holds 'test', 'train' beside 'cat'\. Move"):
        folder_splits(mixed)
    twice = make(tmp_path / "twice", "val/ant/1.png", "validation/ant/2.png")
    with pytest.raises(DataError, match=r"every split once; it holds 'val', 'validation'\. Merge or rename"):
        folder_splits(twice)
    with pytest.raises(DataError, match=r"expected a folder of class folders; .*none cannot be read: No such file"):
        FolderSource(tmp_path / "none")
    loose = make(tmp_path / "loose", "1.png", "2.png", "empty/notes.txt")
    found = r"2 images beside no folder of a class, 1 other files"
    with pytest.raises(DataError, match=rf"has 1 folders and no image in them \({found}\)\. Put the images"):
        FolderSource(loose)
    with pytest.raises(DataError, match=r"class folders that class_names lacks: 'ant'\. Name them too"):
        FolderSource(mixed / "train", class_names=("bee",))


def test_a_source_survives_pickling(tmp_path: Path) -> None:
    source = FolderSource(make(tmp_path / "pets", "ant/1.png", "cat/2.png"))
    copy = pickle.loads(pickle.dumps(source))
    assert listed(copy) == listed(source)
    assert (copy.read(1), copy.fingerprint) == (b"bytes of cat/2.png", source.fingerprint)


def many(root: Path, folders: int, files: int) -> Path:
    for folder in range(folders):
        place = root / f"class{folder:03}"
        place.mkdir(parents=True)
        for file in range(files):
            os.close(os.open(place / f"{file:06}.jpg", os.O_CREAT | os.O_WRONLY))
    return settle(root)


@pytest.mark.slow
def test_the_second_start_of_many_files_reads_one_list(tmp_path: Path, scans: list[Path]) -> None:
    root = many(tmp_path / "many", 41, 500)
    first, second = FolderSource(root), FolderSource(root)
    assert len(scans) == 1
    assert len(second) == 20_500
    assert second.fingerprint == first.fingerprint
