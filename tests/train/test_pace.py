"""How many steps fit into a time."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitrail.cli import main
from vitrail.config.recipes import recipe
from vitrail.data.open import open_data
from vitrail.errors import ConfigError
from vitrail.train import pace
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
        tensorboard=False,
    )


def pretend(monkeypatch: pytest.MonkeyPatch, seconds: float, probing: float = 0.0) -> list[Task]:
    asked: list[Task] = []

    def trial(task: Task, probe: object) -> tuple[float, float]:
        asked.append(task)
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
    pretend(monkeypatch, 30.0)
    with pytest.raises(
        ConfigError, match=r"a step of 16 images takes 30\.0 seconds here; 2 minutes are too few\. Give"
    ):
        pace.steps_within(task(tmp_path / "a"), 120)


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
