"""One grammar of hostile input: every container of weights and every source of images, built well and then damaged.

A case is a function of its number. Each is opened in a forked child, whose memory is limited and which an alarm ends:
it must give a clean answer or an error of the library, in words that a terminal can show.
"""

import gzip
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import socket
import struct
import sys
import tarfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from families import family
from PIL import Image
from safetensors.torch import load_file, save_file

import vitrail
from vitrail.errors import VitrailError
from vitrail.files.tables import write_table

Dice = random.Random
MEMORY = 1 << 30  # bytes beyond what the child begins with
SECONDS = 60  # of the clock, on a machine that others use too
LONGEST = 2000  # signs of a message
WEIGHTS = ("npz", "safetensors", "pth", "pth-old", "sharded", "hf", "run")
SOURCES = ("folder", "csv", "tsv", "jsonl", "parquet", "tar", "idx", "idx-gz", "labels", "packed")
TARGETS = {
    "npz": "weights.npz",
    "safetensors": "x.safetensors",
    "pth": "x.pth",
    "pth-old": "x.pth",
    "sharded": "model.safetensors.index.json",
    "csv": "table.csv",
    "tsv": "table.tsv",
    "jsonl": "table.jsonl",
    "tar": "images.tar",
    "labels": "labels.json",
}
TEXTS = (
    *(
        "[/red]x[bold]",
        "\x1b[2J\x1b]0;x\x07",
        "\ud800",
        "\udcff",
        "a" * 300,
        "../../x",
        "/etc/passwd",
        "\0",
        "\u202e",
        "",
    ),
    *("x" * 200_000, "~nobody/x", "{0..9}.tar", "-", "con\r\nsole", "\U0010ffff", "<script>", "$\\frac$", "%s%n"),
)
NUMBERS = (-1, 0, 1, 2**31, 2**53, 2**63, 2**64, 10**30, int("9" * 4299), 1e308, float("nan"), float("inf"), 0.5)
BYTES = (b"\0" * 8, b"\xff" * 8, struct.pack("<q", -1), struct.pack("<Q", 2**63), struct.pack("<Q", 2**40), b"9" * 64)


# ---- good samples, each in a folder of its kind


def make_samples(folder: Path) -> Path:
    """Build one good sample of every kind."""
    for kind in (*WEIGHTS[:5], *SOURCES[:-1]):
        (folder / kind).mkdir(parents=True)
    model = family("vit", image_size=(12, 12))
    vitrail.save(model, folder / "npz" / "weights.npz", layout="google")
    vitrail.save(model, folder / "safetensors" / "x.safetensors", layout="timm", lossy=True)
    weights = load_file(folder / "safetensors" / "x.safetensors")
    torch.save({"model": weights, "epoch": 3}, folder / "pth" / "x.pth")
    torch.save(weights, folder / "pth-old" / "x.pth", _use_new_zipfile_serialization=False)
    places = {name: f"{number % 2}.safetensors" for number, name in enumerate(sorted(weights))}
    for shard in set(places.values()):
        save_file({name: weights[name] for name in weights if places[name] == shard}, folder / "sharded" / shard)
    (folder / "sharded" / TARGETS["sharded"]).write_text(json.dumps({"weight_map": places}))
    vitrail.save(model, folder / "hf", layout="hf", lossy=True)
    vitrail.convert(folder / "npz" / "weights.npz", folder / "run", layout="vitrail")
    (folder / "run" / "classes.json").write_text(json.dumps({"names": [f"class {number}" for number in range(7)]}))
    sign(folder / "run")
    _make_sources(folder)
    vitrail.pack_data(folder / "folder", folder / "packed", image_size=8)
    return folder


