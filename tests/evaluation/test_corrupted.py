"""Evaluation under corruptions beside plain counting, image by image; kept on disk; several models side by side."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluating import NAMES, Pictures, guessing, write_folder

import vitrail
from vitrail.cli import main
from vitrail.data.corruptions import NAMES as CORRUPTIONS, corrupt
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import ConfigError
from vitrail.evaluation import corrupted
from vitrail.evaluation.page import measured_of
from vitrail.figures import size_of_png
from vitrail.models import Model, create
from vitrail.ops.metrics import calibration

TEST = Pictures(24, seed=6)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    write_folder(tmp_path / "images", TEST)
    vitrail.save(guessing(names=NAMES), tmp_path / "vit")
    bit = create("BiT-R50x1", units=(1, 1), width=32, image_size=32, classes=7)
    with torch.no_grad():
        for parameter in bit.head.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(3))
    bit.card = guessing(names=NAMES).card
    vitrail.save(bit, tmp_path / "bit")
    return tmp_path


def counted(model: Model, name: str, severity: int) -> tuple[float, float]:
    """Error and calibration error, an image at a time."""
    wrong, sure = [], []
    for index in range(len(TEST)):
        image = torch.from_numpy(MemorySource.read(TEST, index))
        sides = model.config.image_size
        if tuple(image.shape[:2]) != sides:
            image = model.preprocess(image.numpy())[0].mul(127.5).add(127.5).round().to(torch.uint8).permute(1, 2, 0)
        shaken = corrupt(image.numpy(), name, severity).astype(np.float32)
        with torch.inference_mode():
            shares = model(torch.from_numpy((shaken - 127.5) / 127.5).permute(2, 0, 1)[None])[0].softmax(dim=0)
        wrong.append(int(shares.argmax()) != int(TEST.labels[index]))
        sure.append(float(shares.max()))
    return float(np.mean(wrong)), calibration(np.array(sure), ~np.array(wrong)).error


@pytest.mark.slow
def test_errors_are_those_of_plain_counting_for_several_models_side_by_side(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(home / "vit"), str(home / "images"), "--corruptions", "--severities", "2,5"]
    words += ["--beside", str(home / "bit"), "--quiet"]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["corruptions"]
    assert said["severities"] == [2, 5]
    assert [model["model"] for model in said["models"]] == [str(home / "vit"), str(home / "bit")]
    for document in said["models"]:
        model = vitrail.load(document["model"])
        assert list(document["corruptions"]) == list(CORRUPTIONS)
        for name in ("contrast", "shot_noise", "jpeg_compression"):
            part = document["corruptions"][name]
            wanted = [counted(model, name, severity) for severity in (2, 5)]
            assert [(row["error"], row["calibration"]) for row in part["severities"]] == [
                pytest.approx(each, abs=1e-4) for each in wanted
            ]
            assert part["error"] == pytest.approx(np.mean([error for error, _ in wanted]))
        errors = [part["error"] for part in document["corruptions"].values()]
        assert document["mean_error"] == pytest.approx(np.mean(errors))
        assert document["clean"]["error"] == pytest.approx(1 - vitrail.evaluate(model, home / "images").accuracy)
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "mean of the corruptions" in shown
    assert all(name in shown for name in CORRUPTIONS)


def test_what_was_measured_is_kept_and_fresh_measures_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrupted, "NAMES", CORRUPTIONS[5:8])

    def measure(**options: Any) -> Any:
        found = vitrail.evaluate(home / "vit", home / "images", corruptions=True, severities=[1], **options)
        return found.document()["corruptions"]

    first, calls = measure(), []
    whole = corrupted.answers
    monkeypatch.setattr(corrupted, "answers", lambda *given, **more: calls.append(1) or whole(*given, **more))
    assert measure() == first
    assert not calls
    assert measure(fresh=True) == first
    assert len(calls) == 3
    model = vitrail.load(home / "vit")
    model.card = replace(model.card, temperature=0.5)
    warm = vitrail.evaluate(model, home / "images", corruptions=True, severities=[1]).document()["corruptions"]
    ours, before = warm["models"][0], first["models"][0]
    assert ours["mean_error"] == before["mean_error"]
    assert ours["mean_calibration"] != before["mean_calibration"]
    next((home / "images" / "a").iterdir()).unlink()
    assert measure() != first


def made_up(name: str, clean: float, errors: list[tuple[float, float]]) -> corrupted.Corrupted:
    def point(error: float) -> corrupted.Point:
        return corrupted.Point(error=error, calibration=error / 2, loss=None, images=40)

    found = {kind: tuple(map(point, pair)) for kind, pair in zip(("fog", "jpeg_compression"), errors, strict=True)}
    return corrupted.Corrupted(name=name, clean=point(clean), severities=(2, 5), found=found)


def test_means_are_the_papers_with_another_model_in_the_place_of_alexnet() -> None:
    one, two = (
        made_up("runs/one", 0.1, [(0.2, 0.4), (0.1, 0.3)]),
        made_up("runs/two", 0.2, [(0.4, 0.8), (0.3, 0.5)]),
    )
    side = corrupted.SideBySide(models=(one, two), against=two)
    document = side.document()
    first, second = document["models"]
    assert first["mce"] == pytest.approx((0.6 / 1.2 + 0.4 / 0.8) / 2)
    assert first["relative_mce"] == pytest.approx(((0.3 - 0.1) / (0.6 - 0.2) + (0.2 - 0.1) / (0.4 - 0.2)) / 2)
    assert (second["mce"], second["relative_mce"]) == (1, 1)
    rows = {(row.model, row.metric): row for row in side.results(data="d") if "mce" in row.metric}
    assert rows["runs/one", "mce"].setting == {"corruptions": 2, "severities": [2, 5], "against": "runs/two"}
    assert "mce" not in corrupted.SideBySide(models=(one, two)).document()["models"][0]
    perfect = made_up("p", 0.0, [(0.0, 0.0), (0.0, 0.2)])
    assert one.published(perfect) == {"mce": None, "relative_mce": None}


def test_a_page_shows_models_side_by_side() -> None:
    models = (made_up("a/run", 0.1, [(0.2, 0.4), (0.1, 0.3)]), made_up("b/run", 0.2, [(0.4, 0.8), (0.3, 0.5)]))
    side = corrupted.SideBySide(models=models, against=models[1])
    document = {"accuracy": 0.9, "interval": (0.8, 1.0), "images": 40, "data": "d", "split": "test", "classes": []}
    shown = measured_of({**document, "corruptions": side.document()})
    table = shown.tables[1]
    assert table["columns"] == ["", "wrong, a/run", "ECE", "wrong, b/run", "ECE"]
    assert table["rows"][:2] == [
        ["clean", "10.0 %", "5.0 %", "20.0 %", "10.0 %"],
        ["fog", "30.0 %", "15.0 %", "60.0 %", "30.0 %"],
    ]
    assert table["rows"][-2:] == [
        ["mCE, by b/run", "50.0 %", "", "100.0 %", ""],
        ["relative mCE, by b/run", "50.0 %", "", "100.0 %", ""],
    ]
    assert [drawing.name for drawing in shown.drawings] == ["corruptions", "severities"]
    assert all(size_of_png(drawing.draw("light")) for drawing in shown.drawings)


def test_what_does_not_go_together_is_refused_before_any_compute(home: Path) -> None:
    with pytest.raises(ConfigError, match="severities must be a whole number, at least 1 and at most 5; got 6"):
        vitrail.evaluate(home / "vit", home / "images", corruptions=True, severities=[6])
    with pytest.raises(ConfigError, match="each once; got"):
        vitrail.evaluate(home / "vit", home / "images", corruptions=True, severities=[1, 1])
    with pytest.raises(ConfigError, match=r"each once; got 5\. Give a list"):
        vitrail.evaluate(home / "vit", home / "images", corruptions=True, severities=5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"severities are of corruptions\. Give corruptions too"):
        vitrail.evaluate(home / "vit", home / "images", severities=[1])
    with pytest.raises(ConfigError, match="Give corruptions too"):
        vitrail.evaluate(home / "vit", home / "images", beside=[home / "bit"])
    with pytest.raises(ConfigError, match="images of one size"):
        vitrail.evaluate(home / "vit", home / "images", corruptions=True, keep_aspect_ratio=True)
