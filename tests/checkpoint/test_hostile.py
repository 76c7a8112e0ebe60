"""Files made to mislead: none runs anything, takes memory beyond its size, or ends in anything but a clear refusal."""

import bz2
import hashlib
import io
import json
import os
import pickle
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from families import family
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch._utils import _rebuild_tensor_v2

import vitrail
from vitrail.checkpoint.archives.base import open_archive
from vitrail.config import encode
from vitrail.errors import CheckpointError, ConfigError

MIB = 2**20
ROOM = 64 * MIB  # that a refusal may take
HEADS: dict[str, Any] = {"heads": 3}
REBUILD = _rebuild_tensor_v2
# A process of its own: it says how a call ended and by how much its peak memory rose. An alarm ends a call that hangs:
# by the processor's seconds, which a busy machine does not change, and by the clock's where it only waits.
GUARD = """
import json, resource, signal, sys
import torch, vitrail
from vitrail.checkpoint.archives.base import open_archive
def field(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))
def truncated(path, **asked):
    with open_archive(__import__("pathlib").Path(path)) as archive:
        open(path, "r+b").truncate(asked["to"])
        for name in archive.entries:
            archive.read(name)
def write(kind, message, grown):
    print(json.dumps([kind, message, grown]), flush=True)
calls = {"load": vitrail.load, "describe": vitrail.describe, "convert": vitrail.convert, "truncated": truncated}
resource.setrlimit(resource.RLIMIT_AS, (field("VmSize") + 12 * 2**30,) * 2)
write("ready", "", 0)
for line in sys.stdin:
    name, path, asked = json.loads(line)
    open("/proc/self/clear_refs", "w").write("5")
    before, kind, message = field("VmRSS"), "", ""
    signal.setitimer(signal.ITIMER_PROF, 8)
    signal.alarm(120)
    try:
        calls[name](path, **asked)
    except BaseException as error:
        kind, message = type(error).__name__, str(error)[:2000]
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)
    write(kind, message, field("VmHWM") - before)
"""
LINUX = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")


class Outcome(NamedTuple):
    kind: str  # of the error; nothing where there was none
    message: str
    grown: int  # bytes


class Guard:
    """Runs calls elsewhere, where they may eat memory, hang or die."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def __call__(self, call: str, path: Path, **asked: object) -> Outcome:
        if self._child is None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
            command = [sys.executable, "-W", "ignore", "-c", GUARD]
            pipe = subprocess.PIPE
            self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
            assert self._answer().kind == "ready"
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps([call, str(path), asked]) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def _answer(self) -> Outcome:
        assert self._child is not None
        assert self._child.stdout is not None
        ready, _, _ = select.select([self._child.stdout], [], [], 30)
        line = self._child.stdout.readline() if ready else ""
        if line:
            return Outcome(*json.loads(line))
        child, self._child = self._child, None
        child.kill()
        with child:
            code = child.wait()
        return Outcome(f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}", "", 0)

    def close(self) -> None:
        if self._child is not None:
            with self._child as child:
                child.communicate()


@pytest.fixture(scope="module")
def guard() -> Iterator[Guard]:
    made = Guard()
    yield made
    made.close()


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class Storage(NamedTuple):
    """Pickles as a storage of so many numbers, kept in a record of this name."""

    key: str
    count: Any
    kind: Any = torch.FloatStorage
    place: str = "cpu"


class Pickler(pickle.Pickler):
    legacy: bool = False

    def persistent_id(self, obj: object) -> object:
        if not isinstance(obj, Storage):
            return None
        key = ("storage", obj.kind, obj.key, obj.place, obj.count)
        return (*key, None) if self.legacy else key


def pickled(document: object, *, legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    pickler = Pickler(buffer, protocol=2)
    pickler.legacy = legacy
    pickler.dump(document)
    return buffer.getvalue()


def stored(count: Any, shape: tuple[int, ...], stride: tuple[int, ...], *, key: str = "0", offset: int = 0) -> Call:
    return Call(REBUILD, Storage(key, count), offset, shape, stride, False, OrderedDict())


def records(document: object, storages: dict[str, bytes] | None = None) -> dict[str, bytes]:
    content = document if isinstance(document, bytes) else pickled(document)
    inside = {"data.pkl": content, "byteorder": b"little", "version": b"3\n"}
    inside |= {f"data/{key}": data for key, data in (storages or {"0": bytes(4)}).items()}
    return {f"archive/{name}": data for name, data in inside.items()}


def zipped(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def pth(path: Path, document: object, storages: dict[str, bytes] | None = None) -> Path:
    return zipped(path, records(document, storages))


def old_pth(path: Path, document: object, storages: dict[str, bytes] | None = None, keys: object = None) -> Path:
    """A file as torch.save wrote before version 1.6."""
    storages = storages or {}
    with path.open("wb") as file:
        for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
            pickle.dump(part, file, 2)
        file.write(pickled(document, legacy=True))
        pickle.dump(list(storages) if keys is None else keys, file, 2)
        for data in storages.values():
            file.write(struct.pack("<q", len(data) // 4) + data)
    return path


def safe(path: Path, header: object, body: bytes = b"") -> Path:
    said = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(said)) + said + body)
    return path


def tensor(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def npy(header: str | dict[str, object], body: bytes = b"", *, version: int = 1) -> bytes:
    text = (header if isinstance(header, str) else repr(header)).encode("latin1") + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + body


def described(shape: object, descr: object = "<f4", *, fortran: bool = False) -> dict[str, object]:
    return {"descr": descr, "fortran_order": fortran, "shape": shape}


def npz(path: Path, member: bytes, name: str = "embedding/kernel.npy", method: int = zipfile.ZIP_STORED) -> Path:
    return zipped(path, {name: member}, method)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small model in every layout."""
    made = tmp_path_factory.mktemp("good")
    model = family("vit", image_size=(12, 12))
    for name, layout in {"weights.npz": "google", "timm.safetensors": "timm", "hf": "hf", "run": "vitrail"}.items():
        vitrail.save(model, made / name, layout=layout, lossy=True)
    return made


@pytest.fixture
def weights(folder: Path) -> dict[str, Tensor]:
    """The same model in timm's names."""
    return load_file(folder / "timm.safetensors")


@pytest.fixture
def expected(folder: Path) -> dict[str, Tensor]:
    return dict(vitrail.load(folder / "timm.safetensors", **HEADS).state_dict())


