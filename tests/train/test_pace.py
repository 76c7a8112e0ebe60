"""How many steps fit into a time."""

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from killed_runs import log

import vitrail
from vitrail.cli import main
from vitrail.config.recipes import adjust, recipe
from vitrail.data.open import open_data
from vitrail.data.source import Batch
from vitrail.errors import ConfigError
from vitrail.runtime.reporter import SILENT
from vitrail.train import pace
from vitrail.train.chores import Tempo
from vitrail.train.loop import Plan, train_step
from vitrail.train.run import run
from vitrail.train.state import State
from vitrail.train.task import Task


def task(out: Path, **changes: Any) -> Task:
    splits = open_data("sample")
    training = replace(recipe("small").training, image_size=(8, 8), batch_size=16, **changes)
    return Task(
        command="",
        data="sample",
        splits=splits,
        model="ViT-Ti/4",
        training=training,
        out=out,
        changes={"depth": 1, "width": 12, "heads": 3, "mlp_width": 12},
        workers=0,
        device="cpu",
        track=(),
    )


def pretend(monkeypatch: pytest.MonkeyPatch, seconds: float, probing: float = 0.0) -> list[Task]:
    asked: list[Task] = []

    def trial(task: Task, probe: object, limit: float) -> tuple[float, float]:
        asked.append(task)
        assert limit > 0
        return seconds, probing

    monkeypatch.setattr(pace, "_trial", trial)
    return asked


def test_evaluations_and_spare_time_are_taken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 0.5)
    steps, why = pace.steps_within(task(tmp_path / "a", validation_share=0.1), 600)
    # 1,800 images an epoch and 200 evaluated after it, 1,000 at the end, each a third of one that is trained on.
    expected = (600 * 0.95 - 0.5 / 16 * 1000 / 3) / (0.5 * (1 + 200 / 3 / 1800))
    assert steps == pytest.approx(expected, abs=2)
    assert why == f"{steps:,} steps fit into 10 minutes: 0.50 seconds each, as measured"


@pytest.mark.parametrize(
    ("changes", "taken", "each"),
    [({}, 10 * 3, 0), ({"evaluate_every": 60}, 3, 3 / 60), ({"probe_every": 20, "evaluate_every": 60}, 3, 3 / 20)],
)
def test_probes_are_taken_off(
    changes: dict[str, int], taken: float, each: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, 0.5, probing=3.0)
    steps, _ = pace.steps_within(task(tmp_path / "a", validation_share=0.0, **changes), 600)
    # 1,000 images are evaluated at the end, each a third of one that is trained on.
    assert steps == pytest.approx((600 * 0.95 - 0.5 / 16 * 1000 / 3 - taken) / (0.5 + each), abs=2)


def test_too_little_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 130.0)
    with pytest.raises(
        ConfigError, match=r"a step of 16 images takes 130\.0 seconds here; 2 minutes are too few\. Give"
    ):
        pace.steps_within(task(tmp_path / "a"), 120)
    pretend(monkeypatch, 30.0)  # perhaps of a busy machine: the run itself will tell
    steps, why = pace.steps_within(task(tmp_path / "a"), 120)
    assert steps == 10
    assert why.startswith("a step of 16 images may take 30.0 seconds here: few fit")


def test_a_trial_leaves_nothing_and_tells_a_steps_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    each, probing = pace._trial(task(tmp_path / "run", validation_share=0.1))
    assert 0 < each < 5
    assert probing == 0
    left = [path.name for path in tmp_path.iterdir()]
    assert [
        name for name in left if not name.startswith("torchinductor")
    ] == []  # which torch makes where it is first used


def test_a_trial_probes_once_and_tells_its_time(tmp_path: Path) -> None:
    probed: list[object] = []

    def probe(model: object, options: object) -> dict[str, float]:
        probed.append(model)
        time.sleep(0.3)
        return {"linear": 0.5}

    each, probing = pace._trial(task(tmp_path / "run", validation_share=0.1, probe_every=2), probe)
    assert len(probed) == 1
    assert probing >= 0.3
    assert each > 0


@pytest.mark.slow
def test_a_command_of_minutes_ends_in_time_and_goes_on_as_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = pretend(monkeypatch, 0.9)
    command = [
        "finetune",
        "sample",
        "--model",
        "ViT-Ti/4",
        "--out",
        str(tmp_path / "run"),
        "--minutes",
        "0.5",
        "--batch",
    ]
    command += ["16", "--workers", "0", "--device", "cpu", "--set", "image_size=8", "--set", "dev=0"]
    command += [
        word for field in ("depth=1", "width=12", "heads=3", "mlp_width=12") for word in ("--set", f"model.{field}")
    ]
    assert main(command) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "steps fit into 0.5 minutes: 0.90 seconds each, as measured" in shown
    assert len(asked) == 1
    assert main(command) == 0
    assert "as the run was begun with" in " ".join(capsys.readouterr().err.split())
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--steps", "5"], "a run's length is given twice: minutes and steps. Give one."),
        (["--epochs", "5"], "a run's length is given twice: minutes and epochs. Give one."),
        (["--set", "steps=5"], "a run's length is given twice"),
        (["--minutes", "0"], "minutes must be more than 0; got 0."),
    ],
)
def test_what_contradicts_the_minutes_is_refused(
    more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["finetune", "sample", "--out", str(tmp_path / "run"), "--minutes", "1", *more]) == 1
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_several_processes_are_told_to_say_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["finetune", "sample", "--out", str(tmp_path / "run"), "--minutes", "1"]) == 1
    assert "Give steps or epochs with torchrun" in " ".join(capsys.readouterr().err.split())


