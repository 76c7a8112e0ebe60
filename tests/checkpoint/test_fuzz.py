"""Thousands of damaged files: each gives a model of finite numbers or a refusal, soon and in little memory."""

import hashlib
import io
import json
import pickletools
import random
import shutil
import signal
import struct
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from families import family
from safetensors.torch import load_file, save_file

import vitrail
from vitrail.errors import CheckpointError, ConfigError

MIB = 2**20
ROOM = 200 * MIB
PATIENCE = 5.0  # seconds
SIGNED, UNSIGNED = "run-signed", "run-unsigned"
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
STRANGE: list[Any] = [
    *(-1, 0, 1, 3, 2**31, 2**53, 10**30, 0.5, 1e300, float("nan"), float("inf"), True, False, None, "", "x", [], {}),
    *([1, 2, 3], [[]], {"a": 1}, "\ud800", "../x", [0], [-1, 2], [2**40, 2**40], "F32", "I64", "vit", "bit", "gelu"),
]


class Sample(NamedTuple):
    """A good checkpoint: what to load, with what, and which of its files may be damaged."""

    target: str
    asked: dict[str, Any]
    files: tuple[str, ...]


HEADS: dict[str, Any] = {"heads": 3}
SAMPLES = {
    "npz": Sample("weights.npz", {}, ("weights.npz",)),
    "npz-deflated": Sample("weights.npz", {}, ("weights.npz",)),
    "safetensors": Sample("x.safetensors", HEADS, ("x.safetensors",)),
    "sharded": Sample(
        "model.safetensors.index.json", HEADS, ("model.safetensors.index.json", "0.safetensors", "1.safetensors")
    ),
    "pth": Sample("x.pth", HEADS, ("x.pth",)),
    "pth-old": Sample("x.pth", HEADS, ("x.pth",)),
    "hf": Sample(".", {}, ("config.json", "config.json", "preprocessor_config.json", "model.safetensors")),
    UNSIGNED: Sample(".", {}, ("config.json", "SHA256SUMS", "preprocessing.json", "weights.safetensors")),
    SIGNED: Sample(
        *(".", {}),
        ("config.json", "config.json", "provenance.json", "metrics.json", "classes.json", "weights.safetensors"),
    ),
}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every sample in a folder of its name."""
    folder = tmp_path_factory.mktemp("samples")
    model = family("vit", image_size=(12, 12))
    for name in SAMPLES:
        if not name.startswith(("hf", "run")):
            (folder / name).mkdir()
    vitrail.save(model, folder / "npz" / "weights.npz", layout="google")
    with np.load(folder / "npz" / "weights.npz") as arrays:
        np.savez_compressed(folder / "npz-deflated" / "weights.npz", **arrays)
    vitrail.save(model, folder / "safetensors" / "x.safetensors", layout="timm", lossy=True)
    weights = load_file(folder / "safetensors" / "x.safetensors")
    torch.save(weights, folder / "pth" / "x.pth")
    torch.save({"epoch": 3, "model": weights}, folder / "pth-old" / "x.pth", _use_new_zipfile_serialization=False)
    places = {name: f"{index % 2}.safetensors" for index, name in enumerate(sorted(weights))}
    for shard in ("0.safetensors", "1.safetensors"):
        held = {name: weights[name] for name, place in places.items() if place == shard}
        save_file(held, folder / "sharded" / shard)
    (folder / "sharded" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    vitrail.save(model, folder / "hf", layout="hf", lossy=True)
    names, metrics = [f"class {index}" for index in range(7)], {"accuracy": 0.5}
    vitrail.convert(folder / "npz" / "weights.npz", folder / SIGNED, layout="vitrail")
    (folder / SIGNED / "classes.json").write_text(json.dumps({"names": names}))
    (folder / SIGNED / "metrics.json").write_text(json.dumps(metrics))
    sign(folder / SIGNED)
    shutil.copytree(folder / SIGNED, folder / UNSIGNED)
    for name, sample in SAMPLES.items():
        assert finite(vitrail.load(folder / name / sample.target, **sample.asked))
    return folder


def sign(run: Path) -> None:
    files = sorted(file for file in run.iterdir() if file.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (run / "SHA256SUMS").write_text("".join(lines))


def finite(model: torch.nn.Module) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in model.state_dict().values())


# ---- mutations: bytes to bytes, by a generator of their own

Dice = random.Random


def spot(content: bytes, dice: Dice) -> int:
    """A place in a file, as often near its ends, where its structure lies, as anywhere."""
    near = min(len(content), 4000)
    place = (dice.randrange(near), len(content) - 1 - dice.randrange(near), dice.randrange(len(content)))
    return place[dice.randrange(3)]


def flip(content: bytes, dice: Dice) -> bytes:
    changed = bytearray(content)
    for _ in range(dice.choice((1, 1, 2, 8, 64))):
        changed[spot(content, dice)] ^= 1 << dice.randrange(8)
    return bytes(changed)


def overwrite(content: bytes, dice: Dice) -> bytes:
    start, length = spot(content, dice), dice.choice((1, 2, 4, 8, 40, 400))
    new = dice.choice((bytes(length), b"\xff" * length, dice.randbytes(length), b"9" * length))
    return content[:start] + new[: len(content) - start] + content[start + length :]


def cut(content: bytes, dice: Dice) -> bytes:
    start = spot(content, dice)
    return content[:start] if dice.random() < 0.5 else content[:start] + content[start + dice.randrange(1, 200) :]


def insert(content: bytes, dice: Dice) -> bytes:
    start = spot(content, dice)
    return content[:start] + dice.randbytes(dice.choice((1, 3, 8, 100))) + content[start:]


def swap(content: bytes, dice: Dice) -> bytes:
    length, changed = dice.choice((1, 4, 16, 64)), bytearray(content)
    one, other = spot(content, dice), spot(content, dice)
    changed[one : one + length], changed[other : other + length] = (
        content[other : other + length],
        content[one : one + length],
    )
    return bytes(changed)


def replace_number(content: bytes, dice: Dice) -> bytes:
    """Put a striking number where four or eight bytes are."""
    start = spot(content, dice)
    code, numbers = dice.choice((("<I", (0, 1, 2**31, 2**32 - 1)), ("<Q", (0, 2**40, 2**63, 2**64 - 1))))
    new = struct.pack(code, dice.choice(numbers))
    return content[:start] + new + content[start + len(new) :]


def alter_json(content: bytes, dice: Dice) -> bytes:
    """Change, remove, repeat or rename something inside a document."""
    document = json.loads(content)
    places: list[tuple[Any, Any]] = []
    waiting: list[Any] = [document]
    while waiting:
        inner = waiting.pop()
        items = list(inner.items()) if isinstance(inner, dict) else list(enumerate(inner))
        places += [(inner, key) for key, _ in items]
        waiting += [value for _, value in items if isinstance(value, dict | list)]
    if not places:
        return json.dumps(dice.choice(STRANGE)).encode()
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        inner, key = dice.choice(places)
        present = key in inner if isinstance(inner, dict) else key < len(inner)
        way = dice.randrange(5)
        if not present or way < 2:
            if isinstance(inner, dict) or present:
                inner[key] = dice.choice(STRANGE)
        elif way == 2:
            del inner[key]
        elif way == 3 and isinstance(inner[key], int | float) and not isinstance(inner[key], bool):
            inner[key] = inner[key] * dice.choice((-1, 2, 1000, 2**32)) + dice.choice((-1, 0, 1))
        else:
            other, place = dice.choice(places)
            if (isinstance(other, dict) and place in other) or (isinstance(other, list) and place < len(other)):
                inner[key] = json.loads(json.dumps(other[place]))
    return json.dumps(document).encode()


def alter_header(content: bytes, dice: Dice) -> bytes:
    """Change the header of a safetensors file, and say its new length."""
    length = int.from_bytes(content[:8], "little")
    header = alter_json(content[8 : 8 + length], dice)
    return struct.pack("<Q", len(header)) + header + content[8 + length :]


def alter_directory(content: bytes, dice: Dice) -> bytes:
    """Change a field of a zip archive's directory, of a member's own header, or of its end."""
    mark, size = dice.choice(((b"PK\x01\x02", 46), (b"PK\x03\x04", 30), (b"PK\x05\x06", 22)))
    starts = [start for start in range(len(content)) if content.startswith(mark, start)]
    changed, start = bytearray(content), dice.choice(starts)
    place = start + 4 + 2 * dice.randrange((size - 4) // 2)
    new = dice.choice((b"\xff\xff", b"\x00\x00", b"\x01\x00", b"\x63\x00", b"\xff\xff\xff\xff", dice.randbytes(2)))
    changed[place : place + len(new)] = new
    return bytes(changed)


def alter_member(content: bytes, dice: Dice) -> bytes:
    """Change what is in a zip archive, so that the archive itself is whole."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(info.filename, info.compress_type, archive.read(info)) for info in archive.infolist()]
    index = dice.randrange(len(members))
    if dice.random() < 0.7:
        index = next((place for place, member in enumerate(members) if member[0].endswith(".pkl")), index)
    name, method, data = members[index]
    way = dice.randrange(6)
    if way == 0:
        members[index] = (dice.choice(members)[0][:-5] + name[-5:], method, data)
    elif way == 1:
        del members[index]
    elif name.endswith(".npy"):
        members[index] = (name, method, alter_array(data, dice))
    else:
        members[index] = (name, method, (alter_pickle if name.endswith(".pkl") else flip)(data, dice))
    buffer = io.BytesIO()
    seen: set[str] = set()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, method, data in members:
            if name not in seen:
                archive.writestr(zipfile.ZipInfo(name), data, method)  # of no time, so that it is the same again
            seen.add(name)
    return buffer.getvalue()