def refusal(path: Path, *words: str, call: Callable[..., object] = vitrail.load, **asked: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        call(path, **asked)
    message = str(caught.value)
    assert str(path) in message
    assert all(word in message for word in words), message
    return message


def refused_or_read(path: Path, call: Callable[..., object] = vitrail.load, **asked: Any) -> bool:
    """A call gives something, or refuses the path by its name; anything else is an error."""
    try:
        call(path, **asked)
    except CheckpointError as error:
        message = str(error)
    else:
        return False
    assert str(path) in message
    return True


def refused_within(outcome: Outcome, *words: str, room: int = ROOM) -> None:
    """An outcome is a refusal that says so, in little memory."""
    assert outcome.kind == "CheckpointError", outcome
    assert all(word in outcome.message for word in words), outcome.message
    assert outcome.grown < room, f"{outcome.grown / MIB:.0f} MiB"


def same(path: Path, expected: dict[str, Tensor], **asked: Any) -> None:
    found = vitrail.load(path, **asked).state_dict()
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        torch.testing.assert_close(found[name], wanted, rtol=0, atol=0)


def bounded(outcome: Outcome) -> None:
    """An outcome is a refusal, or none was needed, in little memory."""
    assert outcome.kind in ("", "CheckpointError"), outcome
    assert outcome.grown < ROOM, f"{outcome.grown / MIB:.0f} MiB"


# ---- safetensors

BODY = {"a": tensor([4], 0, 16)}


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ({"a": tensor([4], 0, 16), "b": tensor([4], 8, 24)}, bytes(24)),
        ({"a": tensor([4], 0, 16), "b": tensor([4], 0, 16)}, bytes(16)),
        ({"a": tensor([4], 0, 16)}, bytes(15)),
        ({"a": tensor([4], 0, 16)}, bytes(17)),
        ({"a": tensor([4], 16, 32)}, bytes(32)),
        ({"a": tensor([4], 16, 0)}, bytes(16)),
        ({"a": tensor([5], 0, 16)}, bytes(16)),
        ({"a": tensor([2**40, 2**40], 0, 16)}, bytes(16)),
        ({"a": tensor([2**63, 2], 0, 0)}, b""),
        ({"a": tensor([2**70], 0, 16)}, bytes(16)),
        ({"a": tensor([-4], 0, 16)}, bytes(16)),
        ({"a": tensor([4.0], 0, 16)}, bytes(16)),
        ({"a": tensor([4], 0, 16, "F33")}, bytes(16)),
        ({"a": {"dtype": "F32", "shape": [4]}}, bytes(16)),
        ({"a": [1, 2]}, bytes(16)),
        ({"a": None}, b""),
        ({"__metadata__": {"vitrail": 5}, **BODY}, bytes(16)),
        ({"__metadata__": [], **BODY}, bytes(16)),
        (b'{"a": {"dtype":"F32","shape":[1],"shape":[4],"data_offsets":[0,16]}}', bytes(16)),
        (b'{"a' + b"\xff" + b'": 5}', b""),
        (b"{" * 5000, b""),
        (b'{"a":' * 5000, b""),
        (b"{}" + bytes(6), b""),
        (b"{", b""),
    ],
)
def test_a_safetensors_header_that_lies_is_refused(header: object, body: bytes, tmp_path: Path) -> None:
    for call in (vitrail.load, vitrail.describe):
        refusal(safe(tmp_path / "x.safetensors", header, body), "is damaged", call=call)


def test_a_name_given_twice_never_means_two_things(tmp_path: Path) -> None:
    one, other = (json.dumps(tensor([2], *place)).encode() for place in ((0, 8), (8, 16)))
    path = safe(tmp_path / "x.safetensors", b'{"a": %s, "a": %s}' % (one, other), bytes(16))
    refusal(path, "is damaged")


@LINUX
@pytest.mark.parametrize("length", [0, 2**20, 99_000_000, 100_000_001, 2**40, 2**63 - 1, 2**64 - 1])
def test_a_safetensors_header_said_to_be_huge_is_not_read(length: int, tmp_path: Path, guard: Guard) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{" + bytes(10_000))
    refused_within(guard("load", path), "damaged")


def test_tensors_that_are_no_weights_are_named(weights: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for dtype, word in {
        torch.int64: "I64",
        torch.bool: "BOOL",
        torch.complex64: "C64",
        torch.float8_e4m3fn: "F8_E4M3",
        torch.uint8: "U8",
    }.items():
        save_file(weights | {"norm.bias": torch.zeros(24).to(dtype)}, path)
        refusal(path, "expected floating-point weights; 'norm.bias' is", word, **HEADS)
        assert vitrail.describe(path, **HEADS).reason is not None


def test_empty_tensors_make_no_model(weights: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for name in ("patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight", "head.weight", "norm.bias"):
        shape = list(weights[name].shape)
        for axis in range(len(shape)):
            none = torch.zeros(*shape[:axis], 0, *shape[axis + 1 :])
            save_file(weights | {name: none}, path)
            refusal(path, **HEADS)
            vitrail.describe(path, **HEADS)


def test_an_empty_file_is_refused_as_empty(tmp_path: Path) -> None:
    for name in ("x.safetensors", "x.npz", "x.pth", "model.safetensors.index.json"):
        (tmp_path / name).write_bytes(b"")
        for call in (vitrail.load, vitrail.describe):
            refusal(tmp_path / name, "it is empty", call=call)


@pytest.mark.parametrize("shape", [(10**30, 0), (2**62, 8, 0), (0, 2**63)], ids=str)
def test_a_huge_shape_of_nothing_is_described_or_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    paths = [npz(tmp_path / "x.npz", npy(described(shape)))]
    if max(shape) < 2**64:
        paths += [safe(tmp_path / "x.safetensors", {"a": tensor(list(shape), 0, 0)})]
    for path in paths:
        refusal(path)
        assert refused_or_read(path, vitrail.describe) or vitrail.describe(path).parameters == 0


# ---- npz


@LINUX
@pytest.mark.parametrize("version", [1, 2])
def test_an_array_said_to_be_huge_is_refused_in_little_memory(version: int, tmp_path: Path, guard: Guard) -> None:
    for shape in ((10**5, 250_000), (2**62, 4)):
        path = npz(tmp_path / "x.npz", npy(described(shape), bytes(10_000), version=version))
        refused_within(guard("load", path), "damaged", "'embedding/kernel' has")


@LINUX
def test_a_deflated_bomb_is_refused_in_little_memory(tmp_path: Path, guard: Guard) -> None:
    size = 7 * 10**7
    member = npy(described((size,))) + bytes(4 * size)
    refused_within(guard("load", npz(tmp_path / "x.npz", member, method=zipfile.ZIP_DEFLATED)), "a zip bomb does")


@LINUX
def test_a_bomb_that_lies_about_its_size_is_refused_in_little_memory(tmp_path: Path, guard: Guard) -> None:
    member = npy(described((3,))) + bytes(10**8)
    path = npz(tmp_path / "x.npz", member, method=zipfile.ZIP_DEFLATED)
    honest = len(npy(described((3,)))) + 12
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", len(member)), struct.pack("<I", honest)))
    refused_within(guard("describe", path), "damaged")


@LINUX
def test_a_bomb_of_another_compression_is_refused_in_little_memory(tmp_path: Path, guard: Guard) -> None:
    """Python's reader unpacks bzip2 and LZMA without a bound: 4 kB of bzip2 can be gigabytes."""
    packer, packed = bz2.BZ2Compressor(), [b""]
    header = npy(described((3,)))
    packed.append(packer.compress(header))
    packed += [packer.compress(bytes(16 * MIB)) for _ in range(8)]
    packed.append(packer.flush())
    path = npz(tmp_path / "x.npz", b"".join(packed))
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        start = content.rfind(mark)
        content[start + place : start + place + 2] = struct.pack("<H", zipfile.ZIP_BZIP2)
        content[start + place + 14 : start + place + 18] = struct.pack("<I", len(header) + 12)
    path.write_bytes(content)
    assert len(content) < 10_000
    refused_within(guard("load", path))
    npz(path, header + bytes(12), method=zipfile.ZIP_LZMA)
    refusal(path, "compress")


@LINUX
def test_an_array_header_said_to_be_huge_is_not_read(tmp_path: Path, guard: Guard) -> None:
    member = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b" " * (200 * MIB)
    refused_within(guard("load", npz(tmp_path / "x.npz", member, method=zipfile.ZIP_DEFLATED)), "damaged")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0x" + "f" * 5000 + ",)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': 3}",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (3,)}",
        "{'descr': '<f4', 'shape': (3,)}",
        "{'descr': 'nonsense', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': {}, 'fortran_order': False, 'shape': (3,)}",
        "{'descr': [('a', '<f4'), ('a', '<f4')], 'fortran_order': False, 'shape': (3,)}",
        "{'descr': [5], 'fortran_order': False, 'shape': (3,)}",
        "{'descr': ('<f4', (-1,)), 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}" + " " * 20_000,
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3L,)}",
        "__import__('os').system('false')",
        "(" * 9000,
        "[" * 90 + "]" * 90,
        "-" * 9000 + "1",
        "5",
        "'''",
        "\t\n  a\n b",
        "\x00",
        "",
    ],
    ids=lambda text: text[:60],
)
def test_an_array_header_that_is_none_is_refused(header: str, tmp_path: Path) -> None:
    for call in (vitrail.load, vitrail.describe):
        refusal(npz(tmp_path / "x.npz", npy(header, bytes(11))), "is damaged", call=call)


