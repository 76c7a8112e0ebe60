"""`vitrail vtab` on stand-ins for a few tasks, in folders and in parquet files."""

import json
from pathlib import Path
from typing import Any

import pytest
from sweeps import NAMES, Noted

from vitrail.cli import main
from vitrail.evaluation.results import read_results
from vitrail.evaluation.vtab import TASKS

arrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")
SMALL = ("model.depth=1", "model.width=24", "model.heads=3", "model.mlp_width=29", "image_size=8")
SETTINGS = [part for setting in SMALL for part in ("--set", setting)]
FEW = ["--model", "ViT-Ti/4", *SETTINGS, "--steps", "1", "--batch", "64", "--workers", "0", "--device", "cpu"]


def coded(source: Noted, index: int) -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(source.read(index)).save(file, "PNG")
    return file.getvalue()


def in_folders(place: Path, split: str, count: int) -> None:
    source = Noted(f"{place.name} {split}", count)
    for index, label in enumerate(source.labels):
        folder = place / split / NAMES[label]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index}.png").write_bytes(coded(source, index))


def in_parquet(place: Path, split: str, count: int) -> None:
    source = Noted(f"{place.name} {split}", count)
    place.mkdir(parents=True, exist_ok=True)
    pair = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    images = arrow.array([{"bytes": coded(source, index), "path": None} for index in range(count)], pair)
    table = arrow.table({"image": images, "label": arrow.array(source.labels.tolist())})
    parquet.write_table(table, place / f"{split}-00000-of-00001.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("vtab")
    for split, count in (("train", 1013), ("test", 17)):
        in_folders(root / "eurosat", split, count)
    for split, count in (("train800", 800), ("val200", 200), ("test", 11)):
        in_parquet(root / "pets", split, count)
    for split, count in (("train", 35), ("val", 15), ("test", 9)):
        in_folders(root / "dmlab", split, count)
    return root


def vtab(folder: Path, out: Path, *more: str) -> int:
    return main(["vtab", str(folder), "--out", str(out), *FEW, *more])


def test_the_tasks_that_are_there_run_and_the_others_are_listed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vtab(folder, tmp_path / "out") == 0
    shown = capsys.readouterr()
    assert "16 of 19 tasks are not there and left out" in shown.err
    for task in TASKS:
        there = task.key in ("pets", "eurosat", "dmlab")
        assert (f"{folder / task.key}  ({task.title}, {task.classes} classes)" in shown.err) != there
    assert "Each holds train/CLASS/*.jpg and test/CLASS/*.jpg, or train.parquet" in shown.err
    assert shown.err.index("left out") < shown.err.index("not the paper's setting") < shown.err.index("Pets (1 of 3)")
    rows = read_results(tmp_path / "out" / "vtab.json")
    found = {row.data: (row.images, row.setting["training_images"]) for row in rows}
    assert found == {"pets": (11, 1000), "eurosat": (17, 1000), "dmlab": (9, 50)}
    for words in ("mean of 1 of 7", "mean of 1 of 4", "mean of 1 of 8", "mean of 3 of 19"):
        assert words in shown.out
    for row in rows:
        assert f"{100 * row.value:.1f}" in shown.out
    assert "Not the paper's setting: steps 1 instead of 2500; batch_size 64 instead of 512; image_size 8x8" in shown.out
    assert "dmlab: 50 training images instead of 1,000" in shown.out
    assert max(map(len, shown.out.split("Not the paper's")[0].splitlines())) <= 80


def test_selecting_leaves_the_test_images_alone_and_measures_200(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vtab(folder, tmp_path / "out", "--select", "--tasks", "pets,specialized", "--json", "--seeds", "0,1") == 0
    document = json.loads(capsys.readouterr().out)
    assert [(row["data"], row["images"], row["seeds"]) for row in document["results"]] == [
        ("pets", 200, [0, 1]),
        ("eurosat", 200, [0, 1]),
    ]
    assert {row["setting"]["measured_on"] for row in document["results"]} == {"val"}
    assert {row["setting"]["training_images"] for row in document["results"]} == {800}
    for name in ("pets", "eurosat"):
        summary = json.loads((tmp_path / "out" / name / "select-1" / "summary.json").read_text())
        assert not [metric for metric in summary["metrics"] if metric.startswith("test")]
    assert document == json.loads((tmp_path / "out" / "select.json").read_text())


def test_the_same_again_computes_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("--tasks", "dmlab", "--quiet")
    assert vtab(folder, tmp_path / "out", *command) == 0
    first, weights = capsys.readouterr().out, tmp_path / "out" / "dmlab" / "seed-0" / "weights.safetensors"
    before = weights.stat().st_mtime_ns
    assert vtab(folder, tmp_path / "out", *command) == 0
    assert capsys.readouterr().out == first
    assert weights.stat().st_mtime_ns == before
    assert vtab(folder, tmp_path / "out", *command, "--set", "clip=2") == 1
    assert "was begun otherwise: training.clip_norm was 1.0, is 2.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "svhn,cifar100"], "has none of the 2 tasks: "),
        (["--tasks", "svhn"], "(SVHN, 10 classes). Each holds train/CLASS/*.jpg"),
        (["--tasks", "pet"], "no task or group 'pet'. Did you mean 'pets'?"),
        (["--set", "dev=0.2"], "validation_share is not taken here"),
        (["--set", "seed=2"], "Give seeds"),
        (["--set", "rat=2"], "Did you mean 'learning_rate'?"),
        (["--seeds", "one"], "--seeds must be numbers"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_computed(
    arguments: list[str], message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vtab(folder, tmp_path / "out", *arguments) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