def alter_array(content: bytes, dice: Dice) -> bytes:
    """Change the header of an array."""
    length = struct.unpack("<H", content[8:10])[0]
    header = content[10 : 10 + length].decode("latin1").rstrip()
    old, new = dice.choice(
        (
            *(("<f4", ">f4"), ("<f4", "<f8"), ("<f4", "|O"), ("<f4", "<i4"), ("<f4", "|V2"), ("<f4", "<f2")),
            *(
                ("False", "True"),
                ("(", "(9, "),
                ("(", "(-"),
                (")", ""),
                ("{", ""),
                (", }", "}"),
                ("24", "0"),
                ("2", "2L"),
            ),
            *(("shape", "shade"), ("'", ""), ("24", "9" * 30), ("'<f4'", "[('a', '<f4')]"), ("'<f4'", "('<f2', (2,))")),
        )
    )
    changed = header.replace(old, new, dice.choice((1, -1))).encode("latin1") + b"\n"
    return content[:8] + struct.pack("<H", len(changed)) + changed + content[10 + length :]


def alter_pickle(content: bytes, dice: Dice) -> bytes:
    """Change an instruction of a pickle: drop it, repeat it, swap it, or put another in its place."""
    starts = [place for _, _, place in pickletools.genops(content) if place is not None] + [len(content)]
    parts = [content[start:end] for start, end in pairwise(starts)]
    for _ in range(dice.choice((1, 1, 1, 3))):
        one, other = dice.randrange(len(parts)), dice.randrange(len(parts))
        way = dice.randrange(6)
        if way == 0:
            parts[one] = b""
        elif way == 1:
            parts[one] *= 2
        elif way == 2:
            parts[one], parts[other] = parts[other], parts[one]
        elif way == 3:
            parts[one] = parts[other]
        elif way == 4:
            parts[one] = dice.choice(pickletools.opcodes).code.encode("latin1") + parts[one][1:]
        else:
            parts[one] = dice.choice(
                [
                    *(
                        b"N",
                        b"K\x00",
                        b"J\xff\xff\xff\xff",
                        b"\x8a\x08" + b"\xff" * 7 + b"\x7f",
                        b")",
                        b"]",
                        b"}",
                        b"\x88",
                    ),
                    *(b"cos\nsystem\n", b"c__builtin__\nbytearray\n", b"ctorch\nFloatStorage\n", b"G" + b"\x7f" * 8),
                ]
            )
    return b"".join(parts)


