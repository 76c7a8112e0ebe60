"""The line of a plan before a run, and how far off it was at its end."""

import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from vitrail.config import parse
from vitrail.config.recipe import Adam, Training
from vitrail.runtime.memory import forget_peak, held_memory, peak_memory, resident
from vitrail.runtime.step_memory import step_bytes
from vitrail.train import forecast
from vitrail.train.probe import probe

TINY = {"model.depth": 1, "image_size": 32, "batch_size": 12, "validation_share": 0.0}


def images(count: int = 24) -> tuple[Any, Any]:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return pixels, np.arange(count) % 3


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("plan: ")]


def test_a_run_says_its_plan_and_how_far_off_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    vitrail.finetune(images(), model="ViT-Ti/16", steps=9, log_every=2, micro_batch=5, device="cpu", **TINY)
    captured = capsys.readouterr()
    assert captured.out == ""
    first, later, last = lines(captured.err)
    assert "9 steps of 12 images, 5 at a time, 3 times; peak memory " in first
    assert first.endswith("time: measured after the first steps")
    assert re.fullmatch(r"plan: about [\d.]+ seconds for the 5 steps that are left", later)
    assert re.match(r"plan: time [\d.]+ seconds, predicted [\d.]+ seconds \([+-]\d+%\)", last)
    if forget_peak(torch.device("cpu")):
        assert re.search(r"peak memory [\d.]+ [GM]iB, predicted [\d.]+ [GM]iB \([+-]\d+%\)$", last)


def test_a_quiet_run_says_nothing_and_a_short_one_predicts_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    vitrail.finetune(images(), model="ViT-Ti/16", steps=2, quiet=True, device="cpu", **TINY)
    assert capsys.readouterr().err == ""
    vitrail.finetune(images(), model="ViT-Ti/16", steps=2, device="cpu", **TINY)
    assert not any("about" in line or "time " in line for line in lines(capsys.readouterr().err))


@dataclass
class Stub:
    """Stands for anything, with the fields that are given."""

    fields: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return self.fields[name]


def test_time_is_predicted_from_the_pace_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    clock = [1000.0]
    monkeypatch.setattr(forecast.time, "monotonic", lambda: clock[0])
    group = Stub({"device": torch.device("cpu"), "world_size": 1})
    plan = Stub({"config": Stub({"batch_size": 100}), "steps": 60, "group": group, "micro_batch": 100})
    log, evaluation = Stub({"rate": 50.0}), Stub({"seconds": 0.0, "every": 10})
    report = Stub({"note": said.append})
    made = forecast.Forecast(5, plan, report, log, evaluation, (30, 90), 0, None)  # pyright: ignore[reportArgumentType]
    state: Any = Stub({"step": 5})
    made.do(state)  # the first line of the log has what starts
    assert made.seconds is None
    made.do(Stub({"step": 10}))  # pyright: ignore[reportArgumentType]
    # 50 steps of 100 images at 50 a second; five evaluations of 30 images and the test's 90 at a third of that.
    assert made.seconds == pytest.approx(50 * 100 / 50 + (5 * 30 + 90) / 3 / 50)
    clock[0] += 2 * (made.seconds or 0)
    made.tell_end()
    assert said[-1].endswith("(-50%)")


def test_a_probe_times_steps_and_measures_their_memory() -> None:
    training = Training(optimizer=Adam(), batch_size=6, micro_batch=2, steps=5)
    changes = {"depth": 1, "image_size": (32, 32)}
    found = probe("ViT-Ti/16", training, "cpu", classes=7, seconds=0.0, changes=changes)
    assert (found.images, found.micro_batch, found.timed, found.precision) == (4, 2, 3, "float32")
    assert found.config == parse("ViT-Ti/16", {**changes, "classes": 7})
    assert 0 < found.spread[0] <= found.seconds <= found.spread[1]
    if held_memory(torch.device("cpu")) is not None:
        assert found.memory is not None
        assert found.peak == (found.held or 0) + found.memory or found.memory == 0


def test_a_plan_by_a_probe_multiplies_what_a_step_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.train.probe.SECONDS", 0.0)
    made = vitrail.plan(
        "ViT-Ti/16", probe=True, device="cpu", depth=1, image_size=32, batch_size=4, steps=1000, price=3.0
    )
    place = made.place
    assert place is not None
    assert place.pace is not None
    assert place.seconds == pytest.approx(1000 * 4 / place.pace.images_per_second)
    assert place.cost == pytest.approx(3 * (place.seconds or 0) / 3600)
    assert made.step.precision == "float32"  # as training takes it there
    assert made.document()["place"]["pace"].startswith("measured here: ")  # pyright: ignore[reportIndexIssue]


def test_what_is_resident_is_more_than_what_tensors_need_on_the_cpu_alone() -> None:
    training = Training(optimizer=Adam(), batch_size=4, steps=1)
    needed = step_bytes(parse("ViT-Ti/16"), training, 4, "cpu", "float32")
    assert resident(needed, "cuda", checkpointing=False) == needed
    assert resident(needed, "cpu", checkpointing=False) == int(1.135 * needed) + 19 * 2**20
    assert resident(needed, "cpu", checkpointing=True) == needed + 19 * 2**20


def test_the_peak_counts_from_where_it_was_forgotten() -> None:
    device = torch.device("cpu")
    if not forget_peak(device):
        pytest.skip("this system does not forget")
    before = peak_memory(device)
    held = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # what was freed is no part of it
    held.write(b"x" * len(held))
    after = peak_memory(device)
    assert before is not None
    assert after is not None
    assert after - before > 40 << 20
    assert held[0] == ord("x")
