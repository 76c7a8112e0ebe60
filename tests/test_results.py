"""The page of results, the box and its card say what the kept files say."""

import io
import itertools
import json
import re
import runpy
import shlex
import tarfile
from pathlib import Path
from typing import Any

import pytest

import vitrail
from vitrail.checkpoint.run_folder import BOX, boxed, locate
from vitrail.config import decode
from vitrail.config.given import is_checkpoint
from vitrail.config.recipe import Training
from vitrail.config.recipes import adjust, recipe
from vitrail.errors import CheckpointError
from vitrail.files import verify_sums
from vitrail.train.request import read_request
from vitrail.train.task import open_start

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"


def test_the_page_is_written_from_the_kept_files() -> None:
    made = runpy.run_path(str(RESULTS / "page.py"))
    assert (ROOT / "docs" / "results.md").read_text() == made["page"]()


def kept_recipe(folder: Path, name: str, files: dict[str, Any]) -> None:
    (folder / "recipes").mkdir(exist_ok=True)
    asked = {"recipe": name, "seeds": "0,1", "words": ["E32=7"] if name == "cifar10" else [], "stages": None}
    with tarfile.open(folder / "recipes" / f"{name}.tar.gz", "w:gz") as archive:
        for path, held in {"recipe.json": asked, **files}.items():
            lines = held if isinstance(held, list) else [held]
            data = "\n".join(map(json.dumps, lines)).encode()
            (info := tarfile.TarInfo(path)).size = len(data)
            archive.addfile(info, io.BytesIO(data))


def kept_run(run: str, seed: int, metrics: dict[str, float], **training: Any) -> dict[str, Any]:
    clocks = [1000.0, 1090.0 + 30 * seed]
    log = [{"kind": "train", "images": 300, "time": {"images_per_second": 10.0, "clock": clock}} for clock in clocks]
    asked = {"epochs": 7.0, "steps": None, "image_size": [48, 48], **training}
    folder = f"{run}-{seed}"
    return {
        f"{folder}/log.jsonl": log,
        f"{folder}/summary.json": {"metrics": metrics},
        f"{folder}/training.json": {"training": asked},
    }


def evaluated(value: float) -> dict[str, Any]:
    return {"results": [{"metric": "top5", "value": 1.0}, {"metric": "accuracy", "value": value}]}