def test_a_pickled_array_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    np.savez(tmp_path / "x.npz", **{"embedding/kernel": np.array([Call(os.mkdir, str(mark))], dtype=object)})  # pyright: ignore[reportArgumentType]
    for call in (vitrail.load, vitrail.describe):
        refusal(tmp_path / "x.npz", "holds more than plain arrays", "a pickle can run anything", "numpy", call=call)
    nested = np.zeros(3, dtype=[("a", "<f4"), ("b", object)])
    np.savez(tmp_path / "x.npz", **{"embedding/kernel": nested})  # pyright: ignore[reportArgumentType]
    refusal(tmp_path / "x.npz", "holds more than plain arrays")
    assert not mark.exists()


def arrays(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "weights.npz") as file:
        return dict(file)


def test_arrays_that_are_no_weights_are_named(folder: Path, tmp_path: Path) -> None:
    whole, path = arrays(folder), tmp_path / "x.npz"
    for descr in ([("a", "<f4")], "<i8", "|b1", "<c8", "<M8[s]", "|S4", "<U1", "|V4", "<f4, <f4", "|V2, |V2"):
        kind = np.dtype(descr)
        np.savez(path, **(whole | {"head/bias": np.zeros(7, dtype=kind)}))  # pyright: ignore[reportArgumentType]
        refusal(path, "expected floating-point weights; 'head/bias' is")
    for descr, size in ((("<f2", (1,)), 14), (("<i1", (2,)), 14), (("<f4", (7,)), 28)):
        np.savez(path, **{name: array for name, array in whole.items() if name != "head/bias"})  # pyright: ignore[reportArgumentType]
        with zipfile.ZipFile(path, "a") as archive:
            shape = (7,) if size == 14 else (1,)
            archive.writestr("head/bias.npy", npy(described(shape, descr), bytes(size)))
        refusal(path)


def test_other_orders_of_axes_and_bytes_are_read_right(folder: Path, tmp_path: Path) -> None:
    whole, path = arrays(folder), tmp_path / "x.npz"
    good = dict(vitrail.load(folder / "weights.npz").state_dict())
    np.savez(path, **{name: np.asfortranarray(array) for name, array in whole.items()})  # pyright: ignore[reportArgumentType]
    same(path, good)
    np.savez(path, **{name: array.astype(">f4") for name, array in whole.items()})  # pyright: ignore[reportArgumentType]
    same(path, good)
    np.savez(path, **{name: np.asfortranarray(array.astype(">f8")) for name, array in whole.items()})  # pyright: ignore[reportArgumentType]
    same(path, good)
    short = {name: array.view(np.uint16).reshape(*array.shape, 2)[..., 1] for name, array in whole.items()}
    flipped = {name: np.asfortranarray(np.ascontiguousarray(array).view("V2")) for name, array in short.items()}
    np.savez(path, **flipped)  # pyright: ignore[reportArgumentType]
    same(path, {name: (value.view(torch.int32) >> 16 << 16).view(torch.float32) for name, value in good.items()})


def test_arrays_of_python_2_are_read_without_a_word(folder: Path, tmp_path: Path) -> None:
    whole, path = arrays(folder), tmp_path / "x.npz"
    members = {}
    for name, array in whole.items():
        sides = "".join(f"{side}L, " for side in array.shape)
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({sides}), }}"
        members[f"{name}.npy"] = npy(header, array.tobytes())
    same(zipped(path, members), dict(vitrail.load(folder / "weights.npz").state_dict()))


def test_members_that_no_npz_has_are_refused(folder: Path, tmp_path: Path) -> None:
    path, good = tmp_path / "x.npz", npy(described((3,)), bytes(12))
    for name in ("../../evil.npy", "/etc/evil.npy", "a/../../b.npy", "C:\\evil.npy"):
        refusal(npz(path, good, name))
        assert sorted(file.name for file in tmp_path.iterdir()) == ["x.npz"]
    refusal(npz(path, good, "evil.exe"), "not an .npz file", "'evil.exe'")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", good)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.npy", good)
    refusal(path, "holds 'a' twice")
    npz(path, good)
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.rfind(mark) + place] |= 1
    path.write_bytes(content)
    refusal(path, "is damaged", "encrypted")


def set_in_directory(path: Path, place: int, value: bytes) -> None:
    """Change a field of the first entry of a zip archive's directory."""
    content = bytearray(path.read_bytes())
    start = content.find(b"PK\x01\x02") + place
    content[start : start + len(value)] = value
    path.write_bytes(content)


