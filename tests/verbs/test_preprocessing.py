"""A stranger's 1-channel ViT, whose file does not say how it reads images: what is assumed is said, or given."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

import vitrail
from vitrail.cli.app import main
from vitrail.config import Preprocessing
from vitrail.errors import ConfigError, DataError
from vitrail.models import Model
from vitrail.runtime.reporter import reporting

MEAN, DEVIATION = 0.09, 0.15
OWN = {"mean": MEAN, "std": DEVIATION, "resize": "squash"}
HEADS = ["--set", "model.heads=3"]  # its shape is nobody's, so that they must be said too
FLAGS = ["--mean", str(MEAN), "--std", str(DEVIATION), "--resize", "squash"]
ASSUMED = "preprocessing is not in the file: assumed the authors' (mean 0.5, deviation 0.5, squashed to 28x28)"


def drawn(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw bars, squares and frames, dim on black."""
    generator, labels = np.random.default_rng(seed), np.arange(count) % 4
    images = generator.integers(0, 25, (count, 28, 28, 1), dtype=np.uint8)
    for image, label in zip(images[..., 0], labels, strict=True):
        (x, y), level = generator.integers(0, 5, 2), generator.integers(40, 200)
        match label:
            case 0:
                image[4 + x : 24, 12 + y : 15 + y] = level
            case 1:
                image[12 + y : 15 + y, 4 + x : 24] = level
            case _:
                image[8 + x : 18 + x, 8 + y : 18 + y] = level
        if label == 3:
            image[10 + x : 16 + x, 10 + y : 16 + y] = 0
    return images, labels


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train with a mean and a deviation of its own, and keep the weights alone."""
    torch.manual_seed(0)
    images, labels = drawn(256, seed=0)
    inputs = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - MEAN) / DEVIATION
    model = vitrail.create(
        "ViT-Ti/7", classes=4, image_size=28, channels=1, depth=1, activation="gelu", mlp_width=96, width=96
    )
    optimizer = torch.optim.AdamW(model.train().parameters(), 2e-3)
    for step in range(40):
        some = torch.arange(step * 64, step * 64 + 64) % 256
        loss = cross_entropy(model(inputs[some]), torch.from_numpy(labels)[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    folder = tmp_path_factory.mktemp("stranger")
    vitrail.save(model.eval(), folder / "timm.pth", layout="timm")
    vitrail.save(model, folder / "torchvision.pth", layout="torchvision")
    return folder


@pytest.fixture
def model(stranger: Path) -> Model:
    return vitrail.load(stranger / "timm.pth", heads=3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    root = tmp_path_factory.mktemp("data")
    images, labels = drawn(40, seed=1)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (root / str(label)).mkdir(exist_ok=True)
        Image.fromarray(image[..., 0]).save(root / str(label) / f"{number}.png")
    return root


@pytest.mark.parametrize("layout", ["timm", "torchvision"])
def test_a_wrong_mean_costs_accuracy_and_the_own_one_can_be_given(stranger: Path, layout: str) -> None:
    data, path = drawn(200, seed=1), stranger / f"{layout}.pth"
    assumed, own = (
        vitrail.evaluate(path, data, heads=3),
        vitrail.evaluate(path, data, heads=3, **OWN),
    )  # the cache is on
    assert own.accuracy > 0.95
    assert assumed.accuracy < own.accuracy - 0.2
    assert ASSUMED in assumed.document()["assumed"]
    assert "assumed" not in own.document()
    assert own.document()["results"][0]["setting"]["preprocessing"] == "mean 0.09, deviation 0.15, squashed"
    again = vitrail.evaluate(path, data, heads=3)
    assert (again.accuracy, again.document()["time"]["reused"]) == (assumed.accuracy, 200)


def test_every_way_to_give_it_gives_the_same_answers(stranger: Path, model: Model) -> None:
    images = list(drawn(8, seed=2)[0])
    card = Preprocessing(mean=(MEAN,), deviation=(DEVIATION,))
    loaded = vitrail.load(stranger / "timm.pth", heads=3, preprocessing=card)
    expected = loaded((torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 255 - MEAN) / DEVIATION)
    for found in (
        vitrail.predict(loaded, images),
        vitrail.predict(model, images, **OWN),
        vitrail.predict(stranger / "timm.pth", images, heads=3, preprocessing=OWN),
    ):
        torch.testing.assert_close(found.logits, expected, rtol=1e-4, atol=1e-4)
    assert model.card.preprocessing == Preprocessing()  # which stays as it was
    features = vitrail.embed(model, images, mean=MEAN, deviation=DEVIATION)
    assert torch.equal(features, vitrail.embed(loaded, images))
    assert not torch.allclose(features, vitrail.embed(model, images), atol=0.1)


def test_what_is_assumed_is_said_where_it_is_and_nowhere_else(
    stranger: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vitrail.load(stranger / "timm.pth", heads=3)
    assert [record.levelno for record in caplog.records if ASSUMED in record.message] == [logging.WARNING]
    for suffix in ("pth", "safetensors"):
        path = tmp_path / f"own.{suffix}"
        written = vitrail.convert(stranger / "timm.pth", path, layout="timm", heads=3, **OWN)
        said = "tell its reader" if suffix == "pth" else "but Vitrail's own reader finds it"
        place = f"the layout has no place for the preprocessing, {said}: mean 0.09, deviation 0.15, squashed"
        assert place in written.notes
        assert "changed     preprocessing set to mean 0.09, deviation 0.15, squashed" in str(written)
    caplog.clear()
    found = vitrail.load(tmp_path / "own.safetensors").card
    assert (found.preprocessing.mean, found.assumed) == ((MEAN,), ())
    assert "assumed" not in caplog.text
    assert vitrail.load(tmp_path / "own.pth", heads=3).card.assumed


@pytest.mark.parametrize("layout", ["vitrail", "hf"])
def test_what_is_given_is_kept_by_layouts_that_can_say_it(stranger: Path, tmp_path: Path, layout: str) -> None:
    vitrail.convert(stranger / "timm.pth", tmp_path / "out", layout=layout, heads=3, **OWN)
    card = vitrail.load(tmp_path / "out").card
    assert card.preprocessing == Preprocessing(mean=(MEAN,), deviation=(DEVIATION,))
    assert card.assumption((28, 28)) is None


def test_a_run_folder_remembers_what_was_assumed(stranger: Path, tmp_path: Path) -> None:
    vitrail.save(vitrail.load(stranger / "timm.pth", heads=3), tmp_path / "run")
    assert ASSUMED in str(vitrail.load(tmp_path / "run").card.assumption((28, 28)))
    assert ASSUMED in str(vitrail.describe(tmp_path / "run"))


def test_measure_finds_the_own_mean_by_labels_and_says_that_it_did(model: Model) -> None:
    found = vitrail.evaluate(model, drawn(120, seed=3), preprocessing="measure")
    chosen = found.document()["chosen_by_labels"]
    tried = {each["name"]: each for each in chosen["tried"]}
    assert chosen["best"] == "measured"
    assert tried["measured"]["preprocessing"]["mean"] == [pytest.approx(MEAN, abs=0.01)]
    assert chosen["unclear"] == []
    assert found.accuracy == tried["measured"]["accuracy"] > tried["assumed"]["accuracy"] + 0.2
    text = str(found)
    assert text.startswith("optimistic: the preprocessing was chosen by these very labels")
    assert "so that accuracy is optimistic" in text
    fixed = vitrail.evaluate(model, drawn(40, seed=3), preprocessing="measure", **OWN).document()
    assert [each["name"] for each in fixed["chosen_by_labels"]["tried"]] == ["as it is"]
    with pytest.raises(ConfigError, match="goes by the data's own labels"):
        vitrail.evaluate(model, drawn(8, seed=3), preprocessing="measure", labels="real.json")


def test_a_run_has_what_was_given_to_it_and_is_asked_nothing_more(
    stranger: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, out = str(stranger / "timm.pth"), str(tmp_path / "run")
    common = ["--steps", "1", "--batch", "8", "--workers", "0", "--set", "validation_share=0", *HEADS]
    assert main(["finetune", str(folder), "--model", start, "--out", str(tmp_path / "first"), *common]) == 0
    assert capsys.readouterr().err.count(ASSUMED) == 1
    assert vitrail.load(tmp_path / "first").card.assumed == ()  # it was trained so
    assert main(["finetune", str(folder), "--model", start, "--out", out, *common, *FLAGS, "--crop-pct", "0.9"]) == 0
    assert "preprocessing" not in capsys.readouterr().err
    kept = json.loads((tmp_path / "run" / "preprocessing.json").read_text())
    assert (kept["mean"], kept["deviation"], kept["crop_share"]) == ([MEAN], [DEVIATION], 0.9)
    assert main(["finetune", str(folder), "--model", start, "--out", out, *common, "--preprocessing", "mnist"]) == 1
    assert "preprocessing.mean was [0.09], is [0.1307]" in capsys.readouterr().err
    fresh = vitrail.finetune(folder, model="ViT-Ti/7", preprocessing="cifar10", steps=1, batch_size=8, quiet=True)
    assert fresh.model.card.preprocessing.mean == (0.4914, 0.4822, 0.4465)


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "MODEL", "DATA"],
        ["evaluate", "MODEL", "DATA"],
        ["fewshot", "MODEL", "DATA", "--shots", "1", "--seeds", "0", "--probes", "knn"],
        ["verify", "MODEL", "DATA", "--everyone"],
    ],
)
def test_commands_say_what_is_assumed_unless_it_is_given(
    command: list[str], stranger: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"MODEL": stranger / "timm.pth", "DATA": folder}
    words = [*(str(places.get(word, word)) for word in command), *HEADS]
    assert main(words) == 0
    assert capsys.readouterr().err.count(ASSUMED) == 1
    assert main([*words, *FLAGS]) == 0
    assert "preprocessing" not in capsys.readouterr().err
    assert main([*words, "--quiet"]) == 0
    assert "preprocessing" not in capsys.readouterr().err


def test_inspect_says_it_too_and_looks_at_what_is_given(
    stranger: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Model] = []

    def stop(title: str, model: Model, *_: object, **__: object) -> None:
        seen.append(model)
        raise DataError("enough was seen.")

    monkeypatch.setattr("vitrail.verbs.inspect.look_at", stop)
    words = [
        "inspect",
        str(stranger / "timm.pth"),
        str(folder),
        "--search",
        "0",
        "--out",
        str(tmp_path / "page"),
        *HEADS,
    ]
    assert main(words) == 1
    assert capsys.readouterr().err.count(ASSUMED) == 1
    assert main([*words, *FLAGS]) == 1
    assert "preprocessing" not in capsys.readouterr().err
    assert [model.card.preprocessing.mean for model in seen] == [(0.5,), (MEAN,)]


def test_commands_refuse_what_cannot_be_before_any_image_is_read(
    stranger: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(stranger / "timm.pth"), str(folder), *HEADS]
    for flags, error in (
        (["--preprocessing", "imagenet"], "Give --mean ... and --deviation ..., each one number"),
        (["--mean", "a"], "--mean must be numbers with commas between them; got 'a'."),
        (["--crop", "2"], "crop_share must be at most 1; got 2.0."),
    ):
        assert main([*words, *flags]) == 1
        assert error in capsys.readouterr().err
    with pytest.raises(ConfigError, match="How images are read is no field: give preprocessing, mean"):
        vitrail.create("ViT-Ti/16", mean=0.5)


def test_ways_that_images_do_not_tell_apart_are_named() -> None:
    model = vitrail.create("ViT-Ti/7", classes=4, image_size=28, channels=1, depth=1)  # whose head is all zeros
    found = vitrail.evaluate(model, drawn(12, seed=4), preprocessing="measure")
    assert found.document()["chosen_by_labels"]["unclear"] == ["measured", "zero-one", "as it is, cropped"]
    assert "but so few images do not tell it from: measured; zero-one; as it is, cropped" in str(found)


@pytest.mark.parametrize("verb", ["transfer", "vtab"])
def test_transfer_and_vtab_give_it_to_their_runs(
    verb: str, stranger: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(plan: Any, report: object) -> None:
        assert plan.task.preprocessing == {"mean": (MEAN,), "deviation": (DEVIATION,), "resize": "squash"}
        raise DataError("enough was seen.")

    monkeypatch.setattr("vitrail.verbs.transfer.run_transfer", stop)
    monkeypatch.setattr("vitrail.evaluation.vtab.vtab", stop)
    monkeypatch.setattr("vitrail.evaluation.vtab.find_tasks", lambda place, wanted, select: ({wanted[0]: {}}, ()))
    data = {"train": drawn(8, seed=5), "test": drawn(8, seed=6)} if verb == "transfer" else folder
    with pytest.raises(DataError, match="enough was seen"):
        getattr(vitrail, verb)(data, model=stranger / "timm.pth", out=tmp_path / "runs", heads=3, quiet=True, **OWN)


def test_the_weights_file_of_a_run_folder_alone_knows_it(stranger: Path, tmp_path: Path) -> None:
    vitrail.convert(stranger / "timm.pth", tmp_path / "run", layout="vitrail", heads=3, **OWN)
    (tmp_path / "run" / "weights.safetensors").rename(tmp_path / "alone.safetensors")
    card = vitrail.load(tmp_path / "alone.safetensors").card
    assert (card.preprocessing.mean, card.assumed) == ((MEAN,), ())
    assert "mean 0.2, deviation 0.2" in str(vitrail.describe(tmp_path / "alone.safetensors", mean=0.2, std=0.2))


def test_a_reporter_says_a_warning_once_and_a_quiet_one_never(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("vitrail")
    for quiet, times in ((False, 1), (True, 0)):
        with reporting(quiet=quiet):
            logger.warning("%s: assumed", "x.pth")
            logger.warning("%s: assumed", "x.pth")
        assert capsys.readouterr().err.count("x.pth: assumed") == times
    assert not logger.handlers
