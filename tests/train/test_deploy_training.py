"""What `deploy/` says of training on several machines: run dry, with programs that only say what they were asked."""

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from vitrail.cli import main

DEPLOY = Path(__file__).parents[2] / "deploy"
TOGETHER = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # without it torchrun does not tell those who join where to meet
SLURM = {"SLURM_JOB_NODELIST": "node[3-4]", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "8", "SLURM_JOB_ID": "17"}


def place(folder: Path, torchrun: str) -> dict[str, str]:
    """Put programs into a folder that only say what they were asked; give an environment that finds them."""
    for name, body in {
        "torchrun": torchrun,
        "srun": 'shift; exec "$@"',
        "scontrol": f'[ "$1" = requeue ] && echo "$2" > {folder}/requeued; printf "node3\\nnode4\\n"',
    }.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def dry(*command: str | Path, folder: Path, **environment: str) -> list[str]:
    """Run a script where torchrun writes its words, one a line; give them."""
    found = place(folder, f'printf "%s\\n" "${TOGETHER}" "$@" > {folder}/words')
    done = subprocess.run(["bash", *command], env={**found, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    together, *words = (folder / "words").read_text().splitlines()
    assert together == "1"
    return words


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
    assert asked["signal"] == "B:TERM@120"  # the script hears it, hands it on, and queues the job again
    assert "requeue" in asked
    words = dry(DEPLOY / "slurm.sbatch", folder=tmp_path, DATA="sample", RUN=str(tmp_path / "run"), **SLURM)
    assert (
        after(dry(DEPLOY / "slurm.sbatch", folder=tmp_path, **SLURM), "pretrain")
        == "/shared/imagenet/train-{0000..1023}.tar"
    )
    assert after(words, "--nnodes") == "1:2"
    assert after(words, "--nproc-per-node") == "8"
    assert after(words, "--rdzv-endpoint") == "node3:29400"
    check_command(words)
    assert "elastic needs torchrun" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize("finished", [False, True])
def test_a_job_whose_time_is_over_saves_and_is_queued_again_unless_it_is_finished(
    finished: bool, tmp_path: Path
) -> None:
    (run := tmp_path / "run").mkdir()
    end = f"touch {run}/summary.json; " if finished else ""
    found = place(
        tmp_path,
        f"trap '{end}touch {tmp_path}/saved; exit 1' TERM; touch {tmp_path}/begun; while :; do sleep 0.02; done",
    )
    with subprocess.Popen(["bash", DEPLOY / "slurm.sbatch"], env={**found, **SLURM, "RUN": str(run)}) as job:
        for file, number in (("begun", signal.SIGTERM), ("saved", 0)):
            while not (tmp_path / file).exists():
                assert job.poll() in (None, 1)
                time.sleep(0.01)
            if number:
                job.send_signal(number)
        assert job.wait(30) == 1
    requeued = tmp_path / "requeued"
    assert not requeued.exists() if finished else requeued.read_text() == "17\n"


def test_two_machines_run_the_same_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = dry(DEPLOY / "two_machines.sh", "first", "sample", str(tmp_path / "run"), folder=tmp_path)
    assert after(words, "--rdzv-endpoint") == "first:29400"
    assert after(words, "--nproc-per-node") == "gpu"
    check_command(words)
    assert "elastic needs torchrun" in " ".join(capsys.readouterr().err.split())
    incomplete = ["bash", str(DEPLOY / "two_machines.sh"), "first"]
    done = subprocess.run(incomplete, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "the data" in done.stderr, shlex.join(incomplete)


def manifest() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes_training.yaml").read_text())}


def test_the_job_of_kubernetes_keeps_to_its_schemas() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    assert set(manifest()) == {"Service", "Job"}
    for document in manifest().values():
        validator.validate(document, "1.37", strict=True)


def test_the_pods_of_kubernetes_meet_at_the_first_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service, job = manifest()["Service"], manifest()["Job"]
    name, pod = job["metadata"]["name"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert service["spec"]["publishNotReadyAddresses"] is True  # the others look for it before it is ready
    assert pod["subdomain"] == service["metadata"]["name"]
    said = {each["name"]: each["value"] for each in container["env"] if "value" in each} | {
        "RUN": str(tmp_path / "run")
    }
    assert {each["name"] for each in container["env"]} == {*said, "POD_IP"}
    for index, host in (("0", "1"), ("3", "0")):
        found = dry(
            "-c", *container["args"], folder=tmp_path, **said, JOB_COMPLETION_INDEX=index, POD_IP="10.0.0.7", RANKS="8"
        )
        assert after(found, "--rdzv-conf") == f"is_host={host}"
        assert after(found, "--rdzv-endpoint") == f"{name}-0.{pod['subdomain']}:29400"
        assert after(found, "--local-addr") == "10.0.0.7"
        assert after(found, "--nnodes") == f"1:{job['spec']['parallelism']}"
    assert service["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"] == 29400
    mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    assert set(mounted.values()) == {each["name"] for each in pod["volumes"]}
    assert {"/shared", "/cache", "/tmp", "/dev/shm"} == set(mounted)
    check_command(found)
    assert "elastic needs torchrun" in " ".join(capsys.readouterr().err.split())
