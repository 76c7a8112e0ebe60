"""What there is to begin with and to train by: the box, runs and weights on disk, fresh models, recipes."""

import json
from pathlib import Path

import pytest
import torch

import vitrail
from vitrail.checkpoint.run_folder import write_documents
from vitrail.cli import main
from vitrail.config import ViTConfig, parse
from vitrail.config.recipes import recipe_names
from vitrail.errors import ConfigError


def test_models_are_listed_from_the_box_from_disk_and_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = vitrail.create("ViT-Ti/8", image_size=(16, 24), classes=5, depth=1, width=24, heads=3, mlp_width=29)
    vitrail.save(model, "mine")
    vitrail.save(model, "weights.npz", layout="google")
    write_documents(tmp_path / "mine", {"metrics.json": {"accuracy": 0.25, "test_accuracy": 0.5}})
    (tmp_path / "runs" / "begun").mkdir(parents=True)
    write_documents(tmp_path / "runs" / "begun", {"training.json": {"model": "ViT-Ti/8"}})
    (tmp_path / "runs" / "others").mkdir()
    write_documents(tmp_path / "runs" / "others", {"config.json": {"model_type": "bert"}})
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    found = {each.name: each for each in vitrail.list_models().models}
    assert [name for name, each in found.items() if each.kind != "fresh"] == [
        "vitrail-ti8",
        "mine",
        "weights.npz",
        "runs/begun",
    ]
    assert [name for name, each in found.items() if each.kind == "fresh"] == [*vitrail.names()[:-1]]
    count = sum(parameter.numel() for parameter in model.parameters())
    mine = found["mine"]
    assert (mine.parameters, mine.image_size, mine.classes, mine.accuracy) == (count, (16, 24), 5, 0.5)
    assert not found["runs/begun"].finished
    assert (found["vitrail-ti8"].classes, found["vitrail-ti8"].image_size) == (200, (64, 64))
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert "a run of yours, not finished" in shown
    assert shown.count("vitrail-ti8") == 1
    assert main(["models", "runs", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out) if row["kind"] == "run"] == ["runs/begun"]


def test_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(recipe_names())
    assert (rows["i1k"]["epochs"], rows["i1k"]["learning_rate"], rows["i1k"]["batch_size"]) == (300, 3e-3, 4096)
    assert rows["finetune/pets"]["steps"] == 500
    assert "300 epochs" in str(vitrail.list_recipes())


def test_a_model_like_the_one_in_the_box_is_made_fresh() -> None:
    assert vitrail.names()[-1] == "vitrail-ti8"
    trained, fresh = vitrail.load("vitrail-ti8"), vitrail.create("vitrail-ti8", seed=3)
    assert fresh.config == trained.config == parse("vitrail-ti8")
    assert fresh.card == vitrail.create("ViT-Ti/16", depth=1).card
    drawn, learned = (model.state_dict()["embedding.projection.weight"] for model in (fresh, trained))
    assert not torch.equal(drawn, learned)
    assert fresh.state_dict()["head.weight"].count_nonzero() == 0
    other = vitrail.create("vitrail-ti8", classes=10, image_size=(32, 48), depth=2, positions="learned").config
    assert other == parse("vitrail-ti8", {"classes": 10, "image_size": (32, 48), "depth": 2, "positions": "learned"})
    assert isinstance(other, ViTConfig)
    assert (other.classes, other.image_size, other.depth, other.width) == (10, (32, 48), 2, 256)
    assert vitrail.create("vitrail-ti8", classes=None, device="meta").config.classes is None
    with pytest.raises(ConfigError, match=r"unknown model 'vitrail-ti9'\. Did you mean 'vitrail-ti8'"):
        vitrail.create("vitrail-ti9")
