"""`vitrail verify` after a run that kept people out of its training; and `evaluate` and going on with such a run."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.cli import main
from vitrail.models.heads import CosineHead

TINY = ("--model", "ViT-Ti/4", "--set", "model.depth=1", "--set", "model.width=24", "--set", "model.heads=3")
FAST = (*TINY, "--set", "model.mlp_width=29", "--set", "image_size=8x12", "--batch", "16", "--workers", "0")
ARC = ("--recipe", "small", "--set", "mixup=0", "--set", "margin=0.5", "--set", "held_out=0.25", "--quiet")


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight people of five grey images, as PGM files."""
    folder = tmp_path_factory.mktemp("data") / "faces"
    generator = np.random.default_rng(9)
    for person in range(8):
        (folder / f"s{person}").mkdir(parents=True)
        picture = generator.integers(0, 256, (12, 9))
        for number in range(5):
            noisy = (picture + generator.normal(0, 30, (12, 9))).clip(0, 255).astype(np.uint8)
            Image.fromarray(noisy).save(folder / f"s{person}" / f"{number}.pgm")
    return folder


def finetune(faces: Path, out: Path, *more: str) -> int:
    return main(["finetune", str(faces), "--out", str(out), *FAST, *ARC, *more])


@pytest.fixture(scope="module")
def run(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "arc"
    assert finetune(faces, out, "--steps", "4", "--set", "dev=0.2") == 0
    return out


def test_a_run_knows_the_classes_that_it_was_trained_on_alone(run: Path) -> None:
    model = vitrail.load(run)
    assert model.card.class_names is not None
    assert len(model.card.class_names) == model.config.classes == 6
    assert isinstance(model.head, CosineHead)
    assert model.config.cosine_scale == 32
    assert json.loads((run / "resolved.json").read_text())["model"]["cosine_scale"] == 32


def test_strangers_are_measured_and_the_others_counted(
    run: Path, faces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["verify", str(run), str(faces), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "2 people, 10 images; 6 others were trained on and are left out" in shown
    assert "20 pairs of one person, 25 of two" in shown
    for words in ("equal error rate", "accepted at 1.00% false accepts", "area under the curve", "found by the first"):
        assert words in shown
    known = vitrail.load(run).card.class_names or ()
    strangers = {f"s{number}" for number in range(8)} - set(known)
    pair = shown.split("most alike:\n")[1].split()
    assert {name.split("/")[0] for name in pair[1:3]} == strangers
    found = json.loads((tmp_path / "out" / "verification.json").read_text())
    assert found["people"] == 2
    assert (tmp_path / "out" / "roc.csv").read_text().startswith("threshold,far,tar\ninf,0,0\n")


def test_everyone_may_be_measured_as_one_document(run: Path, faces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["verify", str(run), str(faces), "--everyone", "--json", "--gallery", "2", "--no-flip"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["people"], found["trained_on"]) == (8, 0)
    assert found["results"][-1]["setting"] == {"split": "all", "flip": False, "protocol": "gallery", "gallery": 2}


def test_a_model_that_knows_everybody_is_refused_with_what_to_do(
    run: Path, faces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in vitrail.load(run).card.class_names or ():
        shutil.copytree(faces / name, tmp_path / "known" / name)
    assert main(["verify", str(run), str(tmp_path / "known")]) == 1
    said = capsys.readouterr().err.replace("\n", " ")
    assert "trained on all 6 people" in said
    assert "--everyone" in said
    assert main(["verify", str(run), str(tmp_path / "known"), "--split", "test"]) == 1
    assert "no split 'test'. There are: all" in capsys.readouterr().err.replace("\n", " ")


def test_evaluation_is_of_what_the_run_kept_back_of_its_own_classes(
    run: Path, faces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    capsys.readouterr()
    assert main(["evaluate", str(run), str(faces), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["split"] == "those of all that the run kept back, without the 2 classes that it kept out of training"
    assert (found["images"], found["accuracy"]) == (metrics["images"], metrics["accuracy"]) == (6, found["accuracy"])
    assert main(["evaluate", str(run), str(faces), "--split", "all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 30


def test_such_a_run_goes_on_and_refuses_another_share(
    run: Path, faces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert finetune(faces, run, "--steps", "4", "--set", "dev=0.2") == 0
    assert "finished before" in capsys.readouterr().out
    halfway = Path(shutil.copytree(run, tmp_path / "halfway"))
    for file in ("summary.json", "SHA256SUMS", "weights.safetensors", "config.json"):
        (halfway / file).unlink()
    for step in sorted((halfway / "checkpoints").iterdir())[1:]:
        shutil.rmtree(step)
    assert finetune(faces, halfway, "--steps", "4", "--set", "dev=0.2") == 0
    weights = [vitrail.load(folder).get_parameter("head.directions.weight") for folder in (run, halfway)]
    assert weights[0].equal(weights[1])
    assert main(["finetune", str(faces), "--out", str(run), *FAST, *ARC[:-3], "--steps", "4"]) == 1
    assert "training.held_out was 0.25, is 0.0" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["margin=0.5"], "margin needs images of one class each; mixup mix them. Give --set mixup=0."),
        (["margin=4"], "margin is an angle in radians, under 3.14"),
        (["margin=-1"], "margin must be"),
        (["margin=0.5", "mixup=0", "loss=sigmoid"], "Give --set loss=softmax"),
        (["margin=0.5", "mixup=0", "model.cosine_scale=none"], "Leave model.cosine_scale out"),
        (["held_out=1.5"], "held_out must be"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_to_set(
    settings: list[str], message: str, faces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [part for setting in settings for part in ("--set", setting)]
    assert main(["finetune", str(faces), "--out", str(tmp_path / "run"), *FAST, "--steps", "1", *more]) == 1
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_a_scale_of_ones_own_and_a_linear_checkpoint_to_begin_with(faces: Path, tmp_path: Path) -> None:
    assert main(["finetune", str(faces), "--out", str(tmp_path / "linear"), *FAST, "--steps", "1", "--quiet"]) == 0
    begun = list(FAST[len(TINY) + 4 :])
    command = ["finetune", str(faces), "--model", str(tmp_path / "linear"), *begun, "--steps", "1", "--quiet"]
    heads = []
    for seed in ("0", "1"):
        out = tmp_path / f"arc-{seed}"
        more = ["--set", "margin=0.3", "--set", "model.cosine_scale=64", "--seed", seed]
        assert main([*command, "--out", str(out), *more]) == 0
        model = vitrail.load(out)
        assert model.config.cosine_scale == 64
        heads.append(model.get_parameter("head.directions.weight"))
    assert not heads[0].allclose(heads[1], atol=0.05)  # drawn by the run's seed
    again = ["finetune", str(faces), "--model", str(tmp_path / "arc-0"), *begun, "--steps", "1", "--quiet"]
    assert main([*again, "--out", str(tmp_path / "again"), "--set", "margin=0.3"]) == 0
    assert vitrail.load(tmp_path / "again").config.cosine_scale == 64  # the checkpoint's
