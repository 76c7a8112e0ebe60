"""Sums of a folder's files: what coreutils reads, and what is refused."""

import shutil
import subprocess
from pathlib import Path

import pytest

from vitrail.errors import CheckpointError
from vitrail.files import SUMS, verify_sums, write_sums
from vitrail.files.hashes import sha256_of

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "b model.safetensors").write_bytes(b"weights" * 100_003)
    (made / "a.json").write_bytes(b"abc")
    (made / "sub").mkdir()
    (made / "sub" / "ignored").write_bytes(b"")
    write_sums(made)
    return made


def refusal(folder: Path, names: list[str] | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        verify_sums(folder, names)
    return str(caught.value)


def test_the_sum_is_that_of_the_standard(folder: Path) -> None:
    assert sha256_of(folder / "a.json") == ABC
    with pytest.raises(CheckpointError, match=r"cannot read .*none: No such file"):
        sha256_of(folder / "none")


def test_the_list_is_sorted_and_repeats_itself(folder: Path) -> None:
    lines = (folder / SUMS).read_text().splitlines()
    assert lines[0] == f"{ABC}  a.json"
    assert [line[66:] for line in lines] == ["a.json", "b model.safetensors"]
    before = (folder / SUMS).read_bytes()
    write_sums(folder)
    assert (folder / SUMS).read_bytes() == before
    verify_sums(folder)
    verify_sums(str(folder), names=["a.json"])


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs coreutils")
def test_coreutils_agrees(folder: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=folder, check=True)
    listed = subprocess.run(["sha256sum", "-b", "a.json"], cwd=folder, check=True, capture_output=True).stdout
    (folder / SUMS).write_bytes(listed)
    verify_sums(folder, ["a.json"])


def test_changed_missing_and_unlisted_files_are_named(folder: Path) -> None:
    (folder / "a.json").write_bytes(b"abd")
    message = refusal(folder)
    assert f"{folder / 'a.json'} is not the file that SHA256SUMS lists: expected sha256 {ABC}, got a52d1" in message
    assert message.endswith("Copy the folder again.")
    verify_sums(folder, ["b model.safetensors"])
    (folder / "a.json").unlink()
    assert f"{folder / 'a.json'} is missing, though SHA256SUMS lists it" in refusal(folder)
    (folder / "a.json").write_bytes(b"abc")
    (folder / "extra.bin").write_bytes(b"")
    assert f"{folder / 'extra.bin'} is not listed in SHA256SUMS" in refusal(folder)
    assert "is not listed" in refusal(folder, ["extra.bin"])
    (folder / "extra.bin").rename(folder / ".DS_Store")
    verify_sums(folder)


@pytest.mark.parametrize(
    "line",
    [
        f"{ABC}  ../a.json",
        f"{ABC}  sub/ignored",
        f"{ABC}  sub\\ignored",
        f"{ABC}  ..",
        f"{ABC}  {SUMS}",
        f"{ABC} a.json",
        f"{ABC[1:]}  a.json",
        f"{ABC}  a.json\n{ABC}  a.json",
        f"{ABC}  a.json\r",
        "",
        "hello",
    ],
)
def test_lines_that_are_malformed_are_refused(folder: Path, line: str) -> None:
    (folder / SUMS).write_bytes(f"{line}\n".encode())
    assert "expected a checksum of 64 digits, two spaces and the name of one file" in refusal(folder, [])


def test_lists_that_cannot_be_read_or_written_are_refused(folder: Path) -> None:
    (folder / SUMS).write_bytes(b"\xff\xfe")
    assert "it is no text" in refusal(folder)
    (folder / SUMS).unlink()
    assert "with its SHA256SUMS" in refusal(folder)
    with pytest.raises(CheckpointError, match="cannot read the folder"):
        write_sums(folder / "none")
    (folder / "two\nlines").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"the name 'two\\nlines' cannot stand in SHA256SUMS"):
        write_sums(folder)
