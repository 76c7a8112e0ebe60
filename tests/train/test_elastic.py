"""`--elastic`: ranks that die cost at most `save_every` steps, and change nothing."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from killed_runs import LIMIT, SAVE, Runs, arguments, free_port, leftovers, result

from vitrail.errors import ConfigError
from vitrail.runtime.elastic import check_elastic

KILLS = int(os.environ.get("VITRAIL_KILLS", "2"))
RANKS = int(os.environ.get("VITRAIL_RANKS", "2"))
STEPS, PATIENCE = 60 * (KILLS + 1), 300.0
CHANGED = {"log_every": 1, "micro_batch": 8, "epsilon": 1e-4, "evaluate_every": 50}


def test_it_is_refused_where_nobody_begins_processes_anew() -> None:
    with pytest.raises(ConfigError, match=r"elastic needs torchrun.*--max-restarts"):
        check_elastic({})
    with pytest.raises(ConfigError, match="elastic needs restarts"):
        check_elastic({"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_MAX_RESTARTS": "0"})
    found = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_MAX_RESTARTS": "3", "WORLD_SIZE": "2"}
    said = "elastic: 2 processes, begun anew 0 of 3 times"
    assert check_elastic(found) == f"{said}; no machine can join, as TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is not set"
    assert check_elastic({**found, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}) == said


@contextmanager
def torchrun(said: Path, command: list[str], *how: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "100", *how, "-m", "vitrail"]
    with said.open("ab") as file, subprocess.Popen([*launcher, *command], env=environment, stderr=file) as process:
        try:
            yield process
        finally:
            left = workers(process.pid) if process.poll() is None else []
            process.kill()
            for each in left:  # of a test that failed
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)


def workers(launcher: int) -> list[int]:
    """List the ranks that a launcher has started."""
    return [int(each) for each in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]


def last_step(out: Path) -> int:
    """Read the last step of the log."""
    try:
        lines = (out / "log.jsonl").read_text().splitlines()
        return json.loads(lines[-1]).get("step", 0) if lines else 0
    except (OSError, ValueError):
        return 0


def wait(process: subprocess.Popen[bytes], when: Callable[[], bool], said: Path) -> None:
    begin = time.monotonic()
    while not when():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() - begin < PATIENCE, said.read_text()
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_ranks_that_are_killed_cost_at_most_the_steps_of_a_checkpoint(
    parallel: str, runs: Runs, images: Path, tmp_path: Path
) -> None:
    changed = {**CHANGED, "parallel": parallel}
    whole, out, said = tmp_path / "whole", tmp_path / "run", tmp_path / "said"
    ended = runs.all(arguments(images, whole, steps=STEPS, changed=changed), ranks=RANKS, limit=LIMIT * (1 + KILLS))
    assert [one.status for one in ended] == [0] * RANKS, ended
    said.touch()
    dice, killed = random.Random(parallel), list[int]()
    command = arguments(images, out, "--elastic", steps=STEPS, changed=changed)
    with torchrun(said, command, "--nproc-per-node", str(RANKS), "--master-port", str(free_port())) as process:
        for kill in range(KILLS):
            begun = 0 if not killed else max(killed[-1], 0)
            wait(process, lambda: said.read_text().count("resuming from step") >= kill, said)  # noqa: B023
            goal = min(begun + dice.randrange(3, 40), STEPS - 5)
            wait(process, lambda: last_step(out) >= goal, said)  # noqa: B023
            victim = dice.choice(workers(process.pid))
            killed.append(last_step(out))
            os.kill(victim, signal.SIGKILL)
            wait(process, lambda: victim not in workers(process.pid), said)  # noqa: B023
        assert process.wait(PATIENCE) == 0, said.read_text()
    resumed = [int(step) for step in re.findall(r"resuming from step (\d+)", said.read_text())]
    assert len(resumed) == KILLS
    for step, again in zip(killed, resumed, strict=True):
        assert again >= step - SAVE - 1
    assert result(out) == result(whole)  # to the bit
    assert leftovers(out) == []
