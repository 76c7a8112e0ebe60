"""Processes that are killed, hang or fail while others train with them: each is named by the others, in one line."""

import signal
from pathlib import Path
from typing import Any

import pytest
from killed_runs import Runs, arguments, steps_of

from vitrail.errors import ConfigError
from vitrail.runtime.watch import TRAINING, patience_of

AGAIN = "The same command goes on from the last checkpoint."


def ended(runs: Runs, images: Path, out: Path, trick: list[Any], on: int, ranks: int, **options: Any) -> list[str]:
    """Let a trick be played on one of the ranks; give what the others said last."""
    command = arguments(images, out, steps=8, batch=24, changed={"dropout": 0})
    found = runs.all(command, ranks=ranks, trick=trick, on=on, quick=True, limit=60, **options)
    others = [one for rank, one in enumerate(found) if rank != on]
    assert [one.status for one in others] == [1] * (ranks - 1), found
    assert not any("Traceback" in one.said for one in others), found
    return [one.said.splitlines()[-1] for one in others]


@pytest.mark.parametrize(("on", "ranks"), [(1, 2), pytest.param(2, 3, marks=pytest.mark.slow)])
def test_a_rank_that_is_killed_is_named_by_the_others(
    on: int, ranks: int, runs: Runs, images: Path, tmp_path: Path
) -> None:
    said = ended(runs, images, tmp_path / "run", ["kill", 6, signal.SIGKILL], on, ranks)
    for line in said:
        assert line.startswith(f"error: rank {on} of {ranks} (")
        assert "is gone: " in line
        assert line.endswith(AGAIN)
    assert steps_of(tmp_path / "run") == [5]


@pytest.mark.slow
def test_the_rank_where_all_meet_is_named_too(runs: Runs, images: Path, tmp_path: Path) -> None:
    for line in ended(runs, images, tmp_path / "run", ["kill", 6, signal.SIGKILL], 0, 3):
        assert line == f"error: rank 0 of 3, where all meet, is gone. {AGAIN}"


@pytest.mark.slow
@pytest.mark.parametrize("trick", [["sleep", 6], ["kill", 6, signal.SIGSTOP]])
def test_a_rank_that_hangs_is_named_by_the_others(trick: list[Any], runs: Runs, images: Path, tmp_path: Path) -> None:
    said = ended(runs, images, tmp_path / "run", trick, 1, 3, signals=[(20.0, signal.SIGKILL)])
    how = "is hanging: the others have waited 3 s" if trick[0] == "sleep" else "is gone: nothing was heard of it"
    for line in said:
        assert line.startswith("error: rank 1 of 3 (")
        assert how in line
        assert line.endswith(AGAIN)


def test_a_rank_that_fails_is_named_with_its_reason(runs: Runs, images: Path, tmp_path: Path) -> None:
    said = ended(runs, images, tmp_path / "run", ["fail", 6], 1, 2)[0]
    assert said.startswith("error: rank 1 of 2 (")
    assert said.endswith("failed: ValueError: this memory is damaged")


@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_loss_that_is_no_number_on_one_rank_stops_all_with_its_samples(
    parallel: str, runs: Runs, images: Path, tmp_path: Path
) -> None:
    command = arguments(images, tmp_path / "run", steps=8, batch=24, changed={"parallel": parallel})
    found = runs.all(command, ranks=2, trick=["nan", 6], on=1, quick=True, limit=60)
    assert [one.status for one in found] == [1, 1], found
    first, second = (" ".join(one.said.splitlines()[-1].split()) for one in found)
    assert first == second
    assert first.startswith("error: step 6, rank 1 of 2, samples ")
    assert "rank 0 of 2" not in first
    assert "nothing was updated" in first


def test_patience_is_seconds() -> None:
    assert patience_of({}) == TRAINING
    assert patience_of({"VITRAIL_PATIENCE": "90"}) == 90
    for wrong in ("0", "soon", "-3"):
        with pytest.raises(ConfigError, match="VITRAIL_PATIENCE"):
            patience_of({"VITRAIL_PATIENCE": wrong})
