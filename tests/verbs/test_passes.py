"""How images go through a model, where not as ever: in their own shape, or with tokens merged; and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluating import HEIGHT, NAMES, WIDTH, Pictures, guessing, write_folder
from families import family

import vitrail
from vitrail.cli import main
from vitrail.data.aspect import AspectTransform
from vitrail.data.transforms.finish import scale
from vitrail.errors import ConfigError, VitrailError
from vitrail.models import Model
from vitrail.runtime.merging import MergedModel

SHAPES = [(30, 40), (7, 90), (64, 64), (51, 12), (30, 40), (9, 9), (90, 7)]
DEEP = {"depth": 3, "names": NAMES}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


def photos() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in SHAPES]


def alone(model: Model, image: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model makes of one image in its own shape."""
    transform = AspectTransform(4, HEIGHT * WIDTH // 16, model.card.preprocessing)
    with torch.inference_mode():
        features, logits = model.outputs(scale(transform(image, 0, 0)[None], model.card.preprocessing))
    assert logits is not None
    return features[0], logits[0]


@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_images_in_their_own_shape_have_the_answers_that_they_have_alone(pooling: str) -> None:
    model, images = guessing(pooling=pooling, **DEEP), photos()
    wanted = [alone(model, image) for image in images]
    found = vitrail.predict(model, [*images, b""], keep_aspect_ratio=True, batch_size=3, features=True)
    assert found.names == [f"image {number}" for number in range(len(SHAPES))]
    assert [each.name for each in found.failed] == ["image 7"]
    assert torch.allclose(found.logits, torch.stack([logits for _, logits in wanted]), atol=1e-5)
    features = vitrail.embed(model, images, keep_aspect_ratio=True, batch_size=4, workers=2)
    assert torch.allclose(features, torch.stack([each for each, _ in wanted]), atol=1e-5)
    assert found.document()["keep_aspect_ratio"] is True
    assert found.document()["most_patches"] == 6
    squashed = vitrail.predict(model, images)
    assert not torch.allclose(found.logits, squashed.logits, atol=1e-3)
    assert "keep_aspect_ratio" not in squashed.document()


def test_the_image_size_says_how_many_patches_there_are(tmp_path: Path) -> None:
    vitrail.save(guessing(**DEEP), tmp_path / "run")
    found = vitrail.predict(tmp_path / "run", photos()[0], keep_aspect_ratio=True, image_size=(24, 24))
    assert found.document()["most_patches"] == 36


def test_merging_gives_what_the_merging_model_gives() -> None:
    model, images = guessing(**DEEP), photos()
    merged = MergedModel(model, 0.5)
    with torch.inference_mode():
        wanted = merged(model.preprocess(images))
    found = vitrail.predict(model, images, token_merging=0.5)
    assert torch.allclose(found.logits, wanted, atol=1e-5)
    assert not torch.allclose(wanted, vitrail.predict(model, images).logits, atol=1e-4)
    assert {**found.setting} == {"token_merging": 0.5, "tokens_merged": merged.merging.tolist()}
    assert torch.allclose(vitrail.embed(model, images, token_merging=0.5), merged.represent(model.preprocess(images)))


def test_an_evaluation_with_mergers_is_compared_with_one_without_and_kept_apart() -> None:
    model, source = guessing(**DEEP), Pictures(40)
    plain = vitrail.evaluate(model, source)
    found = vitrail.evaluate(model, source, token_merging=0.5, against=model).document()
    assert (found["token_merging"], sum(found["tokens_merged"])) == (0.5, 3)
    assert found["against"]["accuracy"] == plain.accuracy
    assert all(row["setting"]["token_merging"] == 0.5 for row in found["results"])
    assert (found["time"]["reused"], found["loss"] == plain.loss) == (0, False)
    again = vitrail.evaluate(model, source, token_merging=0.5)
    assert again.document()["time"]["reused"] == 40
    assert "with 0.5 of the patches merged" in repr(again)
    assert "token_merging" not in plain.document()


def test_an_evaluation_of_images_in_their_own_shape_is_that_of_its_predictions() -> None:
    model, source = guessing(**DEEP), Pictures(40)
    found = vitrail.evaluate(model, source, keep_aspect_ratio=True).document()
    answers = vitrail.predict(model, source, keep_aspect_ratio=True)
    right = sum(each.label == NAMES[int(label)] for each, label in zip(answers, source.labels, strict=True))
    assert found["accuracy"] == right / 40
    assert found["keep_aspect_ratio"] is True
    assert found["results"][0]["setting"]["keep_aspect_ratio"] is True
    assert "of images in their own shape, at most 6 patches" in repr(
        vitrail.evaluate(model, source, keep_aspect_ratio=True)
    )


def test_the_command_says_what_was_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, folder = tmp_path / "run", write_folder(tmp_path / "photos", Pictures(31))
    vitrail.save(guessing(**DEEP), run)

    def document(*words: str | Path) -> dict[str, Any]:
        capsys.readouterr()
        assert main([*map(str, words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert document("predict", run, folder, "--keep-aspect-ratio")["keep_aspect_ratio"] is True
    assert document("predict", run, folder, "--keep-aspect")["most_patches"] == 6  # another program's word
    assert document("predict", run, folder, "--token-merging", "0.5")["tokens_merged"] == [0, 3, 0]
    assert document("evaluate", run, folder, "--token-merging", "0.5")["token_merging"] == 0.5
    assert "token_merging" not in document("evaluate", run, folder)


def predicting(**options: Any) -> Callable[[], object]:
    return lambda: vitrail.predict(options.pop("model", guessing(**DEEP)), ["nothere"], **options)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (predicting(token_merging=0.5, keep_aspect_ratio=True), "do not go together.*Give one of them"),
        (predicting(token_merging=1.5), "token_merging must be over 0 and under 1.*got 1.5"),
        (predicting(keep_aspect_ratio="yes"), "keep_aspect_ratio must be True or False; got 'yes'"),
        (predicting(tome=8), "'tome'.*token_merging"),
        (predicting(naflex=True), "'naflex'.*keep_aspect_ratio"),
        (lambda: vitrail.evaluate(guessing(**DEEP), Pictures(3), token_merging=0.5, page="page"), "a page shows the"),
        (lambda: vitrail.evaluate(guessing(**DEEP), Pictures(3), keep_aspect_ratio=True, page="page"), "a page shows"),
        (
            lambda: vitrail.evaluate(guessing(**DEEP), Pictures(3), keep_aspect_ratio=True, preprocessing="measure"),
            "preprocessing=measure tries crops.*Give one of them",
        ),
    ],
)
def test_what_does_not_go_is_refused_before_anything_is_read(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call()


@pytest.mark.parametrize("options", [{"keep_aspect_ratio": True}, {"token_merging": 0.5}], ids=["aspect", "merging"])
def test_models_that_cannot_are_refused_before_an_image_is_read(options: dict[str, Any]) -> None:
    source = Pictures(5)
    with pytest.raises(ConfigError, match="a BiT"):
        vitrail.predict(family("bit"), source, **options)
    assert source.reads == []


@pytest.mark.parametrize("words", [["--token-merging", "2"], ["--token-merging", "0.5", "--keep-aspect-ratio"]])
def test_the_command_refuses_the_same(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "vitrail-ti8", "docs/inspect.jpg", *words]) == 1
    assert "token_merging" in capsys.readouterr().err


def test_the_refusals_are_of_our_own_kind() -> None:
    with pytest.raises(VitrailError):
        vitrail.embed(guessing(**DEEP), photos(), token_merging=0.0)
