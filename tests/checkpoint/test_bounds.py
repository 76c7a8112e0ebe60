"""Bounds of every container of weights: what repeats itself, promises terabytes or cannot be shown is refused soon."""

import io
import json
import logging
import os
import pickle
import struct
import zipfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from families import family
from numpy.lib import format as npy
from safetensors.torch import save_file

import vitrail
from vitrail.checkpoint.archives.pickles import Refused, follow
from vitrail.checkpoint.archives.unwrap import unwrap
from vitrail.errors import CheckpointError, VitrailError

module = import_module("vitrail.checkpoint.describe")

START = b"\x80\x04"
DOUBLED = b")q\x00" + b"".join(b"h%ch%c\x86q%c" % (level, level, level + 1) for level in range(60))
TOP = b"h\x3c"  # 2**60 leaves, if it were written out
STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0aX\x03\0\0\0cpuK\x01tQ"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


def wide(number: int) -> bytes:
    return b"\x8a\x09" + number.to_bytes(9, "little")


@pytest.mark.parametrize(
    "body",
    [
        b"(X\x07\0\0\0storagectorch\nFloatStorage\n" + TOP + b"X\x03\0\0\0cpuK\x01tQ.",
        TOP + TOP + b"\x93.",
        b"ctorch\ndevice\n" + TOP + b"\x85R.",
        b"}" + TOP + b"K\x01s.",
        b"cos\nsystem\n" + TOP + b"R.",
        b"ctorch\nSize\n" + TOP + b"\x85R.",
    ],
    ids=["storage", "global", "device", "key", "call", "size"],
)
def test_a_memo_that_doubles_is_refused_in_a_few_words(body: bytes) -> None:
    with pytest.raises((Refused, CheckpointError)) as caught:
        unwrap(Path("x.pth"), follow(io.BytesIO(START + DOUBLED + body)))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "parts",
    [
        STORAGE + b"K\x00(K\x01t(" + wide(2**64) + b"t",
        STORAGE + b"K\x00(" + wide(2**63) + b"t(K\x01t",
        STORAGE + wide(2**63) + b"(K\x01t(K\x01t",
        STORAGE + b"K\x00(" + b"K\x01" * 65 + b"t(" + b"K\x01" * 65 + b"t",
        STORAGE + b"K\x00(K\x01t(K\x01K\x01t",
    ],
    ids=["stride", "side", "offset", "axes", "steps"],
)
def test_a_tensor_that_torch_cannot_have_is_refused(parts: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", START + b"}X\x01\0\0\0w" + REBUILD + b"(" + parts + b"\x89NtRs.")
        archive.writestr("a/data/a", bytes(4))
    for call in (vitrail.load, vitrail.describe):
        with pytest.raises(CheckpointError, match="put together otherwise than torch does"):
            call(path)


def test_a_long_name_that_is_recalled_again_and_again_takes_no_memory() -> None:
    name = b"X" + struct.pack("<I", 2_000_000) + b"a" * 2_000_000
    with pytest.raises(Refused, match="a name that is a str of no likely length"):
        follow(io.BytesIO(START + name + b"q\x00" + b"h\x00h\x00\x930" * 1000 + b"N."))


def header(shape: tuple[int, ...]) -> bytes:
    made = io.BytesIO()
    npy.write_array_header_1_0(made, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return made.getvalue()


def write(path: Path, names: list[str], shape: tuple[int, ...] = (1,)) -> Path:
    """Write tensors of these names, in the container that the suffix says."""
    if path.suffix == ".npz":
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(f"{name}.npy", header(shape) + bytes(4))
    elif path.suffix == ".pth":
        torch.save({name: torch.zeros(shape) for name in names}, path)
    else:
        save_file({name: torch.zeros(shape) for name in names}, path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".pth", ".safetensors"])
def test_names_of_tensors_are_bounded_and_shown_as_they_are(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"x{suffix}", ["x" * 5000, "b"])
    with pytest.raises(CheckpointError, match="a name of 5,000 signs"):
        vitrail.describe(path)
    shown = str(vitrail.describe(write(path, ["[/red]", "\x1b[2J", "a\u202eb"])))
    assert all(name in shown for name in ("[/red]", "\\x1b[2J", "a\\u202eb"))
    assert shown.replace("\n", "").isprintable()


@pytest.mark.parametrize("suffix", [".npz", ".pth", ".safetensors"])
def test_axes_are_bounded(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"x{suffix}", ["a"], (1,) * 40)
    for call in (vitrail.load, vitrail.describe):
        with pytest.raises(CheckpointError, match="'a' has 40 axes"):
            call(path)


def test_a_safetensors_file_of_holes_is_refused(tmp_path: Path) -> None:
    size = 1 << 36
    said = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(said).to_bytes(8, "little") + said)
    os.truncate(tmp_path / "x.safetensors", 8 + len(said) + size)
    with pytest.raises(CheckpointError, match="nearly all of it is holes"):
        vitrail.describe(tmp_path / "x.safetensors")


