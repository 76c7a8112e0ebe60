"""What a run was trained on is not what it is measured on by accident: images kept back, classes kept out, changes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluating import NAMES, Pictures, write_folder
from PIL import Image

from vitrail.cli import main

TINY = ("--model", "ViT-Ti/4", "--set", "model.depth=1", "--set", "model.width=24", "--set", "model.heads=3")
FAST = (*TINY, "--set", "model.mlp_width=29", "--set", "image_size=8", "--recipe", "small", "--batch", "16")
IMAGES = 70


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images in no split, and runs that kept different shares of them back, or none."""
    root = tmp_path_factory.mktemp("home")
    write_folder(root / "images", Pictures(IMAGES))
    for name, dev in (("some", 0.2), ("more", 0.4), ("none", 0.0)):
        assert finetune(root / "images", root / name, "--set", f"dev={dev}") == 0
    assert finetune(root / "images", root / "people", "--set", "dev=0", "--set", "held_out=0.3") == 0
    return root


def finetune(data: Path, out: Path, *more: str) -> int:
    return main(["finetune", str(data), "--out", str(out), *FAST, "--steps", "2", "--quiet", *more])


def asked(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[dict[str, Any], str]:
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0
    shown = capsys.readouterr()
    return json.loads(shown.out), " ".join(shown.err.split())


def kept(run: Path) -> set[int]:
    with np.load(run / "split.npz") as cut:
        return set(cut["dev"].tolist())


def test_two_runs_are_compared_on_what_both_kept_back(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = kept(home / "some") & kept(home / "more")
    found, said = asked(capsys, "evaluate", home / "some", home / "images", "--against", home / "more")
    assert found["images"] == len(both) > 0
    assert "two runs kept back" in found["split"]
    assert "may have been trained" not in said


def test_a_run_that_kept_nothing_back_is_compared_with_a_warning(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = asked(capsys, "evaluate", home / "some", home / "images", "--against", home / "none")
    assert found["images"] == len(kept(home / "some"))
    assert f"{home / 'none'} may have been trained on these images, which it did not keep back" in said


def test_images_that_were_added_make_all_of_them_doubtful(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "images"
    shutil.copytree(home / "images", data)
    Image.fromarray(np.zeros((8, 12, 3), np.uint8)).save(data / "a" / "added.png")
    found, said = asked(capsys, "evaluate", home / "some", data)
    assert found["images"] == IMAGES + 1
    assert f"{home / 'some'} may have been trained on these images" in said


def test_a_checkpoint_of_a_run_is_measured_as_the_run_is(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint, *_) = sorted((home / "some" / "checkpoints").iterdir())
    found, _ = asked(capsys, "evaluate", checkpoint, home / "images")
    assert found["images"] == len(kept(home / "some"))


def test_few_shots_learn_from_what_the_run_was_trained_on(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = asked(capsys, "fewshot", home / "some", home / "images", "--shots", "1", "--probes", "ridge")
    assert found["split"].endswith("tested on those that it kept back")
    assert {row["images"] for row in found["results"]} == {len(kept(home / "some"))}
    found, _ = asked(capsys, "fewshot", home / "none", home / "images", "--shots", "1", "--probes", "ridge")
    assert found["split"].endswith("which the model was trained on too")


def test_classes_kept_out_are_left_out_by_their_names(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = json.loads((home / "people" / "classes.json").read_text())["names"]
    assert len(trained) == 5
    found, _ = asked(capsys, "evaluate", home / "people", home / "images")
    assert "without the 2 classes that it kept out of training" in found["split"]
    alone = tmp_path / "alone"
    for name in trained:
        shutil.copytree(home / "images" / name, alone / name)
    again, _ = asked(capsys, "evaluate", home / "people", alone)
    assert (again["images"], again["accuracy"]) == (found["images"], found["accuracy"])
    mapping = tmp_path / "map.json"
    mapping.write_text(json.dumps(dict.fromkeys(NAMES, 0)))
    mapped, _ = asked(capsys, "evaluate", home / "people", home / "images", "--mapping", mapping)
    assert mapped["images"] == IMAGES


def test_people_of_an_earlier_training_are_no_strangers(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = json.loads((home / "people" / "classes.json").read_text())["names"]
    others = write_folder(tmp_path / "others", Pictures(20, ("x", "y")))
    command = ["finetune", str(others), "--model", str(home / "people"), "--out", str(tmp_path / "again")]
    assert main([*command, "--steps", "1", "--batch", "8", "--quiet"]) == 0
    assert json.loads((tmp_path / "again" / "classes.json").read_text())["seen"] == sorted(trained)
    found, _ = asked(capsys, "verify", tmp_path / "again", home / "images")
    assert (found["people"], found["trained_on"]) == (2, 5)


def test_a_run_refuses_weights_and_images_that_have_changed(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, begun = tmp_path / "images", tmp_path / "begun"
    shutil.copytree(home / "images", data)
    shutil.copytree(home / "some", begun)
    command = ["finetune", str(data), "--model", str(begun), "--out", str(tmp_path / "run"), "--steps", "1", "--quiet"]
    assert main(command) == 0
    assert main(command) == 0  # as it was
    shutil.rmtree(begun)
    shutil.copytree(home / "more", begun)
    capsys.readouterr()
    assert main(command) == 1
    assert f"the weights of {begun} have changed" in " ".join(capsys.readouterr().err.split())
    shutil.rmtree(begun)
    shutil.copytree(home / "some", begun)
    (path, *_) = sorted((data / "b").iterdir())
    Image.fromarray(np.full((8, 12, 3), 7, np.uint8)).save(path)
    assert main(command) == 1
    assert "the images of all have changed" in " ".join(capsys.readouterr().err.split())