def test_a_trial_ends_when_its_time_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def watched(plan: Plan, state: State, batch: Batch) -> bool:
        made.append(len(batch.labels))
        return train_step(plan, state, batch)

    monkeypatch.setattr("vitrail.train.loop.train_step", watched)
    each, _ = pace._trial(replace(task(tmp_path), training=replace(task(tmp_path).training, batch_size=400)), limit=0.0)
    assert made == [8, 8, 8]  # images of a step: none of 400 is waited for
    assert each > 0


def test_minutes_count_from_the_start_of_a_command_or_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[float, float]] = []

    def planned(task: Task, seconds: float, probe: object, *, since: float) -> tuple[int, str]:
        asked.append((since, seconds))
        return 10, "ten"

    def begin(task: Task, *_: object) -> None:
        assert task.until is not None
        asked.append((task.until, task.seconds))
        raise ConfigError("far enough")

    monkeypatch.setattr("vitrail.verbs.training.steps_within", planned)
    monkeypatch.setattr("vitrail.verbs.training.run", begin)
    monkeypatch.setattr("vitrail.cli.time", SimpleNamespace(monotonic=lambda: 50.0))
    monkeypatch.setattr("vitrail.verbs.training.time", SimpleNamespace(monotonic=lambda: 57.0))  # torch is loaded
    assert main(["finetune", "sample", "--out", str(tmp_path / "run"), "--minutes", "2", "--device", "cpu"]) == 1
    assert "far enough" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="far enough"):
        vitrail.finetune("sample", minutes=2, device="cpu", quiet=True)
    assert asked == [(50.0, 120.0), (170.0, 120.0), (57.0, 120.0), (177.0, 120.0)]


def test_time_that_is_gone_already_has_no_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 0.5)
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=lambda: 130.0))
    steps, _ = pace.steps_within(task(tmp_path / "a", validation_share=0.0), 600, since=100.0)
    assert steps == pytest.approx((600 * 0.95 - 30 - 0.5 / 16 * 1000 / 3) / 0.5, abs=2)


class Clock:
    """A clock that goes as far as each step says."""

    perf_counter, time, now = time.perf_counter, time.time, 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    def slow(plan: Plan, state: State, batch: Batch) -> bool:
        clock.now += 1.0 if state.step < 30 else 3.0
        return train_step(plan, state, batch)

    monkeypatch.setattr("vitrail.train.chores.time", clock)
    monkeypatch.setattr("vitrail.train.loop.train_step", slow)
    return clock


def in_time(out: Path, **changes: Any) -> Task:
    asked = task(out, validation_share=0.0, **changes)
    training = adjust(asked.training, {"steps": 95, "save_every": 10, "log_every": 1, "warmup_steps": 10})
    splits = {"train": asked.splits["train"]}
    return replace(asked, training=training, splits=splits, until=100.0, seconds=100.0)


def test_a_machine_that_slows_down_ends_in_time_with_its_schedule(tmp_path: Path, clock: Clock) -> None:
    outcome = run(in_time(tmp_path / "run"), SILENT)
    assert outcome.finished
    assert 90 < clock.now <= 100
    assert outcome.step == outcome.steps == 30 + round((clock.now - 30) / 3)
    rates = [line["learning_rate"] for line in log(tmp_path / "run") if line["kind"] == "train"]
    falls = [one - other for one, other in itertools.pairwise(rates[15:])]
    assert min(falls) > 0  # after the warm-up it never rises,
    assert max(falls) < 0.1 * max(rates)  # nor jumps,
    assert rates[-1] < 0.05 * max(rates)  # and comes to its end
    assert json.loads((tmp_path / "run" / "pace.json").read_text())["turns"]


@pytest.mark.parametrize(
    ("took", "each", "expected"),
    [
        (6.0, 0.02, 2 * (6 - 48 * 0.02) + 311 * 0.02),  # its processes started: twice, for val and for test
        (2.4, 0.11, 2.4 * 311 / 48),  # by the image
        (0.0, 0.12, 311 * 0.04),  # not yet evaluated: a third of a training image's
    ],
)
def test_the_last_evaluations_take_what_starting_and_images_do(took: float, each: float, expected: float) -> None:
    plan: Any = SimpleNamespace(config=SimpleNamespace(batch_size=16))
    evaluation: Any = SimpleNamespace(seconds=took)
    unused: Any = None
    tempo = Tempo(1, plan, unused, SILENT, Path(), 100.0, 100.0, (48, 263), evaluation)
    assert tempo._at_the_end(16 * each) == pytest.approx(expected)


@pytest.mark.slow
def test_a_resumed_run_follows_what_was_planned_to_the_bit(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(in_time(tmp_path / "whole"), SILENT)
    clock.now = 0.0
    killed = in_time(tmp_path / "run")
    turns = json.loads((tmp_path / "whole" / "pace.json").read_text())["turns"]
    after = next(step for step, _, _ in turns if step % 10 > 2)  # planned anew after the last checkpoint

    def kill(record: Mapping[str, Any]) -> None:
        if record["kind"] == "train" and record["step"] == after + 1:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        run(killed, SILENT, callbacks=[kill])
    kept = json.loads((tmp_path / "run" / "pace.json").read_text())["turns"]
    assert kept == turns[: len(kept)]
    (tmp_path / "run" / "pace.json").write_text(json.dumps({"used": 0.0, "turns": turns}))
    saved = after // 10 * 10
    clock.now = saved + 2.0 * max(saved - 30, 0)  # as it was then
    again = run(killed, SILENT)
    assert (again.step, again.steps) == (whole.step, whole.steps)
    assert (tmp_path / "run" / "weights.safetensors").read_bytes() == (
        tmp_path / "whole" / "weights.safetensors"
    ).read_bytes()
    assert log(tmp_path / "run") == log(tmp_path / "whole")
