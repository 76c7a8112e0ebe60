"""`vitrail describe` and `vitrail convert`, as a person and as a program use them."""

import json
from pathlib import Path

import pytest
import torch
from families import family, images_for
from peers import saved, timm_model

import vitrail
from vitrail.checkpoint.load import LAYOUTS
from vitrail.cli import main
from vitrail.config import given


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    vitrail.save(family("vit", image_size=(20, 20)), tmp_path / "w.npz", layout="google")
    return tmp_path / "w.npz"


def test_describe_says_it_in_words(
    npz: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["describe", str(npz)]) == 0
    shown = capsys.readouterr().out
    for words in ("google: the authors' names", "2 layers, width 24, MLP 40, 3 heads of 8", "5x5 patches of 4 pixels"):
        assert words in shown
    assert f"{sum(p.numel() for p in family('vit', image_size=(20, 20)).parameters()):,} in 40 tensors" in shown
    assert main(["describe", str(npz), "--tensors"]) == 0
    assert "Transformer/encoder_norm/scale" in capsys.readouterr().out


def test_describe_says_it_to_programs(npz: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", str(npz), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["layout"] == "google"
    assert document["grid"] == [5, 5]
    assert document["config"]["heads"] == 3
    assert document["odd"] == []
    assert len(document["tensors"]) == 40


def test_a_stranger_is_shown_and_damage_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "x.pth")
    assert main(["describe", str(tmp_path / "x.pth")]) == 0
    assert "not recognised" in capsys.readouterr().out
    (tmp_path / "y.npz").write_bytes(b"PK nonsense")
    assert main(["describe", str(tmp_path / "y.npz")]) == 1
    assert "is damaged" in capsys.readouterr().err
    assert main(["describe", str(tmp_path / "none")]) == 1
    assert "hf:OWNER/NAME" in capsys.readouterr().err


def test_convert_writes_says_and_refuses(npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(npz), str(tmp_path / "hf"), "--layout", "hf"]) == 0
    shown = capsys.readouterr().out
    assert "recognised  google (npz)" in shown
    assert "resamples positions bicubic" in shown
    images = images_for(vitrail.load(npz))
    assert torch.equal(vitrail.load(tmp_path / "hf")(images), vitrail.load(npz)(images))
    assert main(["convert", str(npz), str(tmp_path / "t.safetensors"), "--layout", "timm"]) == 1
    assert "--lossy" in capsys.readouterr().err
    assert not (tmp_path / "t.safetensors").exists()
    assert main(["convert", str(npz), str(tmp_path / "t.safetensors"), "--layout", "timm", "--lossy", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["lost"] == [
        "its activation is gelu-tanh, and the layout means gelu, unless it is a folder, whose config.json says it"
    ]
    assert document["from"] == "google"
    assert main(["convert", str(npz), str(tmp_path / "hf"), "--layout", "hf"]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["convert", str(npz), str(tmp_path / "hf"), "--layout", "hf", "--overwrite"]) == 0
    assert main(["convert", str(npz), str(tmp_path / "x"), "--layout", "flax"]) == 1
    assert "layout must be one of vitrail, google, timm, hf, torchvision" in capsys.readouterr().err
    assert tuple(name for name, layout in LAYOUTS.items() if layout.writes) == given.LAYOUTS


def test_convert_adapts_on_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = saved(timm_model("vit_tiny_patch16_224", depth=1, img_size=(48, 80)), tmp_path / "w.safetensors")
    options = ["--grid", "3x5", "--classes", "4", "--image-size", "64x96", "--channels", "1", "--patch", "32"]
    options += ["--set", "model.heads=3"]
    assert main(["convert", str(source), str(tmp_path / "run"), "--layout", "vitrail", *options]) == 0
    shown = capsys.readouterr().out
    for words in ("3 channels", "from 16 to 32", "from 3x5 to 2x3", "new zero classifier of 4 classes"):
        assert words in shown
    model = vitrail.load(tmp_path / "run")
    assert model(torch.rand(1, 1, 64, 96)).shape == (1, 4)
    settings = (["--set", "heads"], ["--set", "depth=3"], ["--dtype", "int8"])
    for wrong in (["--grid", "3"], ["--image-size", "x"], *settings):
        assert main(["convert", str(source), str(tmp_path / "no"), "--layout", "vitrail", *wrong]) == 1
        assert "error: " in capsys.readouterr().err