def test_what_recipes_kept_becomes_sections_of_the_page(tmp_path: Path) -> None:
    sections = runpy.run_path(str(RESULTS / "recipes.py"))["sections"]
    assert sections(tmp_path) == ""
    files: dict[str, Any] = {}
    for seed, right in ((0, 0.96), (1, 0.97)):
        for run in ("mae", "32", "48"):
            files |= kept_run(run, seed, {})
        files |= kept_run("56", seed, {"test_accuracy": right}, epochs=None, steps=2000)
    kept_recipe(tmp_path, "cifar10", files)
    files = {}
    for seed in range(2):
        members = [{"name": f"/runs/{name}-{seed}", "accuracy": 0.5, "taken": name != "c"} for name in "bac"]
        soup = {"members": members, "accuracy": 0.6, "images": 90}
        files |= {f"{how}-{seed}/soup.json": soup for how in ("greedy", "uniform")}
        files |= {f"{name}-test-{seed}/evaluation.json": evaluated(0.4) for name in "acdef"}
        files[f"b-test-{seed}/evaluation.json"] = evaluated(0.52)
        files[f"uniform-test-{seed}/evaluation.json"] = evaluated(0.53)
        files[f"greedy-test-{seed}/evaluation.json"] = evaluated(0.54 + 0.01 * seed)
    kept_recipe(tmp_path, "soups", files)
    files = {}
    for seed in range(2):
        rounds = [{"taken": 900, "labeled": 1000, "confidence": 0.5, "correct": 0.4}] * 2
        files |= kept_run("alone", seed, {}, epochs=None, steps=50) | {
            f"rounds-{seed}/selftrain.json": {"rounds": rounds}
        }
        files[f"alone-test-{seed}/evaluation.json"] = evaluated(0.2)
        files |= {f"round-{n}-test-{seed}/evaluation.json": evaluated(0.2 + 0.01 * n) for n in (1, 2)}
    kept_recipe(tmp_path, "selftrain", files)
    parts = ("teacher-mae", "teacher", "student-mae", "student")
    kept_recipe(tmp_path, "box", {k: v for part in parts for k, v in kept_run(part, 0, {}).items()})
    (tmp_path / "corruptions").mkdir()
    point = {"error": 0.5, "calibration": 0.03}
    model = {"clean": {"error": 0.2, "calibration": None, "images": 100}, "mean_error": 0.5, "mean_calibration": 0.03}
    models = [{"model": f"runs/{name}", **model, "corruptions": {"gaussian_noise": point}} for name in ("vit", "bit")]
    document = {"corruptions": {"severities": [1, 2], "models": models}}
    (tmp_path / "corruptions" / "evaluation.json").write_text(json.dumps(document))
    lines = sections(tmp_path).splitlines()
    for row in (
        "| labels, 7 epochs at 48 pixels |  | 2.5 min |",
        "| labels, 2,000 steps at 48 pixels | 96.50 ± 0.71 (96.00, 97.00) | 2.5 min |",
        "| the member that the validation images chose | 50.0 ± 0.0 | 52.00 ± 0.00 (52.00, 52.00) |  |",
        "| greedy soup, of 2, 2 members | 60.0 ± 0.0 | 54.50 ± 0.71 (54.00, 55.00) | +2.50 (-3.85 to +8.85) |",
        "| student 2 | 900 of 1,000 | 50.0 ± 0.0 | 40.0 ± 0.0 | 22.00 ± 0.00 (22.00, 22.00) | +2.00 (+2.00 to +2.00) |",
        "| student, labels and the teacher | 7 epochs at 48 pixels | 2.0 min |",
        "| corruption | wrong, vit | wrong, bit | calibration, vit | calibration, bit |",
        "| clean | 20.0 | 20.0 |  |  |",
        "| gaussian noise | 50.0 | 50.0 | 3.0 | 3.0 |",
    ):
        assert row in lines
    assert "recipes.py cifar10 --data SETS --out RUNS --word 'E32=7'" in " ".join(lines)


def test_the_claims_are_written_from_the_kept_studies() -> None:
    made = runpy.run_path(str(RESULTS / "claims.py"))
    page = (ROOT / "docs" / "claims.md").read_text()
    assert page == made["page"]()
    named = {*re.findall(r"\]\((claims/[^)]+)\)", page)}
    kept = {f"claims/{path.name}" for path in (ROOT / "docs" / "claims").iterdir()}
    assert named == kept


def test_the_page_of_performance_is_written_from_the_kept_benches() -> None:
    made = runpy.run_path(str(RESULTS / "performance.py"))
    page = (ROOT / "docs" / "performance.md").read_text()
    assert page == made["page"]()
    named = {*re.findall(r"\]\((performance/[^)]+)\)", page)}
    assert named == {f"performance/{path.name}" for path in (ROOT / "docs" / "performance").iterdir()}
    for name, document in made["kept"]():
        measured = [way for row in document["rows"] for way in row["ways"] if "median" in way]
        assert measured, name
        assert all(way["low"] <= way["median"] <= way["high"] for way in measured)


def test_the_box_opens_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_OFFLINE", "1")
    assert "vitrail-ti8" in boxed()
    model = vitrail.load("vitrail-ti8")
    assert sum(parameter.numel() for parameter in model.parameters()) < 6_000_000
    assert (model.config.image_size, model.config.classes) == ((64, 64), 200)
    assert model.card.class_names is not None
    assert len(model.card.class_names) == 200
    larger = vitrail.load("vitrail-ti8", image_size=128, classes=5)
    assert (larger.config.image_size, larger.config.classes) == ((128, 128), 5)
    assert is_checkpoint("vitrail-ti8")
    assert open_start("vitrail-ti8") is not None


