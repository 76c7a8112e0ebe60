"""`vitrail fewshot`: its table, its document, what it keeps and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from vitrail.cli import main
from vitrail.data.open import open_data
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import DataError
from vitrail.evaluation import fewshot
from vitrail.evaluation.features import choose_sets
from vitrail.evaluation.results import read_results


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a classifier, which needs none."""
    path = tmp_path_factory.mktemp("models") / "model"
    fields: dict[str, Any] = {"depth": 1, "width": 24, "heads": 3, "mlp_width": 29}
    vitrail.save(vitrail.create("ViT-Ti/14", classes=None, image_size=28, **fields), path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty images of three classes, in folders, in no split."""
    root = tmp_path_factory.mktemp("photos")
    source = open_data("sample")["train"]
    from vitrail.data.decode import encode

    for label in range(3):
        (root / f"class{label}").mkdir()
        for sample in (source.labels == label).nonzero()[0][:20].tolist():
            pixels = source.read(sample)
            data = pixels if isinstance(pixels, bytes) else encode(pixels, "PNG")
            (root / f"class{label}" / f"{sample}.png").write_bytes(data)
    return root


def test_the_table_says_what_was_learned_from_and_what_was_kept(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["fewshot", str(model), "sample", "--shots", "1,5", "--seeds", "0,1"]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert "accuracy on 1,000 images of 10 classes, 2 draws" in shown.out
    for words in ("least squares", "nearest neighbors", "logistic", "l2 1024", "learned from train, tested on test"):
        assert words in shown.out
    assert "features of the test images" in shown.err
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    assert main(arguments) == 0
    assert "0 images computed" in " ".join(capsys.readouterr().out.split())


def test_the_document_has_the_numbers_of_the_function(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    arguments = [
        "fewshot",
        str(model),
        "sample",
        "--shots",
        "3",
        "--seeds",
        "5",
        "--json",
        "--quiet",
        "--out",
        str(out),
    ]
    assert main(arguments) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    document = json.loads(shown.out)
    assert json.loads((out / "fewshot.json").read_text()) == document
    from vitrail.evaluation.features import features_of
    from vitrail.runtime.inference import InferenceOptions
    from vitrail.runtime.machine import Group, choose_device

    splits = open_data("sample")
    how = InferenceOptions(group=Group(device=choose_device("cpu")))
    rows = {name: features_of(vitrail.load(model), source, how) for name, source in splits.items()}
    for result in read_results(out / "fewshot.json"):
        if result.setting["probe"] == "ridge":
            expected = fewshot(
                rows["train"].values["features"],
                rows["train"].labels,
                rows["test"].values["features"],
                rows["test"].labels,
                classes=10,
                shots=3,
                seed=5,
                l2=result.setting["l2"],
            )
            assert result.value == expected
            assert (result.images, result.seeds, result.spread) == (1000, (5,), None)


def test_one_split_alone_is_split_by_content(model: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fewshot", str(model), str(photos), "--shots", "2,all", "--seeds", "0"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "accuracy on 12 images of 3 classes, 1 draw" in shown
    assert "learned from 80 % of the images, tested on the other 20 %" in shown


def test_images_as_the_authors_see_them_are_other_images(
    model: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--as-authors"], ["--image-size", "42"], ["--precision", "bfloat16"]):
        assert main(["fewshot", str(model), str(photos), "--shots", "2", "--seeds", "0", *more]) == 0
        assert " 0 kept" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--shots", "one"], "--shots must be numbers with commas between them"),
        (["--shots", "0"], "shots must be"),
        (["--seeds", ""], "--seeds must be numbers"),
        (["--probes", "svm"], "probes must be"),
        (["--precision", "half"], "precision must be"),
        (["--batch", "0"], "batch_size must be"),
    ],
)
def test_wrong_options_are_refused(
    model: Path, more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fewshot", str(model), "sample", *more]) == 1
    assert words in " ".join(capsys.readouterr().err.split())


def test_splits_of_other_classes_are_refused() -> None:
    pixels = np.zeros((4, 8, 8, 3), dtype=np.uint8)
    train, test = (MemorySource(pixels, [0, 1, 0, 1], names) for names in (("a", "b"), ("b", "a")))
    with pytest.raises(DataError, match="the classes of test are not those of train"):
        choose_sets({"train": train, "test": test}, Path("m"))
    with pytest.raises(DataError, match="expected a train split"):
        choose_sets({"test": test}, Path("m"))
    with pytest.raises(DataError, match="1 images are too few"):
        choose_sets({"all": MemorySource(pixels[:1], [0], ("a",))}, Path("m"))
