"""`vitrail finetune`, `pretrain`, `evaluate` and `demo`: what they say, refuse and leave."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vitrail
from vitrail.cli import main
from vitrail.data.open import open_data
from vitrail.data.sources.memory import MemorySource
from vitrail.data.sources.packed import pack
from vitrail.data.transforms.finish import scale
from vitrail.data.transforms.resize import EvalTransform

ROOT = Path(__file__).parents[2]
TINY = ("--model", "ViT-Ti/14", "--set", "model.depth=1", "--set", "model.width=24", "--set", "model.heads=3")
FAST = (*TINY, "--set", "model.mlp_width=29", "--set", "image_size=28", "--batch", "64", "--workers", "0")


def finetune(out: Path, *more: str) -> int:
    return main(["finetune", "sample", "--out", str(out), *FAST, *more])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "one"
    assert finetune(out, "--epochs", "2", "--recipe", "small", "--quiet") == 0
    return out


def test_a_run_says_what_it_chose_and_what_to_type_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert finetune(tmp_path / "run", "--steps", "3") == 0
    shown = capsys.readouterr()
    for words in ("2,000 training images in 10 classes", "10% of them kept back", "the recipe small", "float32 on cpu"):
        assert words in shown.err
    assert "step 3/3" in shown.err
    assert f"vitrail evaluate {tmp_path / 'run'} sample" in shown.out.replace("\n", "")
    assert "of 1,000 test images" in shown.out


def test_a_run_leaves_a_model_that_evaluates_alike(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = json.loads((finished / "summary.json").read_text())["metrics"]
    capsys.readouterr()
    assert main(["evaluate", str(finished), "sample", "--json", "--batch", "37"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["split"] == "test"
    assert found["images"] == 1000
    assert found["accuracy"] == said["test_accuracy"]
    model = vitrail.load(finished)
    source = open_data("sample")["test"]
    assert model.card.class_names == source.class_names
    take = EvalTransform((28, 28), model.card.preprocessing)
    images = np.stack([take(source.read(index), index, 0).numpy() for index in range(50)])
    import torch

    answers = model(scale(torch.from_numpy(images), model.card.preprocessing)).argmax(dim=1).numpy()
    right = (answers == source.labels[:50]).mean()
    assert abs(right - found["accuracy"]) < 0.25  # a part of the whole
    assert right > 0.2  # learned something in two epochs; chance is 0.1


def test_a_finished_run_says_so_and_computes_nothing(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (finished / "weights.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    assert finetune(finished, "--epochs", "2", "--recipe", "small") == 0
    assert "finished before" in capsys.readouterr().out
    assert (finished / "weights.safetensors").stat().st_mtime_ns == before


def test_the_result_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert finetune(tmp_path / "run", "--steps", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["finished"] is True
    assert found["step"] == found["steps"] == 2
    assert 0 <= found["metrics"]["test_accuracy"] <= 1


def test_a_run_goes_on_from_its_own_result(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["finetune", "sample", "--model", str(finished), "--out", str(tmp_path / "two"), "--steps", "2"]
    assert main([*arguments, "--batch", "64", "--workers", "0", "--json"]) == 0
    shown = capsys.readouterr()
    assert "the recipe finetune/small, as the model is small and the images are few" in shown.err
    assert json.loads(shown.out)["finished"] is True
    resolved = json.loads((tmp_path / "two" / "training.json").read_text())["training"]
    assert (resolved["optimizer"]["kind"], resolved["layer_decay"], resolved["clip_norm"]) == ("adam", 0.75, 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no data at 'nowhere'"),
        (["sample", "--recipe", "scrach"], "Did you mean 'scratch'?"),
        (["sample", "--set", "rat=1"], "Did you mean 'learning_rate'?"),
        (["sample", "--set", "optimiser.decay=x"], "must be a number"),
        (["sample", "--steps", "3", "--epochs", "2"], "given twice"),
        (["sample", "--steps", "3", "--set", "steps=2"], "given twice"),
        (["sample", "--model", "ViT-Q/3"], "unknown model"),
        (["sample", "--model", "nofile.npz"], "there is no file nofile.npz"),
        (["sample", "--set", "model.dept=3"], "Did you mean 'depth'?"),
        (["sample", "--recipe", "i1k"], "needs a model"),
        (["sample", "--set", "image_size=30", "--steps", "1"], "multiples of the patch side 8"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_computed(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["finetune", *arguments]) == 1
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.rglob("log.jsonl"))


@pytest.mark.usefixtures("untyped")
def test_an_unknown_precision_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert finetune(tmp_path / "run", "--precision", "fp8") == 1
    assert "precision must be one of 'auto', 'float32', 'bfloat16'; got 'fp8'" in capsys.readouterr().err


def test_a_mistake_can_be_corrected_under_the_same_name(tmp_path: Path) -> None:
    assert finetune(tmp_path / "run", "--steps", "2", "--set", "image_size=30") == 1
    assert finetune(tmp_path / "run", "--steps", "2", "--quiet") == 0


def test_other_classes_than_the_models_are_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(finished), "synthetic"]) == 1
    assert "the model's classes are not the data's" in capsys.readouterr().err


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert finetune(tmp_path / "run", "--steps", "4", "--set", "log_every=2", "--tensorboard", "--quiet") == 0
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"]
    found = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert [step for step, _ in found] == [step for step, _ in losses] == [2, 4]
    np.testing.assert_allclose([value for _, value in found], [value for _, value in losses], rtol=1e-6)


@pytest.mark.slow
def test_the_demo_trains_and_says_where_the_result_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["demo", "--out", str(tmp_path / "demo"), "--epochs", "0.1"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("finetuned", "scratch"):
        assert found[name]["out"] == str(tmp_path / "demo" / name)
        assert (found[name]["images"], found[name]["steps"]) == (1000, 3)
    one, other = (vitrail.load(tmp_path / "demo" / name).config for name in ("finetuned", "scratch"))
    assert one == other
    assert found["difference"] == found["finetuned"]["accuracy"] - found["scratch"]["accuracy"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert f"Pre-training is worth {100 * found['difference']:.1f} points here" in shown
    assert shown.count("vitrail") >= 3


@pytest.mark.slow
def test_the_demo_learns_in_two_minutes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vitrail", "demo", "--out", str(tmp_path / "demo"), "--json", "--quiet"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found = json.loads(run.stdout)
    assert found["finetuned"]["accuracy"] > 0.83
    assert found["difference"] > 0.08


@pytest.mark.slow
def test_settings_of_any_optimizer_wait_for_the_recipe_that_is_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitrail.save(vitrail.create("ViT-B/16", depth=3, image_size=16), tmp_path / "large")
    images = MemorySource(np.zeros((20, 16, 16, 3), dtype=np.uint8), np.arange(20) % 2, ("ant", "bee"))
    pack(images, tmp_path / "few", 16, overwrite=False)
    command = ["finetune", str(tmp_path / "few"), "--model", str(tmp_path / "large"), "--steps", "1", "--batch", "2"]
    command += ["--set", "image_size=16", "--workers", "0", "--out"]
    for name, setting in (("a", "momentum=0.8"), ("b", "optimiser=sgd")):
        assert main([*command, str(tmp_path / name), "--set", setting]) == 0
        found = json.loads((tmp_path / name / "resolved.json").read_text())["training"]["optimizer"]
        assert (found["kind"], found["learning_rate"]) == ("sgd", 0.01)  # as it says that it chose
        assert "SGD at 0.01" in " ".join(capsys.readouterr().err.split())
    assert main([*command, str(tmp_path / "c"), "--set", "betas=0.9,0.95"]) == 1
    assert "'betas' is a field of optimizer=adam or muon; here optimizer is sgd" in " ".join(
        capsys.readouterr().err.split()
    )
