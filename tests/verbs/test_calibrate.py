"""A temperature: fitted on validation images, kept in the card, used by probabilities and by nothing else."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluating import NAMES, Pictures, guessing, logits_of, write_folder
from scipy import special

import vitrail
from vitrail.cli import main
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.ops.metrics import fit_temperature
from vitrail.verbs.calibrate import Calibration

VAL, TEST = Pictures(60, seed=5), Pictures(40, seed=6)


def loss(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    shares = special.log_softmax(logits / temperature, axis=1)
    return float(-shares[np.arange(len(labels)), labels].mean())


def likeliest(logits: np.ndarray, labels: np.ndarray) -> float:
    """The best of many temperatures."""
    tried = np.geomspace(0.05, 20, 3001)
    return float(tried[np.argmin([loss(logits, labels, each) for each in tried])])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    model = guessing(names=NAMES)
    with torch.no_grad():
        model.get_parameter("head.weight").mul_(6)  # sure of itself
    vitrail.save(model, tmp_path / "run")
    write_folder(tmp_path / "images" / "val", VAL)
    write_folder(tmp_path / "images" / "test", TEST)
    return tmp_path


@pytest.mark.parametrize("scale", [0.3, 1.0, 7.0])
def test_the_temperature_is_the_likeliest(scale: float) -> None:
    random = np.random.default_rng(3)
    labels = random.integers(0, 5, 300)
    logits = scale * (random.normal(size=(300, 5)) + 2 * np.eye(5)[labels])
    found = fit_temperature(torch.from_numpy(logits), torch.from_numpy(labels))
    assert found == pytest.approx(likeliest(logits, labels), rel=3e-3)
    assert fit_temperature(torch.eye(5), torch.arange(5)) == pytest.approx(0.05, rel=1e-5)  # all right: the coldest


def test_a_run_is_calibrated_and_everything_uses_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, images = home / "run", home / "images"
    before = vitrail.predict(run, images / "test")
    plain = vitrail.evaluate(run, images)
    assert "vitrail calibrate RUN DATA fits a temperature on validation images" in repr(plain)
    assert main(["calibrate", str(run), str(images), "--json", "--quiet"]) == 0
    said = json.loads(capsys.readouterr().out)
    model = vitrail.load(run)
    logits, labels = logits_of(model, VAL), np.asarray(VAL.labels)
    assert said["temperature"] == model.card.temperature == pytest.approx(likeliest(logits, labels), rel=1e-2)
    assert (said["images"], said["split"]) == (60, "val")
    assert said["loss"] == pytest.approx([loss(logits, labels, 1), loss(logits, labels, said["temperature"])], abs=1e-4)
    assert said["error"][1] < said["error"][0]
    after = vitrail.predict(run, images / "test")
    torch.testing.assert_close(after.logits, before.logits)
    expected = (before.logits[0] / said["temperature"]).softmax(dim=0)
    torch.testing.assert_close(after[0].probabilities, expected)
    better = vitrail.evaluate(run, images)
    assert (better.accuracy, better.document()["temperature"]) == (plain.accuracy, said["temperature"])
    theirs = loss(logits_of(model, TEST), np.asarray(TEST.labels), said["temperature"])
    assert better.loss == pytest.approx(theirs, abs=1e-4)
    assert "temperature" in repr(better)
    assert "fits a temperature" not in repr(better)
    page = vitrail.inspect(run, images, split="test", count=3, bias=False, search=0, out=home / "page")
    names = {each.name.rpartition("/")[2]: each for each in after}
    for image in page.numbers["images"]:
        share = names[image["name"].rpartition("/")[2]].probability
        assert image["top"][0]["probability"] == pytest.approx(share, abs=1e-4)


@pytest.mark.parametrize(("images", "doubted"), [(40, True), (400, False)])
def test_a_gain_that_may_be_chance_is_doubted(images: int, doubted: bool) -> None:
    found = Calibration(temperature=1.2, images=images, split="val", loss=(1.02, 1.0), error=(0.1, 0.1), folder=None)
    assert ("may be chance" in str(found)) == doubted  # twice 0.02 an image, against 3.84


def test_a_temperature_goes_with_its_classifier(home: Path) -> None:
    model = vitrail.load(home / "run")
    assert model.card.temperature == 1  # of a card without one
    found = vitrail.calibrate(model, home / "images")
    assert (found.folder, model.card.temperature) == (None, found.temperature)
    assert vitrail.load(home / "run").card.temperature == 1
    vitrail.save(model, home / "copy")
    assert vitrail.load(home / "copy").card.temperature == found.temperature
    assert vitrail.load(home / "copy", classes=3).card.temperature == 1
    assert any("temperature" in note for note in vitrail.save(model, home / "vit.npz", layout="google").notes)
    again = vitrail.calibrate(home / "copy", home / "images")  # over an earlier one
    assert again.temperature == found.temperature
    assert again.error[0] == pytest.approx(again.error[1])
    (home / "copy" / "calibration.json").write_text('{"temperature": 0}')
    with pytest.raises(CheckpointError, match=r"calibration\.json is not the file"):
        vitrail.load(home / "copy")


def test_only_validation_images_and_cards_will_do(home: Path) -> None:
    run, images = home / "run", home / "images"
    with pytest.raises(ConfigError, match="fitted on test images makes their numbers too good"):
        vitrail.calibrate(run, images, split="test")
    with pytest.raises(DataError, match="has no val split, and the model is no run that kept images back"):
        vitrail.calibrate(run, images / "val")
    with pytest.raises(DataError, match="there is no split 'dev'"):
        vitrail.calibrate(run, images, split="dev")
    with pytest.raises(ConfigError, match="vitrail-ti8 is no run folder, and has no card to keep a temperature in"):
        vitrail.calibrate("vitrail-ti8", images)
    write_folder(home / "few" / "val", Pictures(7, NAMES, seed=7))
    with pytest.raises(DataError):
        vitrail.calibrate(run, home / "few")
    assert vitrail.load(run).card.temperature == 1
