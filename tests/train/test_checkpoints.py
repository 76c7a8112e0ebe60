"""Checkpoints are whole, checked and kept; what a disk refuses is said, and costs nothing that was saved."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_runs import EVALUATE, Runs, arguments, leftovers, log, make_data, result, steps_of

import vitrail
from vitrail.errors import CheckpointError
from vitrail.runtime.reporter import SILENT
from vitrail.train import folder

FILES = (
    *("weights.safetensors", "training.safetensors", "state.json", "config.json", "classes.json", "metrics.json"),
    *("preprocessing.json", "SHA256SUMS"),
)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def newest(out: Path) -> Path:
    return out / "checkpoints" / f"step-{steps_of(out)[-1]:09d}"


def held(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_checkpoint_holds_the_files_that_are_checked(stopped: Path) -> None:
    assert {path.name for path in newest(stopped).iterdir()} == set(FILES)


@pytest.mark.parametrize("name", [*FILES[:3], *(pytest.param(name, marks=pytest.mark.slow) for name in FILES[3:])])
def test_a_damaged_checkpoint_is_said_and_the_one_before_it_used(
    name: str, runs: Runs, images: Path, wanted: dict[str, Any], stopped: Path
) -> None:
    flip(newest(stopped) / name)
    ended = runs(arguments(images, stopped))
    assert ended.status == 0, ended.said
    assert f"step-000000009 is damaged and now step-000000009.damaged-1: {stopped}" in ended.said
    assert name in ended.said
    assert "resuming from step 7 of 12" in ended.said
    assert (stopped / "checkpoints" / "step-000000009.damaged-1").is_dir()
    assert result(stopped) == wanted


def test_where_all_are_damaged_the_run_begins_anew(
    runs: Runs, images: Path, wanted: dict[str, Any], stopped: Path
) -> None:
    for step in steps_of(stopped):
        (stopped / "checkpoints" / f"step-{step:09d}" / "weights.safetensors").unlink()
    ended = runs(arguments(images, stopped))
    assert ended.said.count("is damaged and now") == 2
    assert "no checkpoint is left: beginning anew" in ended.said
    assert "resuming" not in ended.said
    assert result(stopped) == wanted


def test_a_file_that_somebody_puts_beside_a_checkpoint_is_no_damage(
    runs: Runs, images: Path, wanted: dict[str, Any], stopped: Path
) -> None:
    (newest(stopped) / "notes.txt").write_text("a good one")
    ended = runs(arguments(images, stopped))
    assert "damaged" not in ended.said
    assert result(stopped) == wanted


def test_a_log_that_lost_its_end_is_said_and_keeps_whole_lines(
    runs: Runs, images: Path, wanted: dict[str, Any], stopped: Path
) -> None:
    path = stopped / "log.jsonl"
    os.truncate(path, path.stat().st_size - 20)
    ended = runs(arguments(images, stopped))
    assert "log.jsonl lacks its last 20 bytes before step 9: resuming" in ended.said
    found = log(stopped)
    assert [line["step"] for line in found] == [3, 6, 7, 12, 12]
    assert [line for line in wanted["log"] if line["step"] != 9] == found
    assert {**result(stopped), "log": None} == {**wanted, "log": None}


def test_a_log_that_is_gone_costs_no_more_than_its_lines(
    runs: Runs, images: Path, wanted: dict[str, Any], stopped: Path
) -> None:
    (stopped / "log.jsonl").unlink()
    assert runs(arguments(images, stopped)).status == 0
    assert {**result(stopped), "log": None} == {**wanted, "log": None}


def test_the_newest_and_the_best_are_kept(runs: Runs, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    often = {"keep": 3, "save_every": 1, "evaluate_every": 2}
    assert runs(arguments(images, out, changed=often)).status == 0
    best = [line["best_step"] for line in log(out) if line["kind"] == "evaluation"][-1]
    assert steps_of(out) == sorted({best, 10, 11, 12})


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.slow), 4, 25])
def test_a_full_disk_is_said_and_costs_nothing(
    number: int, runs: Runs, images: Path, wanted: dict[str, Any], stopped: Path
) -> None:
    before = held(stopped / "checkpoints")
    ended = runs(arguments(images, stopped), trick=["fail at change", str(stopped), number, errno.ENOSPC])
    assert ended.status == 1, ended.said
    assert "Traceback" not in ended.said
    assert f"cannot write {stopped}" in " ".join(ended.said.split())
    assert "No space left on device. Free some space, or write elsewhere." in " ".join(ended.said.split())
    assert held(stopped / "checkpoints").items() >= before.items()
    assert runs(arguments(images, stopped)).status == 0
    assert result(stopped) == wanted
    assert leftovers(stopped) == []


def test_a_disk_that_is_really_full_is_said(
    runs: Runs, images: Path, wanted: dict[str, Any], begun: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=False).returncode:
        pytest.skip("may not mount a disk here")
    try:
        out = Path(shutil.copytree(begun, disk / "run"))
        before = held(out)
        free = shutil.disk_usage(disk).free
        (disk / "large").write_bytes(bytes(max(free - 60_000, 0)))
        ended = runs(arguments(images, out))
        assert ended.status == 1, ended.said
        assert "No space left on device. Free some space" in " ".join(ended.said.split())
        assert held(out / "checkpoints") == held(begun / "checkpoints")
        assert leftovers(out) == []
        assert len(held(out)) == len(before)
        (disk / "large").unlink()
        assert runs(arguments(images, out)).status == 0
        assert result(out) == wanted
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_file_that_may_not_grow_is_said(runs: Runs, images: Path, wanted: dict[str, Any], stopped: Path) -> None:
    ended = runs(arguments(images, stopped), trick=["small files", 20_000, 9])
    assert ended.status == 1, ended.said
    assert "File too large" in ended.said
    assert steps_of(stopped) == [7, 9]
    runs(arguments(images, stopped))
    assert result(stopped) == wanted


@pytest.mark.parametrize("step", [8, 9])  # before a line of the log, and before a checkpoint
def test_a_folder_that_goes_away_is_said_and_not_made_again(
    step: int, runs: Runs, images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    ended = runs(arguments(images, out), trick=["shell", step, f"rm -r {out}"])
    assert ended.status == 1, ended.said
    assert f"cannot write {out}" in " ".join(ended.said.split())
    assert "No such file or directory" in ended.said
    assert not out.exists()


def test_a_permission_that_is_lost_is_said(runs: Runs, images: Path, wanted: dict[str, Any], stopped: Path) -> None:
    if os.getuid():
        pytest.skip("only root can become somebody else")
    before = held(stopped / "checkpoints")
    ended = runs(arguments(images, stopped), trick=["nobody", 9])
    assert ended.status == 1, ended.said
    assert "Permission denied" in ended.said
    assert "Choose a place that you may write to." in " ".join(ended.said.split())
    assert held(stopped / "checkpoints") == before
    runs(arguments(images, stopped))
    assert result(stopped) == wanted


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--seed", "3"), "training.seed was 0, is 3"),
        (("--set", "smoothing=0.2"), "training.label_smoothing was 0.1, is 0.2"),
        (("--set", "model.epsilon=1e-5"), "changes.epsilon was None, is 1e-05"),
    ],
)
def test_a_run_that_was_begun_otherwise_is_refused(
    more: tuple[str, ...], said: str, runs: Runs, images: Path, begun: Path
) -> None:
    before = held(begun)
    ended = runs(arguments(images, begun, *more))
    assert ended.status == 1
    assert f"{begun} was begun otherwise" in " ".join(ended.said.split())
    assert said in " ".join(ended.said.split())
    assert held(begun) == before


def test_other_images_are_refused(runs: Runs, begun: Path, tmp_path: Path) -> None:
    ended = runs(arguments(make_data(tmp_path / "others", broken=1), begun))
    assert ended.status == 1
    assert "data was" in ended.said
    assert "the images of train have changed" in " ".join(ended.said.split())


def test_what_does_not_change_the_result_may_change(
    runs: Runs, images: Path, wanted: dict[str, Any], stopped: Path
) -> None:
    more = ("--workers", "1", "--set", "keep=4", "--set", "parallel=fsdp", "--set", "augmenting=workers")
    assert runs(arguments(images, stopped, *more)).status == 0
    assert result(stopped) == wanted
    assert steps_of(stopped) == [7, 9, 10, 12]


def test_a_finished_run_says_so_and_computes_nothing(runs: Runs, images: Path, whole: Path, tmp_path: Path) -> None:
    before = held(whole)
    ended = runs(arguments(images, whole), trick=["count changes", str(whole), str(tmp_path / "changes")])
    assert ended.status == 0
    assert f"finished before: {whole}" in ended.said
    assert held(whole) == before
    assert (tmp_path / "changes").read_text() == ""


def test_a_folder_that_is_somebody_elses_is_refused(runs: Runs, images: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("ten years")
    ended = runs(arguments(images, tmp_path / "run"))
    assert ended.status == 1
    assert "exists and is no run. Give another folder" in " ".join(ended.said.split())
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_two_processes_do_not_train_in_one_folder(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "PATIENCE", 0.2)
    code = "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX); print(); input()"
    command = [sys.executable, "-c", code, str(stopped / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(CheckpointError, match=r"another process trains in .* Wait for it or end it, or give"):
            folder.run_lock(stopped, SILENT).__enter__()
        other.kill()
    with folder.run_lock(stopped, SILENT):
        pass


def test_a_run_and_its_best_checkpoint_open_as_the_same_model(whole: Path) -> None:
    step = json.loads((whole / "summary.json").read_text())["result_step"]
    one, other = vitrail.load(whole), vitrail.load(whole / "checkpoints" / f"step-{step:09d}")
    assert one.card.class_names == other.card.class_names == ("ant", "bee", "cat")
    for name, weights in one.state_dict().items():
        assert torch.equal(weights, other.state_dict()[name]), name


def test_a_run_that_is_not_finished_opens_as_its_newest_checkpoint(stopped: Path) -> None:
    one, other = vitrail.load(stopped), vitrail.load(newest(stopped))
    assert all(torch.equal(weights, other.state_dict()[name]) for name, weights in one.state_dict().items())
    shutil.copy(newest(stopped) / "config.json", stopped)  # killed while it finished
    assert vitrail.load(stopped).card.class_names == ("ant", "bee", "cat")
    shutil.rmtree(stopped / "checkpoints")
    with pytest.raises(CheckpointError, match=r"is a run that has saved nothing yet\. Let it train for longer\."):
        vitrail.load(stopped)


def test_with_patience_the_best_is_taken_and_one_that_is_damaged_said(runs: Runs, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    patient = arguments(images, out, steps=200, changed={"patience": 2, "rate": 1e-9})
    assert runs(patient, trick=["kill at change", str(out / "SHA256SUMS"), 0]).status == -signal.SIGKILL
    best, last = steps_of(out)[0], steps_of(out)[-1]
    assert last == best + 2 * EVALUATE < 200
    other = Path(shutil.copytree(out, tmp_path / "other"))
    ended = runs(patient)
    assert f"the best was at step {best}: taking it" in ended.said
    weights = f"checkpoints/step-{best:09d}/weights.safetensors"
    assert (out / "weights.safetensors").read_bytes() == (out / weights).read_bytes()
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["step"], summary["result"], summary["result_step"]) == (last, "best", best)
    flip(other / weights)
    ended = runs([str(other) if part == str(out) else part for part in patient])
    assert ended.status == 0
    assert f"the best was at step {best}, which cannot be used; taking the last:" in ended.said
    summary = json.loads((other / "summary.json").read_text())
    assert (summary["result"], summary["result_step"]) == ("last", last)
