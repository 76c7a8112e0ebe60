"""Processes that train together: the same as one to rounding, each image once, and one failure for all."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from killed_runs import LIMIT, Runs, arguments, free_port, leftovers, log, make_data, result, steps_of
from safetensors.numpy import load_file

from vitrail.runtime.machine import gather_over_ranks, take_own_rank

# A key's bias has no gradient but rounding, which Adam divides by itself; a larger epsilon leaves it small. The batch
# does not go into the images, and 8 images at a time do not go into half of it.
CHANGED = {"epsilon": 1e-4, "micro_batch": 5, "mix_block": 2}
STEPS = 8


def together(images: Path, out: Path, *more: str, **changed: object) -> list[str]:
    return arguments(images, out, *more, steps=STEPS, batch=28, changed={**CHANGED, **changed})


@pytest.fixture(scope="session")
def alone(runs: Runs, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    assert runs(together(images, out)).status == 0
    return out


def check_equal(one: Path, other: Path, *, rounding: float = 1.0) -> None:
    """Compare what two runs came to, to rounding, or so many times it; what is counted, exactly."""
    for name, weights in load_file(one / "weights.safetensors").items():
        assert abs(weights - load_file(other / "weights.safetensors")[name]).max() < 1e-5 * rounding, name
    lines = [*log(one), json.loads((one / "summary.json").read_text())["metrics"]]
    others = [*log(other), json.loads((other / "summary.json").read_text())["metrics"]]
    assert len(lines) == len(others)
    for line, same in zip(lines, others, strict=True):
        for name, value in line.items():
            assert same[name] == (
                pytest.approx(value, rel=1e-4 * rounding) if name in ("loss", "grad_norm", "test_loss") else value
            )
    assert steps_of(one) == steps_of(other)


def all_end(runs: Runs, command: list[str], ranks: int = 2, **options: Any) -> list[str]:
    ended = runs.all(command, ranks=ranks, **options)
    assert [one.status for one in ended] == [0] * ranks, ended
    assert all(one.said == "" for one in ended[1:])  # the first speaks for all
    return [one.said for one in ended]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_equal_one(parallel: str, runs: Runs, images: Path, alone: Path, tmp_path: Path) -> None:
    said = all_end(runs, together(images, tmp_path / "run", parallel=parallel))[0]
    assert "2 processes" in said
    check_equal(alone, tmp_path / "run")
    assert log(alone)[-1]["left_out"] == log(tmp_path / "run")[-1]["left_out"]
    assert max(line.get("left_out", 0) for line in log(tmp_path / "run") if line["kind"] == "train") == 2


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_equal_one_with_a_margin_and_without_some_classes(
    parallel: str, runs: Runs, images: Path, tmp_path: Path
) -> None:
    changed = {"margin": 0.5, "mixup": 0, "held_out": 0.3, "parallel": parallel}
    assert runs(together(images, tmp_path / "one", **changed)).status == 0
    all_end(runs, together(images, tmp_path / "two", **changed))
    check_equal(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_two_processes_equal_one_with_muon(runs: Runs, images: Path, tmp_path: Path) -> None:
    assert runs(together(images, tmp_path / "one", optimizer="muon")).status == 0
    all_end(runs, together(images, tmp_path / "two", optimizer="muon"))
    check_equal(tmp_path / "one", tmp_path / "two", rounding=20)  # its products are in bfloat16


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_three_processes_equal_one_where_batches_are_shared_unevenly(
    parallel: str, runs: Runs, images: Path, tmp_path: Path
) -> None:
    # The 104 images are fewer than the batch: the only step of an epoch is shared by blocks, unevenly.
    commands = [
        arguments(images, tmp_path / name, steps=4, batch=108, changed={**CHANGED, "parallel": parallel})
        for name in ("one", "three")
    ]
    assert runs(commands[0]).status == 0
    all_end(runs, commands[1], ranks=3)
    check_equal(tmp_path / "one", tmp_path / "three")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((1, "ddp"), (2, "ddp")),
        ((2, "ddp"), (1, "ddp")),
        ((2, "ddp"), (2, "fsdp")),
        ((2, "fsdp"), (1, "ddp")),
        ((1, "ddp"), (2, "fsdp")),
    ],
)
def test_a_run_goes_on_with_another_number_and_kind_of_processes(
    first: tuple[int, str], then: tuple[int, str], runs: Runs, images: Path, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = together(images, out, parallel=first[1])
    ended = runs.all(command, ranks=first[0], trick=["signal", 3, signal.SIGTERM])  # heard by the first rank alone
    assert ended[0].status == 130, ended
    assert 4 in steps_of(out)
    said = all_end(runs, together(images, out, parallel=then[1]), ranks=then[0])[0]
    assert "resuming from step 4 of 8" in said
    assert (f"processes {then[0]}, where it was {first[0]}" in said) == (first[0] != then[0])
    shutil.rmtree(out / "checkpoints" / "step-000000004", ignore_errors=True)
    check_equal(alone, out)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_that_are_killed_end_with_the_same_bits(
    parallel: str, runs: Runs, images: Path, tmp_path: Path
) -> None:
    out, whole = tmp_path / "run", tmp_path / "whole"
    all_end(runs, together(images, whole, parallel=parallel))
    for moment in (0.6, 0.9, 1.2):
        runs.all(together(images, out, parallel=parallel), ranks=2, signals=[(moment, signal.SIGKILL)])
    all_end(runs, together(images, out, parallel=parallel))
    assert result(out) == result(whole)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 4])
def test_more_than_two_processes_that_resume_add_up_as_those_that_never_stopped(
    ranks: int, runs: Runs, images: Path, tmp_path: Path
) -> None:
    """DDP orders its buckets anew after its first step, and the sums of three go by the places in them."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    all_end(runs, together(images, whole, parallel="ddp", log_every=1), ranks)
    runs.all(together(images, out, parallel="ddp", log_every=1), ranks=ranks, trick=["signal", 4, signal.SIGTERM])
    all_end(runs, together(images, out, parallel="ddp", log_every=1), ranks)
    assert result(out) == result(whole)