def test_statistics_are_the_same_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.randn(7, 11) * 3 + 2
    numbers[2, 3:6], numbers[4, 4] = 0, float("nan")
    save_file({"w": numbers, "nothing": torch.full((9,), float("inf"))}, tmp_path / "x.safetensors")
    monkeypatch.setattr(module, "PIECE", 5)
    nothing, found = vitrail.describe(tmp_path / "x.safetensors").tensors
    finite = numbers.double()[torch.isfinite(numbers)].numpy()
    assert (found.not_finite, nothing.not_finite, nothing.mean) == (1, 9, None)
    wanted = (finite.mean(), finite.std(), finite.min(), finite.max(), (finite == 0).mean())
    got = (found.mean, found.deviation, found.low, found.high, found.zeros)
    assert np.allclose(np.array(got, dtype=np.float64), wanted, rtol=1e-6)


def test_what_nobody_foresaw_is_an_error_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.safetensors", ["a"])

    def fail(*_: object) -> None:
        raise RecursionError("no one thought of it")

    monkeypatch.setattr(module, "_measure", fail)
    with pytest.raises(
        CheckpointError, match="cannot be read, it may be damaged: RecursionError: no one thought of it"
    ):
        vitrail.describe(path)


def test_what_is_logged_drives_no_terminal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    vitrail.save(family("vit", image_size=(12, 12)), tmp_path / "x.pth", layout="timm", lossy=True)
    weights = torch.load(tmp_path / "x.pth", weights_only=True)
    torch.save({"model": weights, "\x1b[2J": 1}, tmp_path / "\x1b]0;x.pth")
    with caplog.at_level(logging.INFO, "vitrail"):
        vitrail.load(tmp_path / "\x1b]0;x.pth", heads=3)
    assert "\\x1b[2J" in caplog.text
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize(
    "name", ["~nobody-of-this-name/x.npz", "x" * 300, "a\0b", "a\ud800b", "/dev/zero", "y/" * 4000]
)
def test_a_path_that_cannot_be_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    for call in (vitrail.load, vitrail.describe, vitrail.check_data):
        with pytest.raises(VitrailError, match=r"\S"):
            call(name)


def test_the_bomb_of_a_legacy_file_is_refused(tmp_path: Path) -> None:
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
    said = START + b"}X\x0d\0\0\0little_endian\x88s."
    storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\n" + TOP + b"X\x03\0\0\0cpuK\x01tQ."
    (tmp_path / "x.pth").write_bytes(magic + said + START + DOUBLED + storage + START + b"].")
    with pytest.raises(CheckpointError, match="a name that is a tuple"):
        vitrail.load(tmp_path / "x.pth")


def test_a_header_of_very_many_tensors_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.safetensors", ["a", "b"])
    monkeypatch.setattr("vitrail.checkpoint.archives.base.LARGEST_HEADER", 50)
    with pytest.raises(CheckpointError, match=r"its header would have .* bytes"):
        vitrail.describe(path)


def test_what_a_library_quotes_of_a_file_is_cut(tmp_path: Path) -> None:
    said = json.dumps({"w": {"dtype": "x" * 100_000, "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(said).to_bytes(8, "little") + said + bytes(4))
    with pytest.raises(CheckpointError, match=r"is damaged.*more signs.*Copy or download it again") as caught:
        vitrail.describe(tmp_path / "x.safetensors")
    assert len(str(caught.value)) < 1000
