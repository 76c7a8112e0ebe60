"""Probes of a run's features: the numbers of its checkpoints, on any number of processes, and never a part of it."""

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killed_runs import BROKEN, EACH, EVALUATE, STEPS, TEST, Runs, arguments, log, result, steps_of

import vitrail
from vitrail.cli import main
from vitrail.config.recipe import Adam, Training
from vitrail.data.sources.memory import MemorySource
from vitrail.models import Model
from vitrail.runtime.inference import InferenceOptions
from vitrail.runtime.machine import Group
from vitrail.runtime.reporter import SILENT
from vitrail.train.run import run
from vitrail.train.task import Task
from vitrail.verbs.training import open_probe

EVERY = 4


def probing(images: Path, out: Path, *more: str, **changed: object) -> list[str]:
    return arguments(images, out, "--probe", str(images), *more, changed={"probe_every": EVERY, "keep": 9, **changed})


def probes(out: Path) -> list[dict[str, Any]]:
    return [line for line in log(out) if line["kind"] == "probe"]


@pytest.fixture(scope="session")
def probed(runs: Runs, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption that was probed."""
    out = tmp_path_factory.mktemp("probed") / "run"
    ended = runs(probing(images, out, save_every=EVERY))
    assert ended.status == 0, ended
    known = 3 * EACH + 3 + BROKEN
    said = " ".join(ended.said.split())
    assert f"features are probed with {known} and {3 * TEST + 3} images of {images}: learned from train" in said
    last = probes(out)[-1]
    words = f"features {last['fewshot_10']:.2%} from 10 images a class, {last['linear']:.2%} from all"
    assert f"step 12: {words}, of {3 * TEST + 3} probe images" in said
    return out


def test_a_probe_changes_nothing_else(probed: Path, wanted: dict[str, Any]) -> None:
    found = result(probed)
    assert [line["step"] for line in probes(probed)] == [4, 8, 12]
    assert {**found, "log": [line for line in found["log"] if line["kind"] != "probe"]} == wanted


def stirring(model: Model, options: InferenceOptions) -> dict[str, float]:
    """Probe with nothing, and leave torch's generator elsewhere."""
    torch.manual_seed(int(torch.randint(1 << 30, ())))
    return {"linear": 0.0}


def test_a_probe_changes_nothing_that_attention_drops_whatever_it_draws(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3), dtype=np.uint8)
    splits = {"train": MemorySource(pixels, np.arange(24) % 2, ("ant", "bee"))}
    small = {"depth": 1, "width": 24, "heads": 3, "mlp_width": 29, "attention_dropout": 0.3}
    training = Training(steps=6, batch_size=8, image_size=(8, 8), optimizer=Adam(), probe_every=2)
    task = Task(
        command="",
        data="",
        splits=splits,
        model="ViT-Ti/4",
        training=training,
        out=tmp_path,
        changes=small,
        device="cpu",
    )
    found = []
    for name, probe in (("plain", None), ("probed", stirring)):
        torch.manual_seed(3)
        run(replace(task, out=tmp_path / name), SILENT, probe)
        found.append((tmp_path / name / "weights.safetensors").read_bytes())
    assert [line["step"] for line in probes(tmp_path / "probed")] == [2, 4, 6]
    assert found[0] == found[1]


@pytest.mark.slow
def test_its_numbers_are_those_that_fewshot_gives_of_the_checkpoint(
    probed: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {line["linear"] for line in probes(probed)} != {probes(probed)[0]["linear"]}
    for line in probes(probed):
        place = probed / "checkpoints" / f"step-{line['step']:09}"
        capsys.readouterr()
        more = ["--shots", "10,all", "--limit", "0.1", "--device", "cpu", "--workers", "0", "--json", "--fresh"]
        assert main(["fewshot", str(place), str(images), *more]) == 0
        rows = json.loads(capsys.readouterr().out)["results"]
        values = {(row["setting"]["shots"], row["setting"]["probe"], row["setting"].get("l2")): row for row in rows}
        assert line["fewshot_10"] == pytest.approx(values[10, "ridge", 1024.0]["value"])
        assert line["linear"] == pytest.approx(values["all", "logistic", 1e-3]["value"])
        assert line["images"] == values[10, "ridge", 1024.0]["images"]


def test_a_probed_run_that_was_stopped_ends_with_the_same_log(
    runs: Runs, images: Path, probed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = probing(images, out, save_every=EVERY)
    assert runs(command, trick=["signal", 8, signal.SIGTERM]).status == 130
    assert runs(command).status == 0
    assert result(out) == result(probed)


def test_what_is_probed_with_may_change_when_a_run_goes_on(
    runs: Runs, images: Path, stopped: Path, wanted: dict[str, Any], tmp_path: Path
) -> None:
    ended = runs(arguments(images, stopped, "--probe", str(images / "test"), changed={"probe_every": 11}))
    assert ended.status == 0, ended
    assert "learned from 80 % of the images, tested on the other 20 %" in " ".join(ended.said.split())
    assert [line["step"] for line in probes(stopped)] == [11, 12]
    found = result(stopped)
    assert {**found, "log": [line for line in found["log"] if line["kind"] != "probe"]} == wanted


def test_images_that_turn_out_to_be_bad_do_not_end_the_run(
    runs: Runs, images: Path, wanted: dict[str, Any], tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    for name in ("ant", "bee"):
        (bad / name).mkdir(parents=True)
        for number in range(8):
            (bad / name / f"{number}.png").write_bytes(f"no image {name} {number}".encode())
    ended = runs(arguments(images, tmp_path / "run", "--probe", str(bad)))
    assert ended.status == 0, ended
    assert f"step {EVALUATE} was not probed:" in " ".join(ended.said.split())  # as often as it is evaluated
    assert f"step {STEPS} was not probed:" in " ".join(ended.said.split())
    assert result(tmp_path / "run") == wanted


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_processes_probe_the_weights_that_they_save(
    parallel: str, runs: Runs, images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    ended = runs.all(probing(images, out, parallel=parallel, micro_batch=5), ranks=2)
    assert [one.status for one in ended] == [0, 0], ended
    assert [line["step"] for line in probes(out)] == [4, 8, 12]
    probe, _ = open_probe(str(images), allow_pipe=False)
    assert probe is not None
    group = Group(device=torch.device("cpu"))
    found = probe(
        vitrail.load(out / "checkpoints/step-000000012"),
        InferenceOptions(group=group, batch_size=4, bad_image_limit=0.1, cache=False),
    )
    assert {name: probes(out)[-1][name] for name in found} == pytest.approx(dict(found))
    assert steps_of(out)[-1] == 12


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        ("nowhere", r"features are probed with labelled images. nowhere: there is no data at 'nowhere'"),
        ("loose", r"expected a folder for each class with images in it"),
        ("alone", r"there is one class alone: nothing to tell apart. Give images of two classes or more"),
    ],
)
def test_images_that_cannot_be_probed_with_are_refused_before_anything_is_computed(
    probe: str, message: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, path in enumerate(sorted((images / "test" / "ant").iterdir())):
        for folder in (tmp_path / "loose", tmp_path / "alone" / "ant"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.png").write_bytes(path.read_bytes())
    place = probe if probe == "nowhere" else str(tmp_path / probe)
    assert main(arguments(images, tmp_path / "run", "--probe", place)) == 1
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