@pytest.mark.parametrize("container", ["npz", "pth"])
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (6, b"\xff\xff"),  # version needed
        (8, b"\xff\xff"),  # flags
        (8, b"\x20\x00"),
        (10, b"\x09\x00"),  # compression
        (10, b"\x63\x00"),
        (16, b"\x01\x02\x03\x04"),  # checksum
        (20, b"\xff\xff\xff\xff"),  # sizes
        (24, b"\xff\xff\xff\xff"),
        (28, b"\xff\xff"),  # length of the name
        (30, b"\xff\xff"),  # of the extra field
        (42, b"\xff\xff\xff\xff"),  # where it lies
        (42, b"\x01\x00\x00\x00"),
    ],
    ids=str,
)
def test_a_zip_directory_that_lies_is_refused(container: str, place: int, value: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    made = npz(path, npy(described((3,)), bytes(12))) if container == "npz" else pth(path, {"a": stored(1, (1,), (1,))})
    set_in_directory(made, place, value)
    refusal(path)
    refused_or_read(path, vitrail.describe)


@pytest.mark.parametrize("container", ["npz", "pth"])
def test_an_offset_of_64_bits_that_lies_is_refused(container: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    name = "a.npy" if container == "npz" else "archive/data.pkl"
    info = zipfile.ZipInfo(name)
    data = npy(described((3,)), bytes(12)) if container == "npz" else pickled({})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, data)
        info.extra = struct.pack("<HHQ", 1, 8, 2**64 - 1)
    set_in_directory(path, 42, b"\xff\xff\xff\xff")
    for call in (vitrail.load, vitrail.describe):
        refusal(path, "is damaged", call=call)


@pytest.mark.parametrize("name", ["weights.npz", "timm.safetensors", "zip.pth", "old.pth"])
def test_a_file_cut_anywhere_is_refused(
    name: str, folder: Path, weights: dict[str, Tensor], tmp_path: Path, expected: dict[str, Tensor]
) -> None:
    whole = tmp_path / name
    if name.endswith(".pth"):
        torch.save(weights, whole, _use_new_zipfile_serialization=name == "zip.pth")
        same(whole, expected, **HEADS)
    else:
        whole.write_bytes((folder / name).read_bytes())
    content, asked = whole.read_bytes(), {} if name == "weights.npz" else HEADS
    for part in range(50):
        whole.write_bytes(content[: len(content) * part // 50])
        refusal(whole, **asked)


# ---- pth


def evil_pickles(mark: Path) -> dict[str, bytes]:
    """Every way in which a pickle calls a function."""
    text = str(mark).encode()
    word = b"X" + struct.pack("<I", len(text)) + text
    return {
        "GLOBAL": b"\x80\x02cos\nmkdir\n" + word + b"\x85R.",
        "posix": b"\x80\x02cposix\nmkdir\n" + word + b"\x85R.",
        "getattr": b"\x80\x02c__builtin__\ngetattr\ncos\nsep\nX\x05\x00\x00\x00title\x86R)R.",
        "STACK_GLOBAL": pickle.dumps(Call(os.mkdir, str(mark)), 4),
        "STACK_GLOBAL of memos": b"\x80\x04\x8c\x02os\x94\x8c\x05mkdir\x94h\x00h\x01\x93" + word + b"\x85R.",
        "INST": b"(" + word + b"ios\nmkdir\n.",
        "OBJ": b"(cos\nmkdir\n" + word + b"o.",
        "NEWOBJ": b"\x80\x02cos\nmkdir\n" + word + b"\x85\x81.",
        "NEWOBJ_EX": b"\x80\x04cos\nmkdir\n" + word + b"\x85}\x92.",
        "EXT1": b"\x80\x02\x82\x01)R.",
        "BUILD": b"\x80\x02ctorch.nn.modules.module\nModule\n)\x81}b.",
        "PERSID": b"Pevil\n.",
        "after the end": pickled({}) + b"cos\nmkdir\n" + word + b"\x85R.",
    }


@pytest.mark.parametrize("way", list(evil_pickles(Path("x"))))
@pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
def test_a_pickle_that_would_run_something_does_not(way: str, old: bool, tmp_path: Path) -> None:
    mark, path = tmp_path / "ran", tmp_path / "x.pth"
    evil = evil_pickles(mark)[way]
    if old:
        start = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {}))
        path.write_bytes(start + evil + pickle.dumps([], 2))
    else:
        pth(path, evil)
    for call in (vitrail.load, vitrail.describe):
        message = refusal(path, call=call)
        if "GLOBAL" in way or way in ("INST", "posix"):
            assert re.search(r"needs (os|posix)\.mkdir to be read.*a pickle can run anything.*torch\.save\(", message)
    assert not mark.exists()


def test_every_early_pickle_of_an_old_file_is_looked_at(tmp_path: Path) -> None:
    path, mark = tmp_path / "x.pth", tmp_path / "ran"
    evil = evil_pickles(mark)["GLOBAL"]
    good = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {}, {}, [])]
    for place in range(1, 5):
        path.write_bytes(b"".join([*good[:place], evil, *good[place + 1 :]]))
        refusal(path, "needs os.mkdir")
    assert not mark.exists()


class Bomb(NamedTuple):
    """What torch's restricted reader would call, and with what."""

    function: Callable[..., object]
    arguments: tuple[object, ...]


LIST = [[[0.0] * 300] * 300] * 3000  # hundreds of millions of numbers in a few kilobytes of pickle
BOMBS = {
    "bytearray": Bomb(bytearray, (2**30,)),
    "tensor": Bomb(torch.Tensor, (2**28,)),
    "tensor of lists": Bomb(torch.Tensor, (LIST,)),
    "typed storage": Bomb(torch.storage.TypedStorage, (2**28,)),
    "untyped storage": Bomb(torch.storage.UntypedStorage, (2**30,)),
    "untyped storage of lists": Bomb(torch.storage.UntypedStorage, ([1] * 1000,)),
}


@LINUX
@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_may_not_ask_for_memory(name: str, tmp_path: Path, guard: Guard) -> None:
    made = Call(BOMBS[name].function, *BOMBS[name].arguments)
    document: object = {"blocks.0.attn.qkv.weight": made}
    if "typed storage" in name:
        inner = made if "untyped" not in name else Call(torch.storage.TypedStorage)
        document = {"x": Call(REBUILD, inner, 0, (2**28,), (1,), False, OrderedDict()), "y": made}
    path = pth(tmp_path / "x.pth", document)
    assert path.stat().st_size < 64_000
    refused_within(guard("describe", path), "more than tensors")


@LINUX
def test_a_dictionary_copied_many_times_is_bounded(tmp_path: Path, guard: Guard) -> None:
    """A call of seven bytes copies all that came before: memory grows with the square of the file."""
    count, many, sides = 2000, dict.fromkeys(range(8000), 0), tuple(range(8000))
    entries = b"".join(b"J" + struct.pack("<i", key) + b"N" for key in many)
    build = b"ccollections\nOrderedDict\n)Rh\x00b"
    for name, document in {
        "call": {"x": stored(1, (1,), (1,)), "y": [Call(OrderedDict, many) for _ in range(count)]},
        "size": {"x": stored(1, (1,), (1,)), "y": [Call(torch.Size, sides) for _ in range(count)]},
        "build": b"\x80\x02](}q\x00(" + entries + b"u" + build * count + b"e.",
    }.items():
        path = pth(tmp_path / f"{name}.pth", document)
        assert path.stat().st_size < 200_000
        bounded(guard("describe", path))


@LINUX
@pytest.mark.parametrize("call", ["load", "describe"])
def test_a_tensor_larger_than_its_storage_is_refused(
    call: str, weights: dict[str, Tensor], tmp_path: Path, guard: Guard
) -> None:
    few = {name: stored(1, tuple(value.shape), (0,) * value.ndim) for name, value in weights.items()}
    classes = 2 * 10**7
    head = {"head.weight": stored(1, (classes, 24), (0, 0)), "head.bias": stored(1, (classes,), (0,))}
    path = pth(tmp_path / "x.pth", few | head)
    assert path.stat().st_size < 20_000
    refused_within(guard(call, path, **HEADS))


@LINUX
def test_many_tensors_in_one_storage_are_bounded(weights: dict[str, Tensor], tmp_path: Path, guard: Guard) -> None:
    """Every layer of a deep model is the same few numbers: the file is small, what it makes is not."""
    blocks = [name for name in weights if name.startswith("blocks.0.")]
    document: dict[str, object] = {
        name: stored(10**4, tuple(value.shape), torch.empty(value.shape).stride()) for name, value in weights.items()
    }
    shared = {name: document[name] for name in blocks}
    for index in range(2, 9000):
        document |= {name.replace(".0.", f".{index}.", 1): shared[name] for name in blocks}
    path = pth(tmp_path / "x.pth", document, {"0": bytes(4 * 10**4)})
    size = path.stat().st_size
    refused_within(guard("load", path, **HEADS), room=max(ROOM, 64 * size))


@pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    ("count", "shape", "stride", "offset"),
    [
        (1, (2,), (1,), 0),
        (1, (1,), (1,), 1),
        (1, (1,), (1,), -1),
        (1, (1,), (-1,), 0),
        (1, (-1,), (1,), 0),
        (1, (10**30,), (1,), 0),
        (1, (2**40, 2**40), (2**40, 1), 0),
        (1, (1, 1), (1,), 0),
        (1, ("a",), (1,), 0),
        (1, (1.5,), (1,), 0),
        (10**12, (1,), (1,), 0),
        (10**30, (1,), (1,), 0),
        (-1, (1,), (1,), 0),
        (2, (2,), (1,), 0),
        ("a", (1,), (1,), 0),
        (None, (1,), (1,), 0),
    ],
)
def test_a_tensor_beyond_its_storage_is_refused(
    count: Any, shape: Any, stride: Any, offset: int, old: bool, tmp_path: Path
) -> None:
    document = {"x": stored(count, shape, stride, offset=offset)}
    write = old_pth if old else pth
    path = write(tmp_path / "x.pth", document, {"0": bytes(4)})
    refusal(path)
    refused_or_read(path, vitrail.describe)


