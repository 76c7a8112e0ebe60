"""Files and folders appear whole or not at all, whatever goes wrong."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from vitrail.errors import CheckpointError
from vitrail.files import new_folder, read_arrays, replacing, write_bytes


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def saved(path: Path, text: str = "{}", *, overwrite: bool = False) -> None:
    with new_folder(path, overwrite=overwrite) as folder:
        (folder / "config.json").write_text(text)


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    write_bytes(path, b"one")
    write_bytes(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert names(tmp_path) == ["weights.npz"]


def test_the_temporary_is_hidden_beside_the_file_and_keeps_its_suffix(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    with replacing(path) as one, replacing(path) as other:
        assert one != other
        assert one.parent == tmp_path
        assert one.name.startswith(".weights.")
        assert one.suffix == ".npz"
        one.write_bytes(b"one")
        other.write_bytes(b"other")
    assert path.read_bytes() == b"one"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_an_interruption_leaves_the_old_file_and_no_other(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "weights.npz"
    write_bytes(path, b"old")

    def interrupted() -> None:
        with replacing(path) as temporary:
            temporary.write_bytes(b"half of the n")
            raise error

    with pytest.raises(error):
        interrupted()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["weights.npz"]


def test_arrays_go_through_a_link_to_a_name_without_a_suffix_and_leave_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "link.npz").symlink_to("real")
    with replacing(tmp_path / "link.npz") as temporary:
        np.savez(temporary, one=np.arange(3))
    assert names(tmp_path) == ["link.npz", "real"]
    assert (tmp_path / "link.npz").is_symlink()
    assert read_arrays(tmp_path / "real")["one"].tolist() == [0, 1, 2]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    write_bytes(tmp_path / "real", b"old")
    (tmp_path / "link").symlink_to("real")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_what_is_no_plain_file_is_never_replaced(tmp_path: Path) -> None:
    """A link to a device, followed as its owner, would put a file in the place of the device."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(CheckpointError, match=r"is no plain file\. Choose another name"):
            write_bytes(tmp_path / name, b"x")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_what_the_disk_refuses_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*file/a: Not a directory\. A part of the path is a file"):
        write_bytes(tmp_path / "file" / "a", b"")
    with pytest.raises(
        CheckpointError, match=r"cannot write .*none/a: No such file or directory\. Check the path; cre"
    ):
        write_bytes(tmp_path / "none" / "a", b"")
    with pytest.raises(CheckpointError, match=r"is a folder\. Give a name inside it"):
        write_bytes(tmp_path, b"")
    with pytest.raises(CheckpointError, match="cannot write"):
        saved(tmp_path / "file" / "model")

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"cannot write .*model: No space left on device\. Free some space"):
        saved(tmp_path / "model")
    with pytest.raises(CheckpointError, match="No space left on device"):
        write_bytes(tmp_path / "a", b"")
    assert names(tmp_path) == ["file"]


def test_what_is_no_plain_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # as a device, for root
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(CheckpointError, match="no plain file"):
            write_bytes(tmp_path / name, b"x")
    assert (tmp_path / "pipe").is_fifo()
    assert names(tmp_path) == ["link", "pipe"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match=r"Permission denied\. Choose a place that you may write to"):
        write_bytes(tmp_path / "a", b"")


def test_a_reason_from_elsewhere_names_its_own_file(tmp_path: Path) -> None:
    def lacking() -> None:
        with replacing(tmp_path / "a"):
            Path("/none/photo.jpg").read_bytes()

    with pytest.raises(CheckpointError, match=r"No such file or directory: /none/photo\.jpg"):
        lacking()


def test_a_folder_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "model"
    with new_folder(path, overwrite=False) as folder:
        assert folder.parent == path.parent
        assert folder.name.startswith(".model.")
        (folder / "part").mkdir()
        (folder / "part" / "weights").write_bytes(b"w")
        assert not path.exists()
    assert (path / "part" / "weights").read_bytes() == b"w"
    assert names(path.parent) == ["model"]


def test_an_interrupted_folder_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(*, overwrite: bool) -> None:
        with new_folder(tmp_path / "model", overwrite=overwrite) as folder:
            (folder / "config.json").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(overwrite=False)
    assert names(tmp_path) == []
    saved(tmp_path / "model", "old")
    with pytest.raises(KeyboardInterrupt):
        interrupted(overwrite=True)
    assert names(tmp_path) == ["model"]
    assert (tmp_path / "model" / "config.json").read_text() == "old"


def test_a_taken_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.mkdir()
    saved(path, "one")
    with pytest.raises(CheckpointError, match=r"exists already and is not empty\. Choose another name, or give overw"):
        saved(path, "two")
    assert (path / "config.json").read_text() == "one"
    saved(path, "two", overwrite=True)
    assert (path / "config.json").read_text() == "two"
    assert names(tmp_path) == ["model"]


def test_only_our_own_folders_are_overwritten(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "holiday.jpg").write_bytes(b"sun")
    with pytest.raises(CheckpointError, match=r"will not overwrite .*photos: it has no config\.json"):
        saved(photos, overwrite=True)
    (tmp_path / "file").write_bytes(b"text")
    for overwrite in (True, False):
        with pytest.raises(CheckpointError, match=r"file is a file\. Choose another name"):
            saved(tmp_path / "file", overwrite=overwrite)
    assert (photos / "holiday.jpg").read_bytes() == b"sun"
    assert (tmp_path / "file").read_bytes() == b"text"
    assert names(tmp_path) == ["file", "photos"]


def test_another_mark_makes_another_kind_of_folder_ours(tmp_path: Path) -> None:
    saved(tmp_path / "model", "keep")
    with (
        pytest.raises(CheckpointError, match=r"it has no packed\.json, so it is none of ours"),
        new_folder(tmp_path / "model", overwrite=True, mark="packed.json"),
    ):
        raise AssertionError
    for text in ("one", "two"):
        with new_folder(tmp_path / "packed", overwrite=True, ours=["packed.json"], mark="packed.json") as folder:
            (folder / "packed.json").write_text(text)
    assert (tmp_path / "packed" / "packed.json").read_text() == "two"
    assert (tmp_path / "model" / "config.json").read_text() == "keep"
    assert names(tmp_path) == ["model", "packed"]


def test_a_name_taken_meanwhile_is_refused_too(tmp_path: Path) -> None:
    def raced() -> None:
        with new_folder(tmp_path / "model", overwrite=False):
            saved(tmp_path / "model", "first")

    with pytest.raises(CheckpointError, match="exists already"):
        raced()
    assert (tmp_path / "model" / "config.json").read_text() == "first"
    assert names(tmp_path) == ["model"]


def test_the_old_folder_comes_back_when_the_new_one_cannot_be_moved_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "model", "old")
    renames: list[str] = []

    def rename(source: Path, target: Path, real: object = os.replace) -> None:
        renames.append(source.name)
        if len(renames) == 2:
            raise OSError(errno.EIO, "Input/output error")
        os.replace(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(CheckpointError, match="Input/output error"):
        saved(tmp_path / "model", "new", overwrite=True)
    assert len(renames) == 3
    assert (tmp_path / "model" / "config.json").read_text() == "old"
    assert names(tmp_path) == ["model"]
