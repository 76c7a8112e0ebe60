"""Models that draw the objects they find, as people use them: evaluate, predict, export, serve."""

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
from vitrail.data.annotation import Annotation
from vitrail.data.sources.synthetic import SHAPES
from vitrail.errors import ConfigError, DataError
from vitrail.models.dense import DenseViT
from vitrail.models.dense_heads import Prediction
from vitrail.ops.shapes import Shape, unpacked
from vitrail.runtime.dense import answers_of
from vitrail.runtime.windows import answer_windows
from vitrail.serve.app import create_app
from vitrail.verbs.dense import DenseEvaluation
from vitrail.verbs.dense_predict import DensePredictions

SIDE = 16


@pytest.fixture(scope="module")
def model() -> DenseViT:
    """A model that knows nothing, but draws something."""
    head = QueryHead(task="detect", queries=5, blocks=2, upscale=2, masks=True)
    shape: dict[str, Any] = {"depth": 2, "width": 24, "heads": 3, "mlp_width": 8, "image_size": SIDE}
    made = vitrail.create("ViT-Ti/4", classes=len(SHAPES), head=head, **shape)
    assert isinstance(made, DenseViT)
    made.card = made.card.__class__(class_names=SHAPES, preprocessing=made.card.preprocessing)
    with torch.no_grad():
        made.head.classifier.weight.mul_(9)
    return made.eval()


def photo(path: Path, size: tuple[int, int] = (19, 31)) -> Path:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    return path


def test_an_object_has_the_pixels_of_its_query_interpolated_to_the_image() -> None:
    torch.manual_seed(0)
    boxes = torch.rand(1, 3, 2, 2).sort(dim=2).values.flatten(2)
    said = Prediction(torch.randn(1, 3, 5), torch.randn(1, 3, 4, 4), boxes)
    (answer,) = answers_of(said, [(9, 7)], "detect", (8, 8))
    assert answer.found is not None
    assert answer.shapes is not None
    assert len(answer.shapes) == len(answer.found.scores) > 3
    shares = said.classes[0].softmax(dim=1)[:, :-1]
    for score, number, shape in zip(answer.found.scores, answer.found.classes, answer.shapes, strict=True):
        query = int((shares[:, number] - score).abs().argmin())
        whole = F.interpolate(said.masks[:, query : query + 1], size=(9, 7), mode="bilinear")[0, 0] > 0
        assert np.array_equal(shape.pixels(), whole.numpy())


def test_predictions_and_truth_in_cocos_json_give_pycocotools_the_same_mask_numbers(
    model: DenseViT, tmp_path: Path
) -> None:
    source = SceneSource(7, 24, seed=2, task="detect")
    found = vitrail.evaluate(model, source, workers=0, out=tmp_path / "out", page=tmp_path / "page")
    assert isinstance(found, DenseEvaluation)
    rows = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert all("bbox" in row for row in rows)
    rows = [{name: value for name, value in row.items() if name != "bbox"} for row in rows]  # or areas are of boxes
    judged = judge(json.loads((tmp_path / "out" / "annotations.json").read_text()), rows, "segm")
    for name, value in zip(("ap", "ap50", "ap75", "ap_small"), judged.stats[:4], strict=True):
        assert found.metrics[f"mask_{name}"] == pytest.approx(max(value, 0), abs=1e-6)
    assert {"mask_ap", "mask_ap50", "mask_ap75", "ap", "objects"} <= found.classes[0].keys()
    assert "mask AP50" in str(found)
    assert "mask AP75" in (tmp_path / "page" / "report.html").read_text()
    known = source.annotation(0)
    assert known.shapes is not None
    first = found.annotations["annotations"][0]
    assert first["area"] == known.areas[0]
    assert Shape((24, 24), unpacked(first["segmentation"]["counts"])).area == known.areas[0]


def test_data_of_boxes_alone_is_measured_by_boxes_alone(model: DenseViT) -> None:
    class Boxes(SceneSource):
        def annotation(self, index: int) -> Annotation:
            return super().annotation(index)._replace(shapes=None)

    bare, whole = (
        vitrail.evaluate(model, kind(4, 24, seed=2, task="detect"), workers=0) for kind in (Boxes, SceneSource)
    )
    assert isinstance(bare, DenseEvaluation)
    assert isinstance(whole, DenseEvaluation)
    assert not any(name.startswith("mask") for name in bare.metrics)
    assert bare.metrics == {name: value for name, value in whole.metrics.items() if not name.startswith("mask")}
    assert "mask_ap" not in bare.classes[0]
    asked: dict[str, Any] = {"head.masks": True, "steps": 1, "quiet": True}
    with pytest.raises(DataError, match=r"head\.masks=true learns the pixels.*5 of 5 images looked at have boxes"):
        vitrail.finetune({"train": Boxes(5, 24, seed=1, task="detect")}, task="detect", **asked)
    with pytest.raises(ConfigError, match=r"task=segment has masks"):
        vitrail.finetune("synthetic", task="segment", **asked)