def test_numbers_that_an_old_file_does_not_hold_are_not_made_up(tmp_path: Path) -> None:
    path = old_pth(tmp_path / "x.pth", {"x": stored(10_000, (10_000,), (1,))}, {"0": bytes(40_000)}, keys=[])
    refusal(path, "is damaged", call=vitrail.describe)


@LINUX
@pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
def test_a_storage_said_to_be_huge_is_refused_in_little_memory(old: bool, tmp_path: Path, guard: Guard) -> None:
    document = {"x": stored(2**28, (2**28,), (1,))}
    path = (old_pth if old else pth)(tmp_path / "x.pth", document, {"0": bytes(4)})
    refused_within(guard("describe", path), "damaged")


@LINUX
def test_compressed_records_are_refused(tmp_path: Path, guard: Guard) -> None:
    document = {"x": stored(2**25, (2**25,), (1,))}
    path = zipped(tmp_path / "x.pth", records(document, {"0": bytes(2**27)}), zipfile.ZIP_DEFLATED)
    refused_within(guard("describe", path), "compressed")


def two_directories(path: Path, seen: dict[str, bytes], real: dict[str, bytes]) -> Path:
    """A zip archive of which Python reads one directory (the last before its end) and torch another (where it says)."""
    buffers = []
    for members in (real, seen):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        buffers.append(buffer.getvalue())
    first, second = buffers
    end = first.rfind(b"PK\x05\x06")
    path.write_bytes(first[:end] + second[: second.rfind(b"PK\x05\x06")] + first[end:])
    return path


@LINUX
def test_what_is_looked_at_is_what_is_opened(tmp_path: Path, guard: Guard) -> None:
    """Two readers of a zip archive may find two pickles in it."""
    bomb, good = pickled(Call(bytearray, 2**30)), pickled({"x": stored(1, (1,), (1,))})
    others = {name: data for name, data in records(good).items() if not name.endswith(".pkl")}
    path = zipped(tmp_path / "case.pth", others | {"archive/DATA.PKL": bomb, "archive/x/data.pkl": good})
    bounded(guard("describe", path))
    path = two_directories(tmp_path / "two.pth", records(good), records(bomb.ljust(len(good))))
    bounded(guard("describe", path))
    path = zipped(tmp_path / "first.pth", others | {"archive/x/data.pkl": good, "archive/data.pkl": bomb})
    refused_within(guard("describe", path))


def test_a_dictionary_that_holds_itself_ends(tmp_path: Path, guard: Guard) -> None:
    for word in ("model", "state_dict"):
        loop: dict[str, object] = {}
        loop[word] = loop
        path = pth(tmp_path / "x.pth", loop)
        outcome = guard("load", path)
        assert outcome.kind == "CheckpointError", outcome


@LINUX
def test_a_key_that_doubles_at_every_level_ends(tmp_path: Path, guard: Guard) -> None:
    path = pth(tmp_path / "x.pth", b"\x80\x02})q\x00" + b"h\x00\x86q\x00" * 40 + b"Ns.")
    outcome = guard("load", path)
    assert outcome.kind == "CheckpointError", outcome