@pytest.mark.parametrize("where", ["beginning", "save"])
def test_where_the_first_process_fails_all_end_with_its_reason(
    where: str, runs: Runs, images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    if where == "beginning":
        out.write_text("a file")
    trick = () if where == "beginning" else ["shell", 4, f"rm -r {out}"]
    ended = runs.all(together(images, out), ranks=2, trick=trick, limit=60)
    reason = "exists and is no run" if where == "beginning" else "No such file or directory"
    assert [one.status for one in ended] == [1, 1], ended
    assert reason in ended[0].said
    assert "Traceback" not in ended[0].said + ended[1].said
    assert f"the main process failed: {'' if where == 'save' else out}" in " ".join(ended[1].said.split())
    assert reason in ended[1].said


@pytest.mark.slow
def test_damaged_checkpoints_are_found_by_one_process_for_all(
    runs: Runs, images: Path, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    runs.all(together(images, out), ranks=2, trick=["signal", 6, signal.SIGTERM])
    (out / "checkpoints" / "step-000000007" / "state.json").write_text("{}")
    said = all_end(runs, together(images, out))[0]
    assert "step-000000007 is damaged" in said
    assert "resuming from step 5 of 8" in said
    check_equal(alone, out)
    assert leftovers(out) == []


@pytest.mark.slow
def test_images_that_cannot_be_decoded_count_for_all_processes(runs: Runs, tmp_path: Path) -> None:
    images = make_data(tmp_path / "images", broken=9)
    ended = runs.all(together(images, tmp_path / "run", limit=0.04), ranks=2, limit=60)
    assert all(one.status for one in ended)
    assert "over the limit of 4.0%" in " ".join(one.said for one in ended)
    assert "cannot be read" in " ".join(one.said for one in ended)


def torchrun(*command: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    return subprocess.Popen(
        [*launcher, str(free_port()), "-m", "vitrail", *command],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.slow
def test_torchrun_that_is_told_to_end_saves_and_goes_on(images: Path, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = arguments(images, out, steps=2000, batch=28, changed=CHANGED)
    with torchrun(*command) as process:
        while not (out / "log.jsonl").exists():
            assert process.poll() is None, "it ended before its first line"
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT)
    step = steps_of(out)[-1]
    assert f"interrupted at step {step:,} of 2,000" in said or "SIGTERM: saving after this step" in said
    assert leftovers(out) == []
    with torchrun(*together(images, tmp_path / "short")) as process:
        _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, said
    check_equal(alone, tmp_path / "short")


@pytest.mark.slow
def test_torchrun_ends_with_the_first_processs_reason(images: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("ten years")
    with torchrun(*together(images, tmp_path / "run")) as process:
        _, said = process.communicate(timeout=LIMIT)
    assert process.returncode
    assert "exists and is no run" in said


def test_counts_of_each_process_add_up_for_any_number_of_them() -> None:
    import torch

    sums = torch.tensor([1.0, 2.0, 3.0])
    assert gather_over_ranks(sums).tolist() == [[1.0, 2.0, 3.0]]
    assert take_own_rank(torch.stack([sums, sums, sums])).tolist() == [3.0, 6.0, 9.0]


# Checkpoints whose parts every rank writes, of models that are large.


def in_parts(images: Path, out: Path) -> list[str]:
    """Give the command of a run whose parts mix in the same blocks on one, two, three and four ranks."""
    return arguments(images, out, steps=STEPS, batch=24, changed={**CHANGED, "parallel": "fsdp"})


@pytest.mark.parametrize(
    ("first", "then"),
    [(2, 1), *(pytest.param(*ranks, marks=pytest.mark.slow) for ranks in ((4, 1), (4, 3), (4, 4), (3, 4), (3, 2)))],
)
def test_parts_of_some_ranks_are_read_by_any_number(
    first: int, then: int, runs: Runs, images: Path, tmp_path: Path
) -> None:
    out, one = tmp_path / "run", tmp_path / "one"
    assert runs(in_parts(images, one)).status == 0
    ended = runs.all(in_parts(images, out), ranks=first, trick=["signal", 3, signal.SIGTERM], shards=0)
    assert ended[0].status == 130, ended
    path = out / "checkpoints" / "step-000000004"
    names = {file.name for file in path.iterdir()}
    assert names == {".metadata", "state.json", "SHA256SUMS", *(f"__{rank}_0.distcp" for rank in range(first))}
    said = all_end(runs, in_parts(images, out), ranks=then, shards=0)[0]
    assert "resuming from step 4 of 8" in said
    shutil.rmtree(path, ignore_errors=True)
    check_equal(one, out)


@pytest.mark.slow
def test_parts_that_are_damaged_are_passed_over(runs: Runs, images: Path, tmp_path: Path) -> None:
    out, one = tmp_path / "run", tmp_path / "one"
    assert runs(in_parts(images, one)).status == 0
    runs.all(in_parts(images, out), ranks=2, trick=["signal", 6, signal.SIGTERM], shards=0)
    assert steps_of(out) == [5, 7]
    file = out / "checkpoints" / "step-000000007" / "__1_0.distcp"
    os.truncate(file, file.stat().st_size // 2)
    said = all_end(runs, in_parts(images, out), shards=0)[0]
    assert "step-000000007 is damaged" in said
    assert "resuming from step 5 of 8" in said
    check_equal(one, out)


@pytest.mark.slow
def test_killed_while_it_saves_parts_a_run_ends_with_the_same_bits(runs: Runs, images: Path, tmp_path: Path) -> None:
    out, whole = tmp_path / "run", tmp_path / "whole"
    changed = {**CHANGED, "parallel": "fsdp", "save_every": 1}
    all_end(runs, arguments(images, whole, steps=20, batch=28, changed=changed), shards=0)
    command = arguments(images, out, steps=20, batch=28, changed=changed)
    for moment in (0.9, 1.3, 1.7, 2.1):
        runs.all(command, ranks=2, signals=[(moment, signal.SIGKILL)], shards=0)
    all_end(runs, command, shards=0)
    assert result(out) == result(whole)
    assert {Path(path).name for path in leftovers(out)} == {".metadata"}  # torch's own name