@pytest.mark.parametrize("windows", [False, True])
def test_objects_are_predicted_with_their_pixels_and_drawn(model: DenseViT, tmp_path: Path, *, windows: bool) -> None:
    path = photo(tmp_path / "a.png")
    found = vitrail.predict(model, path, score=0.1, windows=windows, workers=0)
    assert isinstance(found, DensePredictions)
    (row,) = found
    assert len(row.objects) > 1
    for each in row.objects:
        assert each.shape is not None
        assert each.shape.pixels().shape == (19, 31)
    found.save(tmp_path / "out")
    (said,) = json.loads((tmp_path / "out" / "predictions.json").read_text())["predictions"]
    for each, written in zip(row.objects, said["objects"], strict=True):
        assert each.shape is not None
        assert written["segmentation"] == {"size": [19, 31], "counts": each.shape.document()["counts"]}
    seen, plain = row.overlay(), row.pixels().repeat(14, axis=0).repeat(14, axis=1)  # as small images are shown
    drawn = np.zeros((19, 31), np.bool_)
    for each in row.objects:
        drawn |= each.shape.pixels() if each.shape is not None else False
    changed = (seen != plain).any(axis=2).reshape(19, 14, 31, 14).all(axis=(1, 3))
    assert changed[drawn].mean() > 0.95
    assert drawn.any()


def test_the_pixels_of_an_object_in_windows_are_where_its_window_is(model: DenseViT) -> None:
    one = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    with torch.no_grad():
        whole = answer_windows(model, one)
        (answer,) = answers_of(model(model.preprocess(one)), [(SIDE, SIDE)], "detect", (SIDE, SIDE))
        larger = answer_windows(model, np.pad(one, ((0, 0), (0, SIDE - 5), (0, 0))))
    first, same = ({*map(str, each.shapes or ())} for each in (answer, whole))
    assert same
    assert same <= first  # of one window, less what is joined
    assert {shape.size for shape in larger.shapes or ()} == {(SIDE, 2 * SIDE - 5)}
    wide = [shape.pixels() for shape in larger.shapes or ()]
    left = [pixels for pixels in wide if not pixels[:, SIDE:].any() and pixels[:, : SIDE - 5].any()]
    drawn = [shape.pixels() for shape in answer.shapes or ()]
    assert left
    assert sum(any(np.array_equal(pixels[:, :SIDE], each) for each in drawn) for pixels in left) > 0


@pytest.mark.slow
def test_an_exported_file_gives_masks_and_the_same_objects(model: DenseViT, untyped: None, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = photo(tmp_path / "a.png")
    made = vitrail.export(model, out=tmp_path / "model.onnx")
    assert made.outputs == ("scores", "boxes", "masks")
    ours, theirs = (vitrail.predict(each, path, score=0.05, workers=0)[0] for each in (model, tmp_path / "model.onnx"))
    assert len(ours.objects) > 1  # pyright: ignore
    for mine, other in zip(ours.objects, theirs.objects, strict=True):  # pyright: ignore
        assert mine.label == other.label
        assert (mine.shape.pixels() == other.shape.pixels()).mean() > 0.99


def test_a_file_says_that_its_model_draws_objects(model: DenseViT, tmp_path: Path) -> None:
    vitrail.save(model, tmp_path / "run")
    assert "5 queries to detect and draw 6 classes" in str(vitrail.describe(tmp_path / "run"))


def test_a_server_gives_the_pixels_of_objects(model: DenseViT, tmp_path: Path) -> None:
    data = photo(tmp_path / "a.png").read_bytes()
    with TestClient(create_app({"cars": model})) as client:

        def ask(address: str) -> Any:
            return client.post(address, content=data, headers={"content-type": "image/png"})

        (row,) = ask("/v1/detect?score=0.1").json()["predictions"]
        assert row["objects"]
        for each in row["objects"]:
            assert each["segmentation"]["size"] == [19, 31]
            assert sum(unpacked(each["segmentation"]["counts"])) == 19 * 31
        assert ask("/v1/detect?format=overlay&score=0.1").content != ask("/v1/detect?format=overlay&score=1").content
