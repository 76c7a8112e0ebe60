"""Killed at any instant and started again, a run ends with the same bits as one that was let alone."""

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from killed_runs import STEPS, Ended, Runs, arguments, leftovers, log, result, steps_of

# Changes to files before which to kill, by what they are: of the beginning, a save, what it prunes, and the end.
INSTANTS = {
    "before there is a folder": r"os.mkdir .*/run$",
    "inside the first file": r"fsync .*/\.training\.\w+\.json",
    "after the log, before the save": r"os.mkdir .*/\.step-000000012\.\w+$",
    "before the weights have their name": r"os.rename .*/\.step-000000010.*/\.weights\.",
    "before the checkpoint has its name": r"os.rename .*/\.step-000000010\.\w+$",
    "before what is old goes": r"os.rename .*/step-000000005$",
    "while what is old goes": r"os.rmdir .*/\.step-000000005\.0$",
    "before the last weights have their name": r"os.rename .*/run/\.weights\.",
    "before the summary has its name": r"os.rename .*/run/\.summary\.",
}


@pytest.fixture(scope="module")
def changes(runs: Runs, images: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every change of a run to its files, in order."""
    folder = tmp_path_factory.mktemp("changes")
    found = runs(
        arguments(images, folder / "run"), trick=["count changes", str(folder / "run"), str(folder / "changes")]
    )
    assert found.status == 0, found.said
    return (folder / "changes").read_text().splitlines()


@pytest.mark.parametrize("instant", INSTANTS)
def test_a_run_that_is_killed_inside_a_write_ends_with_the_same_bits(
    instant: str, runs: Runs, images: Path, wanted: dict[str, Any], whole: Path, changes: list[str], tmp_path: Path
) -> None:
    number = next(i for i, change in enumerate(changes) if re.match(INSTANTS[instant], change))
    again(runs, images, tmp_path / "run", number, wanted, whole)


@pytest.mark.slow
def test_a_run_that_is_killed_before_any_of_its_writes_ends_with_the_same_bits(
    runs: Runs, images: Path, wanted: dict[str, Any], whole: Path, changes: list[str], tmp_path: Path
) -> None:
    for number in range(1, len(changes), 7):
        again(runs, images, tmp_path / str(number) / "run", number, wanted, whole)


def again(runs: Runs, images: Path, out: Path, number: int, wanted: dict[str, Any], whole: Path) -> None:
    out.parent.mkdir(exist_ok=True)
    assert runs(arguments(images, out), trick=["kill at change", str(out), number]).status == -signal.SIGKILL
    ended = runs(arguments(images, out))
    assert ended.status == 0, ended.said
    assert result(out) == wanted
    assert leftovers(out) == []
    assert steps_of(out) == steps_of(whole)


@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.slow), 5])
def test_half_a_file_of_tensors_is_never_taken_for_one(
    number: int, runs: Runs, images: Path, wanted: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert runs(arguments(images, out), trick=["kill in tensors", number]).status == -signal.SIGKILL
    assert runs(arguments(images, out), trick=["kill in tensors", 3]).status == -signal.SIGKILL  # and once more
    assert runs(arguments(images, out)).status == 0
    assert result(out) == wanted
    assert leftovers(out) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_saves_at_the_current_step(
    number: int, runs: Runs, images: Path, wanted: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    ended = runs(arguments(images, out, "--workers", "2"), trick=["signal", 3, number])
    assert ended.status == 130, ended.said
    assert f"{signal.Signals(number).name}: saving after this step" in ended.said
    assert "interrupted at step 4 of 12, and saved" in ended.said
    assert steps_of(out) == [4]
    ended = runs(arguments(images, out))
    assert "resuming from step 4 of 12" in ended.said
    assert "rounding" not in ended.said
    assert result(out) == wanted


def test_a_second_signal_ends_a_run_at_once(runs: Runs, images: Path, wanted: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = runs(arguments(images, out, "--workers", "2"), trick=["signal", 3, signal.SIGINT, 2, 1.2])
    assert ended.status == 130
    assert ended.said.rstrip().endswith("interrupted.")
    assert not (out / "checkpoints").exists()
    runs(arguments(images, out))
    assert result(out) == wanted


def test_the_echo_of_a_signal_is_no_second_one(runs: Runs, images: Path, tmp_path: Path) -> None:
    ended = runs(arguments(images, tmp_path / "run"), trick=["signal", 3, signal.SIGTERM, 3])
    assert "and saved" in ended.said
    assert ended.said.count("SIGTERM") == 1


def test_the_number_of_workers_changes_nothing(
    runs: Runs, images: Path, wanted: dict[str, Any], tmp_path: Path
) -> None:
    assert runs(arguments(images, tmp_path / "run", "--workers", "3")).status == 0
    assert result(tmp_path / "run") == wanted


def test_images_that_go_through_at_once_stay_as_many_unless_said(runs: Runs, images: Path, tmp_path: Path) -> None:
    few, out = ("--set", "micro_batch=7"), tmp_path / "run"
    assert runs(arguments(images, tmp_path / "whole", *few)).status == 0
    assert runs(arguments(images, out, *few), trick=["signal", 5, signal.SIGTERM]).status == 130
    ended = runs(arguments(images, out, "--set", "micro_batch=5"), trick=["signal", 6, signal.SIGKILL])
    assert "images at a time 5, where it was 7: the result will be the same to rounding" in ended.said
    assert runs(arguments(images, out)).status == 0
    assert result(out) == result(tmp_path / "whole")


def test_another_number_of_threads_is_said(runs: Runs, images: Path, stopped: Path) -> None:
    ended = runs(arguments(images, stopped), threads=2)
    assert ended.status == 0
    assert "threads 2, where it was 1: the result will be the same to rounding, not to the bit" in ended.said


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(2, 2, 2, 2), (0, 1, 2, 3)], ids=["workers", "changing"])
def test_sixty_steps_killed_at_twenty_random_instants_end_with_the_same_bits(
    workers: tuple[int, ...], runs: Runs, images: Path, tmp_path: Path
) -> None:
    def run(name: str, **options: Any) -> Ended:
        count = workers[next(turn) % len(workers)]
        return runs(arguments(images, tmp_path / name, "--workers", str(count), steps=60), **options)

    turn = itertools.count()
    assert run("warm").status == 0
    start = time.monotonic()
    assert run("whole").status == 0
    seconds, wanted = time.monotonic() - start, result(tmp_path / "whole")
    assert len(log(tmp_path / "whole")) == 20 + 9
    draw, killed = random.Random(0), 0
    while killed < 20:
        name = str(next(turn))
        if run(name, signals=[(draw.uniform(0, seconds), signal.SIGKILL)]).status == 0:
            seconds *= 0.9  # it was faster than the first
            continue
        killed += 1
        run(name, signals=[(draw.uniform(0, seconds / 2), signal.SIGKILL)])  # once more while it goes on
        ended = run(name)
        assert ended.status == 0, ended.said
        assert result(tmp_path / name) == wanted
        assert leftovers(tmp_path / name) == []


@pytest.mark.slow
def test_the_command_itself_killed_at_random_instants_ends_with_the_same_bits(
    runs: Runs, images: Path, wanted: dict[str, Any], tmp_path: Path
) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VITRAIL_CACHE": str(runs.folder / "cache")}
    command = [sys.executable, "-m", "vitrail", *arguments(images, tmp_path / "run", "--workers", "2")]
    draw = random.Random(1)
    for _ in range(6):
        process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL, env=environment)
        time.sleep(draw.uniform(2, 5))
        process.kill()  # alone: its workers see that it is gone
        process.wait()
    subprocess.run(command, check=True, timeout=120, env=environment)
    assert result(tmp_path / "run") == wanted
    assert log(tmp_path / "run")[-1]["step"] == STEPS
