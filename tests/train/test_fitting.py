"""How many images go through at once: as memory allows, in equal parts of the batch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from vitrail.config import parse
from vitrail.config.recipe import SGD, Adam, Average, Training
from vitrail.ops.memory import Step, peak_memory
from vitrail.train import fitting
from vitrail.train.fitting import fit_micro_batch, free_memory

CPU = torch.device("cpu")
MODEL = parse("ViT-S/16", {"image_size": (64, 96), "classes": 7})
GIB = 1 << 30


def fitted(monkeypatch: pytest.MonkeyPatch, free: float, share: int, precision: str = "float32", **changes: Any) -> int:
    monkeypatch.setattr(fitting, "free_memory", lambda device: int(free))
    given = {"steps": 5, "optimiser": Adam()} | changes
    return fit_micro_batch(MODEL, Training(**given), share, CPU, precision)


def needed(batch: int) -> int:
    return peak_memory(MODEL, Step(kind="train", batch=batch, device="cpu")).total


def test_less_memory_makes_smaller_parts_and_each_fits_where_one_more_would_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {}
    for free in (64 * GIB, 8 * GIB, 4 * GIB, 2 * GIB, GIB, 1):
        size = found[free] = fitted(monkeypatch, free, 839)
        parts = -(-839 // size)
        assert size == -(-839 // parts)  # equal, as near as can be
        if 1 < size < 839:
            assert needed(size) <= 0.8 * free < needed(-(-839 // (parts - 1)))
    assert found[64 * GIB] == 839
    assert found[1] == 1
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert len(set(found.values())) >= 5


def test_the_average_and_adams_moments_take_room_and_bfloat16_makes_some(monkeypatch: pytest.MonkeyPatch) -> None:
    free = needed(240) / 0.8 + 1
    plain = fitted(monkeypatch, free, 240)
    assert plain == 240
    assert fitted(monkeypatch, free, 240, average=Average()) < plain
    tight = needed(60) / 0.8 + 1
    assert fitted(monkeypatch, tight, 240) == 60
    assert fitted(monkeypatch, tight, 240, optimiser=SGD()) >= 60
    assert fitted(monkeypatch, tight, 240, "bfloat16") > 60


def test_what_is_asked_is_taken_and_is_never_more_than_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitted(monkeypatch, 1, 839, micro_batch=37) == 37
    assert fitted(monkeypatch, 1, 20, micro_batch=37) == 20


def test_free_memory_is_what_the_machine_and_its_container_leave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    cgroup.mkdir()
    meminfo.write_text("MemTotal:       33554432 kB\nMemAvailable:   16777216 kB\nHugePages_Total:       0\n")
    monkeypatch.setattr(fitting, "MEMINFO", meminfo)
    monkeypatch.setattr(fitting, "CGROUP", cgroup)
    assert free_memory(CPU) == 16 * GIB
    (cgroup / "memory.current").write_text(f"{5 * GIB}\n")
    (cgroup / "memory.max").write_text("max\n")
    assert free_memory(CPU) == 16 * GIB
    (cgroup / "memory.max").write_text(f"{6 * GIB}\n")
    assert free_memory(CPU) == GIB
    # Images that were read fill the cache up to the limit; it makes room.
    (cgroup / "memory.stat").write_text(f"anon {GIB}\nfile {4 * GIB}\ninactive_file {3 * GIB}\nactive_file {GIB}\n")
    assert free_memory(CPU) == 4 * GIB
    (cgroup / "memory.max").write_text(f"{64 * GIB}\n")
    assert free_memory(CPU) == 16 * GIB
    (cgroup / "memory.max").write_text(f"{2 * GIB}\n")
    assert free_memory(CPU) == GIB // 4  # never nothing


def test_this_machine_has_free_memory() -> None:
    assert free_memory(CPU) >= GIB // 4
