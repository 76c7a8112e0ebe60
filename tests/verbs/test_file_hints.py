"""What a file leaves open of its model is said to every verb in one spelling, and none answers without it."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.cli import main
from vitrail.config import FILE_FIELDS, ViTConfig
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import Model
from vitrail.verbs.opening import FileHints, Preparing

# 4 heads where the width alone would mean 2, and a grid that is no square.
SHAPE: dict[str, Any] = {"depth": 2, "width": 128, "heads": 4, "mlp_width": 57, "activation": "gelu", "classes": 3}
TOLD: dict[str, Any] = {"heads": 4, "grid": (2, 3)}
SAID = ["--set", "model.heads=4", "--set", "model.grid=2x3"]
FAST: dict[str, Any] = {"steps": 1, "batch_size": 4, "workers": 0, "device": "cpu", "quiet": True}
SMALL: dict[str, Any] = {"workers": 0, "device": "cpu", "fresh": True}


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model() -> Model:
    made = vitrail.create("ViT-Ti/7", image_size=(14, 21), **SHAPE).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return made


@pytest.fixture(scope="module")
def file(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("file") / "w.pth"  # in which nothing says more than the tensors
    vitrail.save(model, path, layout="timm")
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for index in range(24):
        pixels = np.random.default_rng(index).integers(0, 256, (14, 21, 3), dtype=np.uint8)
        folder = root / ("train" if index % 2 else "test") / "abc"[index % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    return root


VERBS: dict[str, Callable[..., Any]] = {
    "predict": lambda model, photos, **told: vitrail.predict(model, photos, **told).logits,
    "embed": vitrail.embed,
    "evaluate": lambda model, photos, **told: vitrail.evaluate(model, photos, **SMALL, **told).loss,
    "fewshot": lambda model, photos, **told: (
        vitrail.fewshot(model, photos, shots=[2], probes=["ridge"], **SMALL, **told).cells
    ),
    "verify": lambda model, photos, **told: vitrail.verify(model, photos, **SMALL, **told).curve,
    "inspect": lambda model, photos, **told: vitrail.inspect(model, out=f"page{len(told)}", **told).numbers["subtitle"],
    "finetune": lambda model, photos, **told: vitrail.finetune(photos, model=model, **FAST, **told).metrics,
    "transfer": lambda model, photos, **told: (
        vitrail.transfer(photos, model=model, rates=[0.01], seeds=[0], out=f"out{len(told)}", **FAST, **told)
        .runs[0]
        .accuracy
    ),
    "plan": lambda model, photos, **told: vitrail.plan(model, **told).document()["parameters"],
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "inspect")) for name in VERBS])
def test_every_verb_is_told_and_gives_what_the_model_gives(name: str, model: Model, file: Path, photos: Path) -> None:
    verb = VERBS[name]
    with pytest.raises(CheckpointError, match=r"how many heads share its width of 128, .* Say heads="):
        verb(file, photos)
    told, held = verb(file, photos, **TOLD), verb(model, photos)
    assert str(told) == str(held)


@pytest.mark.parametrize("name", ["predict", "evaluate", "fewshot", "verify", "inspect", "transfer"])
def test_commands_are_told_as_a_setting(
    name: str, file: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [name, str(file), str(photos)] if name != "transfer" else [name, str(photos), "--model", str(file)]
    assert main(command) == 1
    assert "Say --set model.heads=..." in capsys.readouterr().err
    assert main([*command, "--set", "model.heads=4"]) == 1
    assert "with --set model.grid=" in capsys.readouterr().err
    if name == "predict":
        assert main([*command, *SAID]) == 0


def test_describe_is_told_as_a_setting(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", str(file)]) == 0
    assert "how many heads share its width of 128" in capsys.readouterr().out
    assert main(["describe", str(file), *SAID]) == 0
    assert "4 heads of 32" in capsys.readouterr().out


def test_a_file_converted_once_says_it_itself(model: Model, file: Path, photos: Path) -> None:
    assert main(["convert", str(file), "run", "--layout", "vitrail", *SAID]) == 0
    converted = vitrail.load("run").config
    assert isinstance(converted, ViTConfig)
    assert converted.heads == 4
    assert torch.equal(vitrail.predict("run", photos).logits, vitrail.predict(model, photos).logits)


def test_nonsense_and_models_in_memory_are_refused(model: Model, file: Path, photos: Path) -> None:
    with pytest.raises(ConfigError, match=r"the model is in memory, and knows itself; got heads=4\."):
        vitrail.predict(model, photos, heads=4)
    with pytest.raises(ConfigError, match=r"predict has no option 'head'\. Did you mean 'heads'\?"):
        vitrail.predict(file, photos, head=4)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ConfigError, match=r"inspect has no option 'num_heads'\. Did you mean 'heads'\?"):
        vitrail.inspect(file, num_heads=4)  # pyright: ignore[reportCallIssue]
    for grid in ("2x3x4", "ax3", "0x6"):
        assert main(["predict", str(file), str(photos), "--set", f"model.grid={grid}"]) == 1
    assert main(["predict", str(file), str(photos), *SAID, "--set", "grid=2x3"]) == 1
    assert inspect.get_annotations(FileHints).keys() - inspect.get_annotations(Preparing).keys() == {*FILE_FIELDS}