def test_what_is_in_the_box_is_whole_and_small() -> None:
    for name in boxed():
        verify_sums(BOX / name)
        assert (BOX / name / "weights.safetensors").stat().st_size <= 12_000_000


def test_a_name_that_is_not_in_the_box_is_refused_with_those_that_are() -> None:
    with pytest.raises(CheckpointError, match=r"in the box there is vitrail-ti8"):
        locate("vitrail-ti9")


def test_the_card_has_the_numbers_that_were_measured() -> None:
    metrics = vitrail.load("vitrail-ti8").card.metrics
    measured = json.loads((RESULTS / "vitrail-ti8" / "evaluation.json").read_text())
    assert {name: metrics[name] for name in ("accuracy", "top5", "loss")} == {
        name: measured[name] for name in ("accuracy", "top5", "loss")
    }
    card = (BOX / "vitrail-ti8" / "CARD.md").read_text()
    low, high = measured["interval"]
    assert f"{100 * measured['accuracy']:.2f} % of the 10,000 validation images" in card
    assert f"(95 % interval {100 * low:.2f} to {100 * high:.2f}), {100 * measured['top5']:.2f} %" in card
    few = json.loads((RESULTS / "vitrail-ti8" / "fewshot.json").read_text())["results"]
    ridge = [row["value"] for row in few if row["setting"]["probe"] == "ridge" and row["setting"]["l2"] == 1024]
    assert ", ".join(f"{100 * value:.1f}" for value in ridge) in card
    (neighbors,) = [row["value"] for row in few if row["setting"]["probe"] == "knn" and row["setting"]["shots"] == 25]
    assert f"{100 * neighbors:.1f} % with 25 images" in card


def test_the_tour_has_the_pages_numbers() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    section = (ROOT / "docs" / "tour.md").read_text().split("## What it gives")[1].split("\n## ")[0]
    figures = re.findall(r"\d+\.\d+ ± \d+\.\d+|\d+\.\d{2}", section)
    assert figures
    assert [figure for figure in figures if figure not in page] == []


def test_the_tables_beside_others_are_written_from_the_kept_files() -> None:
    made = runpy.run_path(str(RESULTS / "comparison.py"))
    for name in made["PAGES"]:
        assert (ROOT / name).read_text() == made["page"](name)
    assert made["number"](0.00031) == "3.1e-4"
    assert made["number"](0.461) == "0.46"


COMMANDS = {
    path.parent.relative_to(RESULTS).as_posix(): json.loads(path.read_text())
    for path in sorted(RESULTS.rglob("training.json"))
    if re.match("vitrail (pretrain|finetune) ", json.loads(path.read_text()).get("command") or "")
}


@pytest.mark.parametrize("run", COMMANDS)
def test_a_runs_command_still_means_its_training(run: str) -> None:
    _, verb, _, *words = shlex.split(COMMANDS[run]["command"])
    kind = "pretrain" if verb == "pretrain" else "finetune"
    flags = dict(itertools.pairwise(words))
    settings = [after for word, after in itertools.pairwise(words) if word == "--set"]
    if "mae" in flags.values() or "objective=mae" in settings:
        settings.append("decoder_head_width=32")  # as docs/results.md says: it could not be said then
    settings.append("result=last")  # the same
    fields = {"batch_size": flags.get("--batch"), "objective": flags.get("--objective"), "seed": flags["--seed"]}
    settings += [f"{name}={value}" for name, value in fields.items() if value is not None]
    settings.append(f"epochs={float(flags['--epochs']):g}")
    model = "vitrail-ti8" if kind == "finetune" else flags.get("--model")
    request = read_request(kind, "sample", model, flags["--recipe"], settings, {})
    found = adjust(recipe(flags["--recipe"]).training, request.fields)
    assert found == decode(COMMANDS[run]["training"], Training, "training")