def _make_sources(folder: Path) -> None:
    pictures = [_picture(number) for number in range(6)]
    names = [f"{'cat' if number % 2 else 'dog'}/{number}.png" for number in range(6)]
    for kind in ("folder", "csv", "tsv", "jsonl", "labels"):
        for name, data in zip(names, pictures, strict=True):
            (folder / kind / name).parent.mkdir(exist_ok=True)
            (folder / kind / name).write_bytes(data)
    rows = [(name, name.split("/")[0], "train" if number < 4 else "test") for number, name in enumerate(names)]
    for kind, mark in (("csv", ","), ("tsv", "\t")):
        lines = [mark.join(row) for row in (("path", "label", "split"), *rows)]
        (folder / kind / TARGETS[kind]).write_text("\n".join(lines) + "\n")
    (folder / "labels" / TARGETS["labels"]).write_text(json.dumps({name: [0, 3] for name in names}))
    lines = [json.dumps(dict(zip(("path", "label", "split"), row, strict=True))) for row in rows]
    (folder / "jsonl" / TARGETS["jsonl"]).write_text("\n".join(lines) + "\n")
    write_table(folder / "parquet" / "train.parquet", {"image": pictures, "label": ["cat", "dog"] * 3})
    with tarfile.open(folder / "tar" / "images.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for number, data in enumerate(pictures):
            named = f"{'long' * 40 if number == 3 else ''}{number}"
            label = json.dumps({"label": number % 2}).encode() if number == 1 else str(number % 2).encode()
            for name, body in ((f"{named}.png", data), (f"{named}.{'json' if number == 1 else 'cls'}", label)):
                info = tarfile.TarInfo(name)
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))
    for kind, opened in (("idx", open), ("idx-gz", gzip.open)):
        for name, shape in (("images-idx3", (6, 5, 7)), ("labels-idx1", (6,))):
            body = bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape)
            body += (np.arange(np.prod(shape)) % 2).astype(np.uint8).tobytes()
            with opened(folder / kind / f"train-{name}-ubyte{'.gz' * (kind == 'idx-gz')}", "wb") as file:
                file.write(body)


