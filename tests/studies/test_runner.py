"""A study is run, stopped, gone on with, and refused: its numbers are those of its runs."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitrail
from vitrail.cli import main
from vitrail.config.study import STUDY_NAMES
from vitrail.data.sources.packed import pack
from vitrail.data.sources.synthetic import SyntheticSource
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.studies import minutes, runner
from vitrail.studies.minutes import fitting, makespan
from vitrail.studies.pool import run_jobs
from vitrail.studies.reading import Reading, Table
from vitrail.studies.report import StudyReport
from vitrail.studies.run import STUDIES
from vitrail.studies.runner import Asked, jobs_for, run_study, visible_gpus
from vitrail.studies.scales import SCALES, Scale
from vitrail.studies.sets import KNOWN, Known, check_sets, open_set
from vitrail.studies.table import Cell, Images, Look, Results, Study, seeded
from vitrail.studies.work import Place, with_fresh_positions

SMOKE = SCALES["smoke"]


def cells(scale: Scale) -> list[Cell]:
    first = scale.pretrain({"what": "first"}, scale.networks["ViT"])
    look = Cell(at={"what": "look"}, work=Look(begins=first.name, images=scale.upstream, count=4))
    tuned = {"image_size": 40, "fresh_positions": True}
    return [first, scale.finetune({"what": "tuned"}, first, scale.targets[0], **tuned), look]


def read(results: Results, scale: Scale) -> Reading:
    return Reading(findings=(), tables=[Table("t", ["what"], [[name] for name in results.values("what")])])


SMALL = Study(name="small", title="Small", paper="none", claim="none", cells=cells, read=read, caveat="none")


def asked(out: Path, **changes: Any) -> Asked:
    return Asked(**{"study": SMALL, "scale": SMOKE, "seeds": 1, "out": out, "device": "cpu", **changes})


def numbers(ran: Any) -> dict[str, Any]:
    return {done.cell.name: done.numbers for done in ran.results.done}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_study(asked(tmp_path_factory.mktemp("whole") / "study"))


def test_a_cells_numbers_are_those_of_its_run(whole: Any) -> None:
    out = whole.asked.out
    for name, images in (("first_seed0", SMOKE.upstream), ("tuned_seed0", SMOKE.targets[0])):
        run = out / "cells" / name / "run"
        test = open_set(images, None, None)["test"]
        measured = vitrail.evaluate(run, test, device="cpu").document()
        assert numbers(whole)[name]["accuracy"] == pytest.approx(measured["accuracy"])
        assert numbers(whole)[name]["loss"] == pytest.approx(measured["loss"], rel=1e-5)
        assert numbers(whole)[name]["images"] == 8 * numbers(whole)[name]["steps"]
    few = vitrail.fewshot(
        out / "cells" / "first_seed0" / "run", open_set(SMOKE.few, None, None), shots=2, probes=("ridge",), device="cpu"
    )
    accuracies = few.table.cells[0].accuracy["ridge"]
    assert numbers(whole)["first_seed0"]["fewshot"] == pytest.approx(sum(accuracies) / len(accuracies))


def test_positions_drawn_anew_are_new_and_everything_else_is_begun_with(whole: Any) -> None:
    found = numbers(whole)["look_seed0"]
    assert len(found["distances"]) == whole.results.where(what="first").done[0].cell.work.network.fields["depth"]
    assert 0 < found["uniform_distance"] < 1
    assert vitrail.load(whole.asked.out / "cells" / "tuned_seed0" / "run").config.image_size == (40, 40)
    first = vitrail.load(whole.asked.out / "cells" / "first_seed0" / "run")
    before = {name: tensor.clone() for name, tensor in first.named_parameters()}
    fresh = dict(with_fresh_positions(first, 7).named_parameters())
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, fresh[name])}
    assert changed == {"positions.table.0"}
    assert torch.equal(before["positions.table.0"][0], fresh["positions.table.0"][0])  # the class token's


def test_a_study_that_is_stopped_goes_on_and_comes_to_the_same(whole: Any, tmp_path: Path) -> None:
    asks: list[int] = []

    def stop() -> bool:
        asks.append(1)
        return len(asks) == 2

    with pytest.raises(KeyboardInterrupt):
        run_study(asked(tmp_path / "study"), stop=stop)
    assert len(list((tmp_path / "study" / "cells").glob("*/result.json"))) == 1
    again = run_study(asked(tmp_path / "study"))
    assert numbers(again) == numbers(whole)


@pytest.mark.slow
def test_a_study_that_is_stopped_while_images_are_packed_goes_on(tmp_path: Path) -> None:
    packing = replace(SMOKE, pack=True)
    with pytest.raises(KeyboardInterrupt):
        run_study(asked(tmp_path / "study", scale=packing), stop=lambda: True)
    assert not (tmp_path / "study" / "cells").exists()
    assert run_study(asked(tmp_path / "study", scale=packing)).wall_seconds > 0


def test_what_begins_with_a_run_that_diverged_diverged_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "carry_out", lambda cell, place: {"diverged": "loss is NaN"})
    found = numbers(run_study(asked(tmp_path / "study")))
    assert found["first_seed0"]["diverged"] == "loss is NaN"
    for name in ("tuned_seed0", "look_seed0"):
        assert found[name]["diverged"] == "it begins with first_seed0, which diverged"
    assert found["tuned_seed0"]["parameters"] > 0


def test_a_study_lasts_as_long_as_its_queue(tmp_path: Path) -> None:
    every = cells(SMOKE)
    seconds = {"first": 5.0, "tuned": 3.0, "look": 2.0}
    assert [makespan(every, seconds, jobs) for jobs in (1, 2, 8)] == [10.0, 8.0, 8.0]
    twice = [seeded(cell, seed) for seed in range(2) for cell in every]
    seconds = {f"{name}_seed{seed}": value for name, value in seconds.items() for seed in range(2)}
    assert [makespan(twice, seconds, jobs) for jobs in (1, 2, 8)] == [20.0, 10.0, 8.0]


def test_minutes_make_a_study_as_long_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minutes, "try_kind", lambda given: (2.0, 10.0))  # seconds of a step, and beside the steps
    place = Place(folder=tmp_path, data=None, packed=None, device="cpu")
    every = cells(SMOKE)  # 3 steps, then 2
    run_all = partial(run_jobs, processes=1)
    assert fitting(every, place, 130.0, 1, run_all) == pytest.approx((130 - 20 - 10) / (2 * 5), rel=1e-2)
    assert fitting(every, place, 1.0, 1, run_all) == 4.0  # eight steps of the shortest, however few minutes


def test_a_set_that_is_not_the_one_counted_with_is_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for label in "ab":
            (tmp_path / "oxford-iiit-pet" / split / label).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / "oxford-iiit-pet" / split / label / "x.png")
    with pytest.raises(DataError, match=r"has 2 training images of 2 classes, and the studies count with 3,680 of 37"):
        open_set(Images(name="oxford-iiit-pet", image_size=8), tmp_path, None)


def test_a_set_that_is_packed_at_its_size_alone_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, source = Images(name="cifar10", image_size=16), SyntheticSource(6, 16, seed=0, task="shape")
    monkeypatch.setitem(KNOWN, "cifar10", Known(6, len(source.class_names), ""))
    with pytest.raises(DataError, match="not here: cifar10"):
        check_sets([images], tmp_path)
    for split in ("train", "test"):
        pack(source, tmp_path / "cifar10-16" / split, 16, overwrite=False)
    check_sets([images], tmp_path)
    assert {name: len(each) for name, each in open_set(images, tmp_path, None).items()} == {"train": 6, "test": 6}
    with pytest.raises(DataError, match="not here: cifar10"):
        check_sets([replace(images, image_size=32)], tmp_path)


def test_results_of_another_version_of_a_cell_are_refused(whole: Any, tmp_path: Path) -> None:
    def longer(scale: Scale) -> list[Cell]:
        return [scale.pretrain({"what": "first"}, scale.networks["ViT"], length=2.0)]

    other = Study(name="small", title="Small", paper="none", claim="none", cells=longer, read=read, caveat="none")
    with pytest.raises(CheckpointError, match=r"is the result of another version of this cell. Give another folder"):
        run_study(asked(whole.asked.out, study=other))


def test_a_folder_of_something_else_is_refused(whole: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"begun with seeds=1\. Give another folder"):
        run_study(asked(whole.asked.out, seeds=2))
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="is no folder of a study, and not empty"):
        run_study(asked(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_every_gpu_that_is_visible_takes_cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5c")
    assert visible_gpus() == ["3", "GPU-5c"]
    gpu, paper = (asked(tmp_path, study=STUDIES["positions"], scale=SCALES[name], seeds=3) for name in ("gpu", "paper"))
    assert jobs_for(gpu, gpu.cells, gpus=2) == 16
    assert jobs_for(paper, paper.cells, gpus=2) == 2  # runs that fill a GPU each
    timed = asked(tmp_path, study=STUDIES["speed"], scale=SCALES["gpu"])
    assert jobs_for(timed, timed.cells, gpus=2) == 1


def test_what_is_written_says_what_is_returned(whole: Any) -> None:
    report = StudyReport(ran=whole, command="vitrail study small")
    report.write()
    document = json.loads((report.folder / "study.json").read_text())
    assert document == json.loads(json.dumps(report.document()))
    assert {row["name"]: row["numbers"] for row in document["cells"]} == json.loads(json.dumps(numbers(whole)))
    assert "| first |" in (report.folder / "study.md").read_text()
    assert "vitrail study small" in (report.folder / "report.html").read_text()


def test_the_papers_models_have_the_authors_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = vitrail.study("models", scale="smoke", out=tmp_path / "a", quiet=True)
    assert found.reading.verdict == "confirmed"
    assert main(["study", "models", "--scale", "smoke", "--out", str(tmp_path / "b"), "--json", "--quiet"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cells"] == found.document()["cells"]
    assert {row["at"]["model"]: row["numbers"]["parameters"] for row in said["cells"]}["ViT-B/16"] == 86_567_656


def test_sets_that_are_not_there_are_named_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "oxford-iiit-pet").mkdir()
    with pytest.raises(DataError, match=r"not here: tiny-imagenet \(250 .*\)\. Looked in"):
        vitrail.study("positions", scale="gpu", data=tmp_path, out=tmp_path / "out", device="cpu", quiet=True)
    with pytest.raises(DataError, match=r"oxford-iiit-pet \(37 breeds\); tiny-imagenet .* with --data"):
        vitrail.study("positions", scale="gpu", out=tmp_path / "out", device="cpu", quiet=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["position"], "Did you mean 'positions'?"),
        (["positions", "--scale", "huge"], "scale"),
        (["positions", "--seeds", "0"], "seeds"),
        (["speed", "--minutes", "3"], "trains nothing"),
        (["head", "--minutes", "-1"], "minutes"),
        (["head", "--length", "0"], "length"),
        (["head", "--length", "2", "--minutes", "3"], "give one of them"),
        (["models", "--length", "2"], "trains nothing"),
        (["head", "--length", "2", "--scale", "paper", "--dry-run"], "as long as the paper says"),
        (["speed", "--jobs", "2"], "one cell after the other"),
        (["head", "--dry-run", "--out", "x"], "does not take --out"),
    ],
)
def test_misuse_is_answered_at_once(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", *given]) == 1
    assert said.lower() in capsys.readouterr().err.lower()


def test_a_dry_run_counts_every_cell_and_the_list_names_every_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "scaling", "--scale", "paper", "--dry-run", "--seeds", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["cells"]
    huge = next(row for row in rows if row["at"]["size"] == "ViT-H/14")
    assert huge["exaflops"] == pytest.approx(4262, rel=0.015)
    assert huge["images"] == pytest.approx(14 * 303e6, rel=1e-3)
    for length, steps in (("1", 240), ("0.5", 120)):
        assert main(["study", "head", "--length", length, "--dry-run", "--json"]) == 0
        assert {row["steps"] for row in json.loads(capsys.readouterr().out)["cells"]} == {steps}
    assert main(["study"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in STUDY_NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDY_NAMES)
def test_every_study_runs_at_smoke_and_killed_at_any_moment_comes_to_the_same(name: str, tmp_path: Path) -> None:
    def command(folder: str, *more: str) -> list[str]:
        return [sys.executable, "-m", "vitrail", "study", name, "--scale", "smoke", "--out", folder, "--quiet", *more]

    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(command(str(tmp_path / "whole")), check=True, capture_output=True, env=environment)
    luck = random.Random(name)
    for how in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen(
            command(str(tmp_path / "killed"), "--jobs", str(luck.choice((1, 2)))),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
        )
        time.sleep(luck.uniform(3, 7))
        process.send_signal(how)
        _, said = process.communicate(timeout=120)
        assert b"Traceback" not in said
        assert process.returncode in (0, 130, 143, -how, 128 + how), said
    subprocess.run(command(str(tmp_path / "killed")), check=True, capture_output=True, env=environment)
    one, other = (json.loads((tmp_path / each / "study.json").read_text()) for each in ("whole", "killed"))
    if name == "speed":
        timed = ("images_per_second", "repeats", "batch")
        for row in [*one["cells"], *other["cells"]]:
            assert row["numbers"]["images_per_second"] > 0
            row["numbers"] = {key: value for key, value in row["numbers"].items() if key not in timed}
        one["findings"] = other["findings"] = []
        one["verdict"] = other["verdict"] = ""
    if name == "speedrun":
        for row in [*one["cells"], *other["cells"]]:
            minutes, aside, whole = (row["numbers"].pop(word) for word in ("minutes", "aside", "in_all"))
            assert minutes + aside == pytest.approx(whole)
        one["notes"] = other["notes"] = []
    for key in ("cells", "findings", "notes", "verdict"):
        assert one[key] == other[key]
    for file in ("study.md", "report.html"):
        assert (tmp_path / "killed" / file).stat().st_size > 500