def alter_old_pickle(content: bytes, dice: Dice) -> bytes:
    """Change an instruction of the fourth pickle of a file of before torch 1.6, which holds the structure."""
    stream = io.BytesIO(content)
    places = [0]
    for _ in range(5):
        for _ in pickletools.genops(stream):
            pass
        places.append(stream.tell())
    which = dice.choice((2, 3, 3, 3, 4))
    inner = alter_pickle(content[places[which] : places[which + 1]], dice)
    return content[: places[which]] + inner + content[places[which + 1] :]


Mutation = Callable[[bytes, Dice], bytes]
ANY: tuple[Mutation, ...] = (flip, overwrite, cut, insert, swap, replace_number)
ZIP: tuple[Mutation, ...] = (alter_directory, alter_member, alter_member, alter_member)


def mutations_of(sample: str, file: str) -> tuple[Mutation, ...]:
    if file.endswith(".json"):
        return (*ANY, *(alter_json,) * 12)
    if file.endswith(".safetensors"):
        return (*ANY, *(alter_header,) * 4)
    if sample == "pth-old":
        return (*ANY, *(alter_old_pickle,) * 5)
    return (*ANY, *ZIP) if sample.startswith(("npz", "pth")) else ANY


class Mutant(NamedTuple):
    sample: str
    file: str
    mutation: str
    content: bytes