def _picture(number: int) -> bytes:
    generator = np.random.RandomState(number)
    out = io.BytesIO()
    Image.fromarray(generator.randint(0, 256, (9 + number, 8, 3)).astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


def sign(folder: Path) -> None:
    """Write the checksums of a folder as they are now: damage that its maker signed."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (folder / "SHA256SUMS").write_text("".join(lines))


# ---- damage


def _spot(data: bytes, dice: Dice) -> int:
    """Choose a place: often near the beginning or the end, where headers are."""
    near = dice.choice((64, 600, len(data)))
    place = dice.randrange(max(min(near, len(data)), 1))
    return place if dice.random() < 0.6 else max(len(data) - 1 - place, 0)


def _flip(data: bytes, dice: Dice) -> bytes:
    place = _spot(data, dice)
    return data[:place] + bytes([dice.randrange(256)]) + data[place + 1 :]


def _cut(data: bytes, dice: Dice) -> bytes:
    return data[: _spot(data, dice)]


def _insert(data: bytes, dice: Dice) -> bytes:
    place = _spot(data, dice)
    return data[:place] + dice.choice(BYTES) * dice.choice((1, 1, 100)) + data[place:]


def _overwrite(data: bytes, dice: Dice) -> bytes:
    place, new = _spot(data, dice), dice.choice(BYTES)
    return data[:place] + new + data[place + len(new) :]


def _repeat(data: bytes, dice: Dice) -> bytes:
    start, stop = sorted((_spot(data, dice), _spot(data, dice)))
    return data[:stop] + data[start:stop] * dice.choice((1, 3, 50)) + data[stop:] if stop - start < 10_000 else data * 2


def _digits(data: bytes, dice: Dice) -> bytes:
    """Put another number in the place of one that is written in digits, as headers of tar, npy and JSON are."""
    places = [place for place in range(len(data[:5000])) if data[place : place + 1].isdigit()]
    if not places:
        return _flip(data, dice)
    place = dice.choice(places)
    new = dice.choice((b"9", b"9" * 11, b"7" * 20, b"-1", b"1" * 5000, b"0", b"1e999"))
    return data[:place] + new + data[place + (len(new) if dice.random() < 0.5 and len(new) < 30 else 1) :]


def _strange(dice: Dice) -> Any:
    deep: Any = []
    for _ in range(dice.choice((3, 90, 900))):
        deep = [deep]
    return dice.choice((*TEXTS, *NUMBERS, None, True, [], {}, deep, [[1]] * 1000, {"a" * 500: 1}))


def _alter(node: Any, dice: Dice) -> Any:
    """Put something strange somewhere into a document: a value, a name, or one more."""
    if isinstance(node, dict) and node and dice.random() < 0.9:
        name = dice.choice(sorted(node))
        if dice.random() < 0.2:
            return {**node, str(dice.choice(TEXTS)): node[name]}
        return {**node, name: _alter(node[name], dice) if dice.random() < 0.7 else _strange(dice)}
    if isinstance(node, list) and node and dice.random() < 0.9:
        place = dice.randrange(len(node))
        return [*node[:place], _alter(node[place], dice), *node[place + 1 :]]
    return _strange(dice)


def _json(data: bytes, dice: Dice) -> bytes:
    """Alter a JSON document, the header of a safetensors file, or a line of JSON; nest it without end now and then."""
    if dice.random() < 0.05:
        return dice.choice((b"[" * 100_000, b'{"a":' * 100_000, b"[" + b"[]," * 3_000_000 + b"1]"))
    try:
        if data[8:9] == b"{" and data[:1] != b"{":
            length = int.from_bytes(data[:8], "little")
            new = json.dumps(_alter(json.loads(data[8 : 8 + length]), dice)).encode()
            return len(new).to_bytes(8, "little") + new + data[8 + length :]
        if b"\n" in data.strip() and data[:1] == b"{":
            lines = data.splitlines()
            place = dice.randrange(len(lines))
            lines[place] = json.dumps(_alter(json.loads(lines[place]), dice)).encode()
            return b"\n".join(lines)
        return json.dumps(_alter(json.loads(data), dice)).encode()
    except (ValueError, OverflowError, RecursionError):
        return _flip(data, dice)


def _cell(data: bytes, dice: Dice) -> bytes:
    """Put a strange text into a table, in its header too; or very many of them."""
    text = str(dice.choice((*TEXTS, '"', '"' + "x" * 140_000))).encode("utf-8", "surrogatepass")
    if dice.random() < 0.1:
        return data.replace(b"label", b"label," + b"x," * 60_000, 1)
    words = data.replace(b"\t", b",").replace(b"\n", b",").split(b",")
    return data.replace(dice.choice(words) or b",", text, dice.choice((1, -1)))


DAMAGES: tuple[Callable[[bytes, Dice], bytes], ...]
DAMAGES = (_flip, _flip, _cut, _insert, _overwrite, _overwrite, _repeat, _digits, _digits)


def _replace(path: Path, dice: Dice) -> None:
    """Put something that is no plain file in its place, or a file of holes."""
    size = path.stat().st_size
    kind = dice.choice(("pipe", "device", "folder", "socket", "loop", "holes", "holes", "empty", "gone", "random"))
    if kind == "holes":
        os.truncate(path, dice.choice((size + 4096, 1 << 29, 1 << 32, 1 << 40)))
        return
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to(dice.choice(("/dev/zero", "/dev/full", "/proc/self/pagemap", "/proc/self/status")))
        case "folder":
            path.mkdir()
        case "socket":
            _socket(path)
        case "loop":
            path.symlink_to(path.name)
        case "empty":
            path.touch()
        case "random":
            path.write_bytes(b"\0" * 8 + dice.randbytes(600))


def _socket(path: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # its name may have but 108 signs
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(path.name)
    finally:
        os.chdir(before)


def _rename(path: Path, dice: Dice) -> None:
    name = dice.choice(("[bold].png", "\x1b[2Jx.png", "\udcff.png", "a" * 251 + ".png", "x\ny.png", "$\\frac$.png"))
    path.rename(path.with_name(name))


# ---- cases


class Case(NamedTuple):
    """What to open, and whether it is weights or images."""

    number: int
    kind: str
    path: Path


def make_case(number: int, samples: Path, folder: Path) -> Case:
    """Make the case of a number: a good sample, damaged in one to three ways."""
    dice = Dice(number)
    kind = dice.choice((*WEIGHTS, *SOURCES))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(samples / kind, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    main = folder / TARGETS[kind] if kind in TARGETS else None
    for _ in range(dice.choice((1, 1, 2, 3))):
        path = main if main and dice.random() < 0.7 else dice.choice(files)
        if not path.is_file() or path.is_symlink():
            continue
        if dice.random() < 0.12:
            _replace(path, dice)
        elif path != main and kind in ("folder", "csv") and dice.random() < 0.2:
            _rename(path, dice)
        elif path.stat().st_size < 1 << 28:
            ways = DAMAGES
            if path.suffix in (".json", ".jsonl", ".safetensors"):
                ways = (*DAMAGES, *(_json,) * 9)
            elif path.suffix in (".csv", ".tsv"):
                ways = (*DAMAGES, *(_cell,) * 9)
            path.write_bytes(dice.choice(ways)(path.read_bytes(), dice))
    signed = kind in ("run", "packed") and dice.random() < 0.7
    if signed and all(
        path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 28 for path in folder.iterdir()
    ):
        sign(folder)
    return Case(number, kind, main or folder)


def open_case(case: Case, model: Any) -> None:
    """Send a case through every door that takes its like, and look at what it says."""
    doors: dict[str, Callable[[], object]] = {
        "check_data": lambda: vitrail.check_data(case.path, unlabeled=bool(case.number % 2)),
        "predict": lambda: vitrail.predict(model, case.path, workers=0),
    }
    if case.kind == "labels":
        asked: dict[str, Any] = {"labels": case.path, "workers": 0, "fresh": True, "bad_image_limit": 0.9}
        doors = {"evaluate": lambda: vitrail.evaluate(model, case.path.parent, **asked)}
    if case.kind in WEIGHTS:
        asked = {} if case.kind in ("npz", "hf", "run") else {"heads": 3}
        doors = {
            "load": lambda: vitrail.load(case.path, **asked),
            "describe": lambda: vitrail.describe(case.path, **asked),
        }
    for door, call in doors.items():
        try:
            found = call()
            said = "" if door == "load" else f"{found}"
            json.dumps(found.document() if hasattr(found, "document") else None)  # pyright: ignore
        except VitrailError as error:
            said = str(error)
            assert len(said) < LONGEST, f"{door}: a message of {len(said):,} signs"
            assert "\n" not in said, f"{door}: a message of several lines, {said[:200]!r}"
        assert said.replace("\n", "").isprintable(), f"{door}: {said[:200]!r}"


# ---- judging, in a child


def judge(numbers: Sequence[int], samples: Path, folder: Path) -> dict[int, str]:
    """Open cases in forked children, and give what is wrong with those that neither answer nor refuse."""
    model = family("vit", image_size=(12, 12)).eval()
    wrong: dict[int, str] = {}
    waiting = list(numbers)
    while waiting:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                _run_child(waiting, samples, folder, model, writing)
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8", errors="replace") as pipe:
            lines = [json.loads(line) for line in pipe]
        _, status = os.waitpid(child, 0)
        wrong |= {number: said for number, said in lines if said not in ("begun", "fine")}
        begun = [number for number, said in lines if said == "begun"]
        ended = {number for number, said in lines if said != "begun"}
        if begun and begun[-1] not in ended:
            killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            wrong[begun[-1]] = f"ended by {signal.Signals(killed).name}" if killed else "ended without a word"
        assert begun, f"the child ended with {status} before its first case"
        waiting = waiting[len(begun) :]
    return wrong


def limit_memory(room: int) -> None:
    """Let this process take so many bytes beyond what it has."""
    with open("/proc/self/status") as file:
        held = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (held + room, held + room))


def _run_child(numbers: Sequence[int], samples: Path, folder: Path, model: Any, pipe: int) -> None:
    """Open one case after the other; what it says of each is written as it goes, since any may be the last."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it hangs in
    torch.set_num_threads(1)
    limit_memory(MEMORY)
    for number in numbers:
        case = make_case(number, samples, folder)
        os.write(pipe, json.dumps([number, "begun"]).encode() + b"\n")
        signal.alarm(SECONDS)
        said = "fine"
        try:
            open_case(case, model)
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{case.kind}: {type(error).__name__}: {str(error)[:300]} ({where.filename}:{where.lineno})"
        signal.alarm(0)
        os.write(pipe, json.dumps([number, said]).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    import tempfile

    first, last = (int(word) for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as place:
        made = make_samples(Path(place) / "samples")
        found = judge(range(first, last), made, Path(place) / "case")
    for number, said in found.items():
        sys.stdout.write(f"{number} {said}\n")
    sys.stdout.write(f"{last - first} cases, {len(found)} wrong\n")
