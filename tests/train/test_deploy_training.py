"""What `deploy/` says of training on several machines: run dry, with programs that only say what they were asked."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from vitrail.cli import main

DEPLOY = Path(__file__).parents[2] / "deploy"
SLURM = {"SLURM_JOB_NODELIST": "node[3-4]", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "8", "SLURM_JOB_ID": "17"}


def dry(script: str, *words: str, folder: Path, **environment: str) -> list[str]:
    """Run a script where torchrun writes its words, one a line; give them."""
    for name, body in {
        "torchrun": f'printf "%s\\n" "$@" > {folder}/words',
        "srun": 'shift; exec "$@"',
        "scontrol": 'printf "node3\\nnode4\\n"',
    }.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **environment}
    done = subprocess.run(
        ["bash", DEPLOY / script, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return (folder / "words").read_text().splitlines()


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def check_command(words: list[str]) -> None:
    """See that the program takes the command: it gets as far as asking who would begin processes anew."""
    assert words[words.index("-m") + 1] == "vitrail"
    assert int(after(words, "--max-restarts")) > 0
    assert after(words, "--rdzv-backend") == "c10d"
    assert main(words[words.index("-m") + 2 :]) == 1


def test_the_job_of_slurm_asks_for_what_it_uses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    text = (DEPLOY / "slurm.sbatch").read_text()
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    asked: dict[str, str] = {name: value for name, _, value in (line.partition("=") for line in lines)}
    assert asked["ntasks-per-node"] == "1"  # torchrun starts the others
    assert asked["signal"] == "TERM@120"  # the run saves, and the job is queued again
    assert "requeue" in asked
    words = dry("slurm.sbatch", folder=tmp_path, DATA="sample", RUN=str(tmp_path / "run"), **SLURM)
    assert after(dry("slurm.sbatch", folder=tmp_path, **SLURM), "pretrain") == "/shared/imagenet/train-{0000..1023}.tar"
    assert after(words, "--nnodes") == "1:2"
    assert after(words, "--nproc-per-node") == "8"
    assert after(words, "--rdzv-endpoint") == "node3:29400"
    check_command(words)
    assert "elastic needs torchrun" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_two_machines_run_the_same_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = dry("two_machines.sh", "first", "sample", str(tmp_path / "run"), folder=tmp_path)
    assert after(words, "--rdzv-endpoint") == "first:29400"
    assert after(words, "--nproc-per-node") == "gpu"
    check_command(words)
    assert "elastic needs torchrun" in " ".join(capsys.readouterr().err.split())
    incomplete = ["bash", str(DEPLOY / "two_machines.sh"), "first"]
    done = subprocess.run(incomplete, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "the data" in done.stderr, shlex.join(incomplete)