def test_deep_nests_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    word = b"X\x05\x00\x00\x00model"
    for depth in (100, 5_000):
        refusal(pth(path, b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."))
        refusal(pth(path, b"\x80\x02" + (b"}" + word) * depth + b"N" + b"s" * depth + b"."))
        refusal(pth(path, b"\x80\x02" + b"(" * depth + b"t" * depth + b"."))


class Evil:
    """What leaves a mark where it is made."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_what_lies_beside_weights_is_never_made(
    new: bool, weights: dict[str, Tensor], expected: dict[str, Tensor], tmp_path: Path
) -> None:
    path, mark = tmp_path / "x.pth", tmp_path / "ran"
    for beside in (Evil(mark), [Evil(mark)], {"a": Evil(mark)}, Path("x"), {("a", 1): Evil(mark)}):
        torch.save({"model": weights, "args": beside}, path, _use_new_zipfile_serialization=new)
        same(path, expected, **HEADS)
    module = nn.Module()
    module.evil, module.weight = Evil(mark), nn.Parameter(torch.zeros(3))  # pyright: ignore[reportArgumentType]
    for document in (module, {"model": module}, nn.Linear(2, 3)):
        torch.save(document, path, _use_new_zipfile_serialization=new)
        refusal(path, "tensors such as", "weight")
    torch.save({"model": {"x": Evil(mark)}}, path, _use_new_zipfile_serialization=new)
    refusal(path, "holds no state dict")
    assert not mark.exists()


@LINUX
def test_a_module_that_names_its_parts_again_and_again_is_bounded(tmp_path: Path, guard: Guard) -> None:
    """Each level holds the next one twice: names double, and nothing else does."""
    held = pickled({"_parameters": {}, "_modules": {}})[2:-1]
    module = b"ctorch.nn.modules.module\nModule\n)\x81"
    words = [b"X" + struct.pack("<I", len(word)) + word for word in (b"_parameters", b"_modules", b"a", b"b")]
    level = module + b"}" + words[0] + b"}s" + words[1] + b"}" + words[2] + b"h\x00s" + words[3] + b"h\x00ssbq\x00"
    start = module + held + b"bq\x00"
    for depth in (40, 4_000):
        path = pth(tmp_path / "x.pth", b"\x80\x02" + start + level * depth + b".")
        refused_within(guard("describe", path), "more than tensors")


def test_a_torchscript_archive_is_refused(tmp_path: Path) -> None:
    inside = records({"x": 1}) | {"archive/constants.pkl": pickle.dumps((), 2), "archive/code/a.py": b"pass"}
    refusal(zipped(tmp_path / "x.pth", inside))
    code = pickled({}).replace(b"}", b"c__torch__.torch.nn\nLinear\n)\x81}b")
    refusal(zipped(tmp_path / "x.pth", inside | {"archive/data.pkl": code}))


def test_tensors_of_other_kinds_are_refused_by_name(weights: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    for other, words in (
        (torch.zeros(24).to_sparse(), ("sparse tensors", "to_dense()")),
        (torch.zeros(24, device="meta"), ("without numbers", "after its weights are loaded")),
        (torch.zeros(24, dtype=torch.complex64), ("floating-point", "norm.bias")),
        (torch.zeros(24, dtype=torch.int64), ("floating-point", "norm.bias")),
        (torch.zeros(24, dtype=torch.bool), ("floating-point", "norm.bias")),
        (torch.zeros(24, dtype=torch.uint8), ("floating-point", "norm.bias")),
        (torch.zeros(24, dtype=torch.uint16), ()),
        (torch.zeros(24).to(torch.float8_e5m2), ()),
    ):
        torch.save(weights | {"norm.bias": other}, path)
        refusal(path, *words, **HEADS)


def test_views_of_one_storage_are_read_right(
    weights: dict[str, Tensor], expected: dict[str, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "x.pth"
    flat = torch.cat([value.flatten() for value in weights.values()])
    views, start = {}, 0
    for name, value in weights.items():
        views[name] = flat[start : start + value.numel()].view(value.shape)
        start += value.numel()
    turned = {name: value.mT.contiguous().mT if value.ndim > 1 else value for name, value in weights.items()}
    spread = {name: torch.stack([value, -value], -1)[..., 0] for name, value in weights.items()}
    parameters = {name: nn.Parameter(value) for name, value in weights.items()}
    for document in (views, turned, spread, parameters, OrderedDict(weights), {"epoch": 3, "model": weights}):
        for new in (True, False):
            torch.save(document, path, _use_new_zipfile_serialization=new)
            same(path, expected, **HEADS)


def test_keys_that_are_no_text_are_refused_or_left_out(weights: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    for key in (5, 2.5, None, True, ("a", 1)):
        torch.save(weights | {key: torch.zeros(1)}, path)
        refusal(path, **HEADS)
    torch.save({5: weights}, path)
    refusal(path, **HEADS)
    torch.save([*weights.values()], path)
    refusal(path, "holds no state dict", "a list", **HEADS)
    torch.save(torch.zeros(3), path)
    refusal(path, "holds no state dict", "a Tensor", **HEADS)


# ---- what lies at a path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_without_waiting(tmp_path: Path, guard: Guard) -> None:
    for name in ("x.npz", "model.safetensors"):
        os.mkfifo(tmp_path / name)
        for call in ("load", "describe"):
            outcome = guard(call, tmp_path / name)
            assert outcome.kind == "CheckpointError", outcome
            assert str(tmp_path / name) in outcome.message


def test_a_socket_a_folder_a_loop_and_a_name_too_long_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
        refusal(Path("socket"), call=vitrail.describe)
        refusal(Path("socket"))
    refusal(tmp_path, "is a folder with no weights")
    Path("loop").symlink_to("loop")
    refusal(Path("loop"))
    for length in (300, 5000):
        with pytest.raises(CheckpointError, match="a" * 100):
            vitrail.load("a" * length)
    with pytest.raises(CheckpointError, match=r"there is no file a\\x00b"):
        vitrail.load("a\0b")
    Path("folder.npz").mkdir()
    refusal(Path("folder.npz"))


@LINUX
def test_a_device_without_end_is_refused(guard: Guard) -> None:
    for name in ("/dev/zero", "/dev/urandom", "/dev/null"):
        refused_within(guard("load", Path(name)), name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes((folder / "weights.npz").read_bytes())
    path.chmod(0)
    refusal(path, "cannot read")


@pytest.mark.parametrize("name", ["weights.npz", "timm.safetensors", "x.pth"])
def test_a_file_that_shrinks_while_it_is_read_is_refused(
    name: str, folder: Path, weights: dict[str, Tensor], tmp_path: Path, guard: Guard
) -> None:
    path = tmp_path / name
    if name == "x.pth":
        torch.save(weights, path)
    else:
        path.write_bytes((folder / name).read_bytes())
    outcome = guard("truncated", path, to=5000)
    assert outcome.kind == "CheckpointError", outcome
    assert str(path) in outcome.message


# ---- numbers


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused_in_every_container(
    dtype: torch.dtype, number: float, folder: Path, weights: dict[str, Tensor], tmp_path: Path
) -> None:
    bad = {name: value.to(dtype) for name, value in weights.items()}
    bad["blocks.1.mlp.fc2.weight"][5, 7] = number
    paths = [tmp_path / name for name in ("x.safetensors", "new.pth", "old.pth")]
    save_file(bad, paths[0])
    torch.save(bad, paths[1])
    torch.save(bad, paths[2], _use_new_zipfile_serialization=False)
    for path in paths:
        refusal(path, "'blocks.1.mlp.fc2.weight' holds numbers that are not finite", "earlier checkpoint", **HEADS)
        assert "1 numbers are not finite" in vitrail.describe(path, **HEADS).odd[0]
    whole = {name: torch.from_numpy(array).to(dtype) for name, array in arrays(folder).items()}
    whole["head/kernel"][3, 2] = number
    plain = {
        name: value.view(torch.int16).numpy().view("V2") if dtype is torch.bfloat16 else value.numpy()
        for name, value in whole.items()
    }
    np.savez(tmp_path / "x.npz", **plain)  # pyright: ignore[reportArgumentType]
    refusal(tmp_path / "x.npz", "'head/kernel' holds numbers that are not finite")
    refusal(tmp_path / "x.npz", call=lambda path: vitrail.convert(path, tmp_path / "out", layout="vitrail"))
    assert not (tmp_path / "out").exists()


def test_numbers_too_large_for_the_precision_asked_for_are_refused(weights: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    large = {name: value.double() for name, value in weights.items()}
    large["norm.bias"][3] = 1e300
    save_file(large, path)
    refusal(path, "norm.bias", **HEADS)
    large["norm.bias"][3] = 1e5
    save_file(large, path)
    out = tmp_path / "out"
    refusal(
        path,
        "norm.bias",
        call=lambda path: vitrail.convert(path, out, layout="vitrail", dtype="float16", **HEADS),
    )
    assert not out.exists()


def test_the_name_of_a_file_means_nothing(
    folder: Path, weights: dict[str, Tensor], expected: dict[str, Tensor], tmp_path: Path
) -> None:
    torch.save(weights, tmp_path / "new")
    torch.save(weights, tmp_path / "old", _use_new_zipfile_serialization=False)
    for source in (folder / "timm.safetensors", tmp_path / "new", tmp_path / "old"):
        for name in ("x.npz", "x.pth", "x.safetensors", "model.safetensors", "pytorch_model.bin", "x.index.json", "x"):
            (tmp_path / name).write_bytes(source.read_bytes())
            same(tmp_path / name, expected, **HEADS)
    for name in ("x.pth", "x.safetensors", "x.json"):
        (tmp_path / name).write_bytes((folder / "weights.npz").read_bytes())
        same(tmp_path / name, dict(vitrail.load(folder / "weights.npz").state_dict()))


# ---- an index of shards


@pytest.fixture
def sharded(weights: dict[str, Tensor], tmp_path: Path) -> Path:
    names = sorted(weights)
    places = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(names)}
    for shard in set(places.values()):
        save_file({name: weights[name] for name in names if places[name] == shard}, tmp_path / shard)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 5}, "weight_map": places}))
    return index


def changed(index: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    document = json.loads(index.read_text())
    answer = change(document)
    index.write_text(json.dumps(document if answer is None or not isinstance(answer, dict) else answer))
    return index


def test_good_shards_are_read(sharded: Path, expected: dict[str, Tensor]) -> None:
    same(sharded, expected, **HEADS)
    same(sharded.parent, expected, **HEADS)


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "model.safetensors.index.json", "gone", "a\0b"),
        *("a" * 300, "\ud800", "~/x", "sub"),
    ],
    ids=repr,
)
def test_an_index_that_names_other_places_is_refused(name: str, sharded: Path) -> None:
    (sharded.parent / "sub").mkdir()
    changed(sharded, lambda index: index["weight_map"].update({"norm.bias": name}))
    for call in (vitrail.load, vitrail.describe):
        refusal(sharded, call=call, **HEADS)


@pytest.mark.parametrize(
    "content",
    [
        *("{}", '{"weight_map": 5}', '{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": {"a": 5}}', "{"),
        *('{"weight_map": {"a": null}}', '{"weight_map": {"a": ["b"]}}', '{"weight_map": ' * 5000, '{"a": NaN}'),
        *('{"weight_map": {"a": "b"}} x', '{"weight_map": ' + "[" * 100_000),
    ],
    ids=lambda text: text[:40],
)
def test_an_index_that_is_none_is_refused(content: str, sharded: Path) -> None:
    sharded.write_text(content)
    for call in (vitrail.load, vitrail.describe):
        refusal(sharded, call=call, **HEADS)


def test_an_index_and_its_shards_must_agree(sharded: Path, folder: Path, weights: dict[str, Tensor]) -> None:
    first = sharded.parent / "part-0.safetensors"
    good, index = first.read_bytes(), sharded.read_text()
    for other in (folder / "weights.npz", sharded):
        first.write_bytes(other.read_bytes())
        refusal(sharded, **HEADS)
    first.write_bytes(good[:-5])
    refusal(sharded, **HEADS)
    first.write_bytes(b"")
    refusal(sharded, **HEADS)
    first.unlink()
    refusal(sharded, "'part-0.safetensors', which is not beside it", **HEADS)
    os.mkfifo(first)
    refusal(sharded, **HEADS)
    first.unlink()
    first.write_bytes(good)
    changed(sharded, lambda said: said["weight_map"].update({"more": "part-0.safetensors"}))
    refusal(sharded, "disagree on 1 tensors, such as 'more'", **HEADS)
    sharded.write_text(index)
    changed(sharded, lambda said: said["weight_map"].pop("norm.bias"))
    refusal(sharded, "disagree on 1 tensors, such as 'norm.bias'", **HEADS)
    sharded.write_text(index)
    changed(sharded, lambda said: said["weight_map"].update({"norm.bias": "part-0.safetensors"}))
    save_file(weights, first)
    refusal(sharded, "disagree", **HEADS)


# ---- folders of transformers and of ours


def edited(source: Path, target: Path, name: str, change: object) -> Path:
    """A copy of a folder with one document changed: text, or fields by their path."""
    if not target.exists():
        shutil.copytree(source, target)
    (target / name).unlink(missing_ok=True)
    if (source / name).exists():
        shutil.copyfile(source / name, target / name)
    if isinstance(change, str):
        (target / name).write_text(change)
    else:
        assert isinstance(change, dict)
        document = json.loads((target / name).read_text()) if (target / name).exists() else {}
        for where, value in change.items():
            *outer, last = where.split(".")
            inner = document
            for part in outer:
                inner = inner[part]
            inner[last] = value
        (target / name).write_text(json.dumps(document))
    return target


def signed(run: Path) -> Path:
    """A run folder whose sums are those of its files."""
    files = sorted(file for file in run.iterdir() if file.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (run / "SHA256SUMS").write_text("".join(sums))
    return run


def nest(depth: int, inner: object = 0) -> object:
    for _ in range(depth):
        inner = [inner]
    return inner


ABSURD: list[object] = [
    *(
        -1,
        0,
        10**12,
        10**400,
        0.5,
        1e300,
        float("nan"),
        True,
        None,
        "x",
        [],
        {},
        [[]],
        [1, 2, 3],
        [None, None],
        [-1, 4],
    ),
    *({"height": 12, "width": 12}, nest(20)),
]


@pytest.mark.parametrize(
    "field",
    [
        *("model_type", "num_attention_heads", "image_size", "patch_size", "hidden_act", "hidden_dropout_prob"),
        *("attention_probs_dropout_prob", "layer_norm_eps", "pooler_act", "id2label", "label2id", "hidden_size"),
        *("num_hidden_layers", "architectures", "model_args", "pretrained_cfg", "label_names", "model", "format"),
    ],
)
def test_an_absurd_config_of_transformers_is_refused_or_means_nothing(
    untyped: None, field: str, folder: Path, tmp_path: Path
) -> None:
    for value in ABSURD:
        made = edited(folder / "hf", tmp_path / "hf", "config.json", {field: value})
        refused_or_read(made, vitrail.describe if value == {} else vitrail.load)


@pytest.mark.parametrize("field", ["image_mean", "image_std", "resample", "size", "do_normalize"])
def test_an_absurd_preprocessor_means_nothing(untyped: None, field: str, folder: Path, tmp_path: Path) -> None:
    for value in ABSURD:
        made = edited(folder / "hf", tmp_path / "hf", "preprocessor_config.json", {field: value})
        assert vitrail.load(made).config.classes == 7


@pytest.mark.parametrize("value", [{"0": "cat"}, {str(i): i for i in range(7)}, {"a": "b"}, {"-1": "x"}, ["x"] * 7, 5])
def test_labels_that_do_not_fit_are_left_out(untyped: None, value: object, folder: Path, tmp_path: Path) -> None:
    model = vitrail.load(edited(folder / "hf", tmp_path / "hf", "config.json", {"id2label": value}))
    assert model.card is not None
    assert model.card.class_names is None


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
@pytest.mark.parametrize(
    "content", ["", "[]", "5", "{", "null", "\x00", "[" * 100_000, '{"a":' * 100_000, '{"a": 1e999}x']
)
def test_a_document_that_is_none_is_refused(name: str, content: str, folder: Path, tmp_path: Path) -> None:
    made = edited(folder / "hf", tmp_path / "hf", name, content)
    for call in (vitrail.load, vitrail.describe):
        refusal(made / name, call=lambda path, call=call: call(path.parent))


@LINUX
def test_a_document_of_gigabytes_is_not_read(folder: Path, tmp_path: Path, guard: Guard) -> None:
    for source, name in (("hf", "config.json"), ("run", "config.json"), ("run", "SHA256SUMS"), ("run", "metrics.json")):
        made = edited(folder / source, tmp_path / f"{source}-{name}", name, "{")
        if source == "run" and name != "SHA256SUMS":
            signed(made)
        os.truncate(made / name, 2**28)
        refused_within(guard("load", made), name)


FIELDS = sorted(encode(family("vit").config))


@pytest.mark.parametrize("field", FIELDS)
def test_an_absurd_field_of_a_run_folder_is_refused(untyped: None, field: str, folder: Path, tmp_path: Path) -> None:
    for value in ABSURD:
        made = signed(edited(folder / "run", tmp_path / "run", "config.json", {f"model.{field}": value}))
        refused_or_read(made, vitrail.describe if value == {} else vitrail.load)


HUGE: dict[str, dict[str, object]] = {
    "deep": {"model.depth": 10_000},
    "wide": {"model.width": 10**9, "model.heads": 1, "model.mlp_width": 10**9},
    "large": {"model.image_size": [2**20, 2**20], "model.stem": {"kind": "patches", "patch": 1}},
    "large and wide": {"model.image_size": [2**20, 2**20], "model.width": 10**9, "model.stem.patch": 1},
    "a prime width": {"model.width": 999_999_937, "model.heads": 999_999_936},
    "tables": {"model.depth": 10_000, "model.positions": {"kind": "relative", "at": "layers"}},
    "codes": {"model.image_size": [2**20, 2**20], "model.positions": {"kind": "sinusoidal", "at": "stem"}},
    "stages": {"model": {"kind": "bit", "units": [1] * 2000, "width": 64}},
    "units": {"model": {"kind": "bit", "units": [10_000] * 100, "width": 64}},
}


@LINUX
@pytest.mark.parametrize("what", HUGE)
def test_a_run_folder_that_declares_a_huge_model_is_refused(
    what: str, folder: Path, tmp_path: Path, guard: Guard
) -> None:
    change = dict(HUGE[what])
    if "model" in change:
        rest = {"classes": 7, "image_size": [224, 224], "channels": 3, "head_bias": 0.0, "epsilon": 1e-5}
        change["model"] = {**rest, "filter_epsilon": 1e-10, "checkpointing": False, **change["model"]}  # pyright: ignore[reportGeneralTypeIssues]
    made = edited(folder / "run", tmp_path / "run", "config.json", change)
    if what in ("stages", "units"):
        save_file(
            {"root.weight": torch.zeros(1), "stages.0.0.conv1.weight": torch.zeros(1)}, made / "weights.safetensors"
        )
    refused_within(guard("load", signed(made)), room=128 * MIB)


@pytest.mark.parametrize("kind", [[], {}, None, 5, "patches", "bits", nest(3)], ids=repr)
def test_a_kind_that_is_none_is_refused(untyped: None, kind: object, folder: Path, tmp_path: Path) -> None:
    for where in ("model.kind", "model.stem.kind", "model.positions.kind", "model", "model.stem"):
        made = signed(edited(folder / "run", tmp_path / "run", "config.json", {where: kind}))
        refused_or_read(made)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("classes.json", ["names"]),
        ("metrics.json", ["accuracy"]),
        ("preprocessing.json", ["mean", "deviation", "resize", "crop_share", "interpolation", "antialias", "extra"]),
        ("provenance.json", ["source", "layout", "container", "dialect", "inferred", "left_out", "changes", "extra"]),
    ],
)
def test_an_absurd_card_of_a_run_folder_is_refused(
    untyped: None, name: str, fields: list[str], folder: Path, tmp_path: Path
) -> None:
    for field in fields:
        for value in (-1, 10**400, float("nan"), True, None, "x", [], {"a": [1]}, [None], nest(20)):
            said = {"source": "x", "layout": "google", "container": "npz"} if name == "provenance.json" else {}
            made = signed(edited(folder / "run", tmp_path / "run", name, {**said, field: value}))
            refused_or_read(made)


@pytest.mark.parametrize("layout", ["google", "timm", "hf", "torchvision"])
def test_a_dialect_from_a_run_folder_is_checked_before_it_is_spoken(
    untyped: None, layout: str, folder: Path, tmp_path: Path
) -> None:
    from vitrail.checkpoint.load import LAYOUTS

    usual = dict(LAYOUTS[layout].dialect(family("vit").config))
    suffix = {"google": "out.npz", "timm": "out.pth", "torchvision": "out.pth", "hf": "out"}[layout]
    for name in usual:
        for index, value in enumerate(("nonsense", 5, [], None, "../../x")):
            said = {"source": "x", "layout": layout, "container": "npz", "dialect": usual | {name: value}}
            made = signed(edited(folder / "run", tmp_path / "run", "provenance.json", said))
            out = tmp_path / f"{name}-{index}-{suffix}"
            try:
                vitrail.convert(made, out, layout=layout, lossy=True)
            except CheckpointError:
                continue
            asked = HEADS if layout in ("timm", "torchvision") else {}
            assert vitrail.load(out, **asked).config.classes == 7


@pytest.mark.parametrize("depth", [200, 500, 800, 900, 940, 980, 2000])
def test_documents_nested_deep_are_refused_or_mean_nothing(
    untyped: None, depth: int, folder: Path, tmp_path: Path
) -> None:
    said = {"source": "x", "layout": "google", "container": "npz"}
    deep = "[" * depth + "]" * depth
    for name, fields in {
        "config.json": {"model.width": 0},
        "provenance.json": said | {"dialect": {"a": 0}, "inferred": ["x"]},
        "metrics.json": {"x": 0},
    }.items():
        made = edited(folder / "run", tmp_path / f"run-{name}", name, fields)
        (made / name).write_text((made / name).read_text().replace(": 0", f": {deep}"))
        signed(made)
        out = tmp_path / f"out-{name}"
        for call in (
            vitrail.load,
            vitrail.describe,
            lambda path, out=out: vitrail.convert(path, out, layout="vitrail"),
        ):
            refused_or_read(made, call)


def test_a_run_folder_that_was_changed_is_refused_by_the_file(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "preprocessing.json", "weights.safetensors"):
        made = edited(folder / "run", tmp_path / name, name, (folder / "run" / "config.json").read_text() + " ")
        refusal(made / name, call=lambda path: vitrail.load(path.parent))
    made = edited(folder / "run", tmp_path / "more", "metrics.json", "{}")
    refusal(made / "metrics.json", "is not listed", call=lambda path: vitrail.load(path.parent))
    for text in ("", "x", "0" * 64 + "  ../x", "0" * 64 + "  config.json\n" * 2, "\xff", "\x00"):
        made = edited(folder / "run", tmp_path / "sums", "SHA256SUMS", text)
        for call in (vitrail.load, vitrail.describe):
            refusal(made, "SHA256SUMS", call=call)
    (made / "SHA256SUMS").unlink()
    refusal(made, "SHA256SUMS")


@LINUX
def test_sums_that_never_end_are_refused(folder: Path, tmp_path: Path, guard: Guard) -> None:
    for index, target in enumerate(("/dev/zero", None)):
        made = edited(folder / "run", tmp_path / f"run-{index}", "SHA256SUMS", "")
        (made / "SHA256SUMS").unlink()
        if target:
            (made / "SHA256SUMS").symlink_to(target)
        else:
            os.mkfifo(made / "SHA256SUMS")
        refused_within(guard("load", made), "SHA256SUMS")


# ---- names without end


@LINUX
@pytest.mark.parametrize(
    "names",
    [
        [f"a{index}/embedding/kernel" for index in range(20_000)],
        ["stem.conv.weight", *(f"stages.{index}.blocks.0.conv1.weight" for index in range(12_000))],
        ["x/root_block/conv_root/kernel", *(f"x/block{index}/unit1/a" for index in range(1, 12_000))],
        [f"blocks.{index}.attn.qkv.weight" for index in range(20_000)] + ["patch_embed.proj.weight"],
    ],
    ids=["kernels", "stages", "blocks", "layers"],
)
def test_names_without_end_are_refused_soon(names: list[str], tmp_path: Path, guard: Guard) -> None:
    empty = tensor([1, 1, 1, 1], 0, 4)
    header = {name: {**empty, "data_offsets": [4 * index, 4 * index + 4]} for index, name in enumerate(names)}
    path = safe(tmp_path / "x.safetensors", header, bytes(4 * len(names)))
    refused_within(guard("load", path), room=3 * ROOM)


@LINUX
def test_a_name_that_comes_twice_among_many_is_found_soon(tmp_path: Path, guard: Guard) -> None:
    path, good = tmp_path / "x.npz", npy(described((1,)), bytes(4))
    names = [f"{index:05d}.npy" for index in range(20_000)]
    zipped(path, {name: good for name in names})
    path.write_bytes(path.read_bytes().replace(b"19998.npy", b"19999.npy"))
    refused_within(guard("load", path), "twice", room=3 * ROOM)


def test_a_caller_who_asks_for_nonsense_is_told(untyped: None, folder: Path, tmp_path: Path) -> None:
    path = folder / "weights.npz"
    with pytest.raises(ConfigError, match="layout must be one of"):
        vitrail.convert(path, tmp_path / "x", layout="nonsense")
    with pytest.raises(ConfigError, match="dtype must be one of"):
        vitrail.convert(path, tmp_path / "x", layout="vitrail", dtype="float8")
    with pytest.raises(ConfigError, match="classes must be a whole number"):
        vitrail.load(path, classes=10**12)
    with open_archive(path) as archive:
        assert archive.kind == "npz"
