"""Models that segment or detect as people use them: evaluate, predict, inspect, export, serve; and what is refused."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coco_judge import judge
from fastapi.testclient import TestClient
from PIL import Image
from torch.nn import functional as F

import vitrail
from vitrail.config.dense import QueryHead
from vitrail.data.annotated.others import SceneSource
from vitrail.data.annotation import VOID, Annotation
from vitrail.data.sources.synthetic import SyntheticSource
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.answers import check_classifier
from vitrail.models.dense import DenseViT
from vitrail.ops.average_precision import FoundBoxes
from vitrail.ops.dense import class_scores
from vitrail.ops.shapes import packed, runs_of, unpacked
from vitrail.runtime.dense import without_doubles
from vitrail.runtime.windows import windows
from vitrail.serve.app import create_app
from vitrail.verbs.dense import DenseEvaluation
from vitrail.verbs.dense_predict import DensePredictions

SIDE = 16
NAMES: dict[str, tuple[str, ...]] = {"segment": ("background", "circle", "square", "triangle", "star", "cross", "ring")}
NAMES["detect"] = NAMES["segment"][1:]


def model_of(task: str) -> DenseViT:
    """A model that knows nothing, but says something."""
    head = QueryHead(task=task, queries=5, blocks=2, upscale=2)  # pyright: ignore[reportArgumentType]
    shape: dict[str, Any] = {"depth": 2, "width": 24, "heads": 3, "mlp_width": 8, "image_size": SIDE}
    made = vitrail.create("ViT-Ti/4", classes=len(NAMES[task]), head=head, **shape)
    assert isinstance(made, DenseViT)
    made.card = made.card.__class__(class_names=NAMES[task], preprocessing=made.card.preprocessing)
    return made.eval()


def scenes(task: str, count: int = 5) -> SceneSource:
    return SceneSource(count, 24, seed=2, task=task)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number, size in enumerate(((24, 24), (19, 31))):
        Image.fromarray(SyntheticSource(3, size, seed=4).scene(number).pixels).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no image")
    return folder


def test_pixels_are_measured_at_their_own_size_and_void_counts_nowhere() -> None:
    model, source = model_of("segment"), scenes("segment")
    found = vitrail.evaluate(model, source, workers=0)
    assert isinstance(found, DenseEvaluation)
    both, either = np.zeros(7), np.zeros(7)
    right = total = 0
    with torch.no_grad():  # all at once, as a product of few rows rounds otherwise
        said = model(torch.cat([model.preprocess(source.read(number)) for number in range(len(source))]))
    scores = class_scores(said.classes, said.masks, (SIDE, SIDE))
    answers = F.interpolate(scores, size=(24, 24), mode="bilinear").argmax(dim=1).numpy()
    for number, answer in enumerate(answers):
        truth = source.annotation(number).mask
        assert truth is not None
        right, total = right + (answer == truth).sum(), total + truth.size
        for kind in range(7):
            both[kind] += ((answer == kind) & (truth == kind)).sum()
            either[kind] += ((answer == kind) | (truth == kind)).sum()
    assert found.metrics["pixel_accuracy"] == pytest.approx(right / total)
    assert found.metrics["mean_iou"] == pytest.approx((both[either > 0] / either[either > 0]).mean())
    assert found.images == 5
    assert "mean IoU" in str(found)

    class Hidden(SceneSource):
        def annotation(self, index: int) -> Annotation:
            known = super().annotation(index)
            assert known.mask is not None
            return known._replace(mask=np.where(known.mask == 0, VOID, known.mask).astype(np.uint8))

    void = vitrail.evaluate(model, Hidden(5, 24, seed=2, task="segment"), workers=0)
    assert isinstance(void, DenseEvaluation)
    assert void.classes[0]["pixels"] == 0


def test_predictions_and_truth_in_cocos_json_give_pycocotools_the_same_numbers(tmp_path: Path) -> None:
    model, source = model_of("detect"), scenes("detect", 7)
    with torch.no_grad():  # boxes worth something: those of the truth, moved a little
        model.head.classifier.weight.mul_(9)
    found = vitrail.evaluate(model, source, workers=0, out=tmp_path / "out", page=tmp_path / "page")
    assert isinstance(found, DenseEvaluation)
    truth, rows = (
        json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("annotations", "predictions")
    )
    for name, value in zip(("ap", "ap50", "ap75"), judge(truth, rows, "bbox").stats[:3], strict=True):
        assert found.metrics[name] == pytest.approx(max(value, 0), abs=1e-6)
    page = (tmp_path / "page" / "report.html").read_text()
    assert page.count("<figure>") == 7 * 3
    assert "script" not in page
    assert json.loads((tmp_path / "page" / "evaluation.json").read_text())["metrics"] == found.metrics


def test_runs_of_masks_are_packed_as_pycocotools_does() -> None:
    pycocotools = pytest.importorskip("pycocotools.mask")
    random = np.random.default_rng(0)
    for shape in ((1, 1), (7, 30), (61, 5)):
        mask = random.random(shape) < 0.4
        text = packed(runs_of(mask))
        assert text == pycocotools.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
        assert unpacked(text) == runs_of(mask)


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_images_are_predicted_and_written(task: str, photos: Path, tmp_path: Path) -> None:
    found = vitrail.predict(model_of(task), photos, score=0.0, workers=0)
    assert isinstance(found, DensePredictions)
    assert [Path(name).name for name in found.names] == ["0.png", "1.png"]
    assert [Path(each.name).name for each in found.failed] == ["broken.png"]
    assert found[1].size == (19, 31)
    made = {path.name for path in found.save(tmp_path / "out")}
    document = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert document["task"] == task
    if task == "segment":
        assert made == {"0.png", "0.overlay.jpg", "1.png", "1.overlay.jpg", "predictions.json"}
        with Image.open(tmp_path / "out" / "1.png") as mask:
            assert mask.mode == "P"
            assert found[1].mask is not None
            assert (np.asarray(mask) == found[1].mask).all()
        assert sum(found[1].shares.values()) == pytest.approx(1)
    else:
        assert made == {"0.overlay.jpg", "1.overlay.jpg", "predictions.json"}
        box = document["predictions"][1]["objects"][0]["box"]
        assert 0 <= box[0] <= box[2] <= 31
        assert found[0].objects[0].score >= found[0].objects[-1].score
        assert vitrail.predict(model_of(task), photos, score=0.99, workers=0)[0].objects == []  # pyright: ignore
    with Image.open(tmp_path / "out" / "1.overlay.jpg") as drawn:
        assert drawn.size == (14 * 31, 14 * 19)  # in whole steps until its shorter side has 256 pixels
    assert vitrail.embed(model_of(task), photos / "0.png").shape == (1, 24)


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_windows_cover_larger_images_and_say_the_same_where_one_is_enough(task: str) -> None:
    model = model_of(task)
    small = SceneSource(2, SIDE, seed=2, task=task)  # pyright: ignore[reportArgumentType]
    whole, cut = (vitrail.evaluate(model, small, workers=0, windows=each) for each in (False, True))
    assert whole.metrics == pytest.approx(cut.metrics, abs=2e-2)  # pyright: ignore
    large = vitrail.predict(model, SyntheticSource(1, (40, 29), seed=1), windows=True, workers=0)
    assert isinstance(large, DensePredictions)
    assert large[0].size == (40, 29)
    if task == "segment":
        assert large[0].mask.shape == (40, 29)  # pyright: ignore


def test_windows_overlap_and_two_boxes_of_one_object_become_one() -> None:
    places = [*windows((40, 29), (16, 16))]
    seen = np.zeros((40, 29), dtype=int)
    for top, left in places:
        seen[top : top + 16, left : left + 16] += 1
    assert seen.min() >= 1
    assert [*windows((16, 16), (16, 16))] == [(0, 0)]
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [1, 1, 5, 5], [0, 0, 10, 10], [20, 20, 30, 30]], dtype=float)
    found = FoundBoxes(boxes, np.array([0, 0, 0, 1, 0]), np.array([0.9, 0.95, 0.5, 0.4, 0.3]))
    assert without_doubles(found, same=0.5, inside=0.8).tolist() == [1, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["segment", "detect"])
def test_an_exported_file_says_what_the_model_says(task: str, untyped: None, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model, source = model_of(task), scenes(task)
    made = vitrail.export(model, out=tmp_path / "model.onnx")
    assert made.outputs == (("scores",) if task == "segment" else ("scores", "boxes"))
    ours, theirs = (vitrail.evaluate(each, source, workers=0) for each in (model, tmp_path / "model.onnx"))
    assert ours.metrics == pytest.approx(theirs.metrics, abs=2e-3)  # pyright: ignore
    with pytest.raises(ConfigError, match=f"to=html is of classifiers; the model was trained to {task}"):
        vitrail.export(model, to="html", out=tmp_path / "model.html")
    with pytest.raises(ConfigError, match="precision=int8 is of classifiers"):
        vitrail.export(model, precision="int8", out=tmp_path / "other.onnx")


def test_the_page_of_queries_shows_what_each_attends_to(tmp_path: Path, photos: Path) -> None:
    model = model_of("segment")
    with torch.no_grad():
        model.head.classifier.bias[2] = 9.0  # every query is sure
    found = vitrail.inspect(model, photos, out=tmp_path / "page", count=3)
    page = (tmp_path / "page" / "report.html").read_text()
    (first, *_) = found.numbers["images"]
    assert len(first["queries"]) == 5
    assert first["queries"][0]["label"] == "square"
    assert all(0 < share < 1 for share in first["queries"][0]["on_patches"])
    assert page.count("<figure>") == 2 * 5 * (1 + 2)


def test_a_server_segments_and_detects() -> None:
    models = {"cells": model_of("segment"), "cars": model_of("detect")}
    data = io.BytesIO()
    Image.fromarray(SyntheticSource(1, (19, 31), seed=4).scene(0).pixels).save(data, "PNG")
    raw = {"content-type": "image/png"}
    with TestClient(create_app(models)) as client:

        def ask(path: str) -> dict:
            return client.post(path, content=data.getvalue(), headers=raw).json()

        (row,) = ask("/v1/segment?overlay=true")["predictions"]
        mask = Image.open(io.BytesIO(base64.b64decode(row["mask"].partition(",")[2])))
        assert mask.size == (31, 19)
        alone = client.post("/v1/segment?format=png", content=data.getvalue(), headers=raw)
        assert (np.asarray(Image.open(io.BytesIO(alone.content))) == np.asarray(mask)).all()
        local = vitrail.predict(models["cells"], data.getvalue())
        assert (np.asarray(mask) == local[0].mask).all()  # pyright: ignore
        (row,) = ask("/v1/detect?model=cars&score=0")["predictions"]
        local = vitrail.predict(models["cars"], data.getvalue(), score=0.0)
        assert [each["label"] for each in row["objects"]] == [each.label for each in local[0].objects]  # pyright: ignore
        assert ask("/v1/detect")["error"]["message"] == "cells was not trained to detect. Use /v1/segment."
        assert ask("/v1/classify")["error"]["message"] == "cells was trained to segment. Use /v1/segment."
        assert [each["task"] for each in client.get("/v1/models").json()["data"]] == ["segment", "detect"]


def test_a_file_says_what_its_model_was_trained_to(tmp_path: Path) -> None:
    vitrail.save(model_of("detect"), tmp_path / "run")
    said = str(vitrail.describe(tmp_path / "run"))
    assert "5 queries to detect 6 classes" in said
    assert "circle, square, triangle, star, cross, ring" in said


def test_what_such_models_are_not_asked_is_refused(tmp_path: Path) -> None:
    model = model_of("segment")
    with pytest.raises(ConfigError, match="trained to segment, and takes no token_merging"):
        vitrail.evaluate(model, scenes("segment"), token_merging=0.5)
    with pytest.raises(ConfigError, match="was trained to segment, and names no class of an image"):
        check_classifier(model)
    with pytest.raises(ConfigError, match="this one classifies"):
        vitrail.evaluate("vitrail-ti8", "sample", windows=True)
    with pytest.raises(DataError, match="the model's classes are not the data's"):
        vitrail.evaluate(model, scenes("detect"), workers=0)
    with pytest.raises(DataError, match="found no masks and no boxes"):
        vitrail.evaluate(model, tmp_path)