def mutant(seed: int, samples: Path) -> Mutant:
    """The damaged file that belongs to a seed."""
    dice = Dice(seed)
    name = list(SAMPLES)[seed % len(SAMPLES)]
    file = dice.choice(SAMPLES[name].files)
    mutation = dice.choice(mutations_of(name, file))
    return Mutant(name, file, mutation.__name__, mutation((samples / name / file).read_bytes(), dice))


# ---- what becomes of them


def status(field: str) -> int:
    """Bytes of memory: now (VmRSS) or at most since the last reset (VmHWM); nothing where the system does not say."""
    if not RESET.exists():
        return 0
    return next(int(line.split()[1]) * 1024 for line in STATUS.read_text().splitlines() if line.startswith(field))


def too_slow(*_: object) -> None:
    raise TimeoutError(f"over {PATIENCE} s of the processor")


@pytest.fixture
def alarm(untyped: None) -> Iterator[None]:
    old = signal.signal(signal.SIGPROF, too_slow)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, old)


def fate(call: Callable[[], object]) -> str:
    """How a call ends: loaded, refused, or what is wrong with it."""
    if RESET.exists():
        RESET.write_text("5")
    before = status("VmRSS")
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        model = call()
    except (CheckpointError, ConfigError):
        ended = "refused"
    except Exception as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {str(error)[:200]} (in {last.name}, {Path(last.filename).name}:{last.lineno})"
    else:
        ended = "loaded"
        if isinstance(model, torch.nn.Module) and not finite(model):
            return "numbers that are not finite were loaded"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown = status("VmHWM") - before
    return f"memory grew by {grown // MIB} MiB" if grown > ROOM else ended


def fuzz(seeds: range, samples: Path, folder: Path) -> Counter[str]:
    """Load every mutant, describe some and convert some; fail with the seeds of those that end in any other way."""
    fates: Counter[str] = Counter()
    failures: list[str] = []
    for seed in seeds:
        made = mutant(seed, samples)
        place = folder / made.sample
        if not place.exists():
            shutil.copytree(samples / made.sample, place)
        (place / made.file).write_bytes(made.content)
        if made.sample == SIGNED:
            sign(place)
        sample = SAMPLES[made.sample]
        target, out = place / sample.target, folder / "out"
        calls: dict[str, Callable[[], object]] = {"load": partial(vitrail.load, target, **sample.asked)}
        if seed % 5 == 1:
            calls["describe"] = partial(vitrail.describe, target, **sample.asked)
        if seed % 7 == 1:
            layout, suffix = (("google", ".npz"), ("timm", ".pth"), ("hf", ""))[seed % 3]
            asked = {"layout": layout, "lossy": True, "overwrite": True, **sample.asked}
            calls["convert"] = partial(vitrail.convert, target, out.with_suffix(suffix), **asked)
        for name, call in calls.items():
            ended = fate(call)
            fates[ended if ended in ("loaded", "refused") else "failed"] += 1
            if ended not in ("loaded", "refused"):
                failures.append(f"seed {seed}: {name} of {made.sample}/{made.file} after {made.mutation}: {ended}")
        (place / made.file).write_bytes((samples / made.sample / made.file).read_bytes())
    assert not failures, f"{len(failures)} of {fates.total()} calls failed:\n" + "\n".join(failures[:40])
    return fates


def test_a_mutant_is_the_same_every_time(samples: Path) -> None:
    for seed in range(40):
        assert mutant(seed, samples) == mutant(seed, samples)


def test_damaged_files_are_refused_or_give_finite_models(alarm: None, samples: Path, tmp_path: Path) -> None:
    fates = fuzz(range(100), samples, tmp_path)
    assert min(fates["loaded"], fates["refused"]) > 15  # both ways are tried


@pytest.mark.slow
def test_thousands_of_damaged_files_are_refused_or_give_finite_models(
    alarm: None, samples: Path, tmp_path: Path
) -> None:
    fates = fuzz(range(1000, 4600), samples, tmp_path)
    assert fates.total() > 3600
    assert min(fates["loaded"], fates["refused"]) > 400
