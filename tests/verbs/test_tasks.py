"""Models of several labels, numbers and ordered classes in every verb: predict, evaluate, export, inspect, serve."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score
from starlette.testclient import TestClient

import vitrail
from vitrail.config import Card
from vitrail.config.outputs import LabelOutputs, NumberOutputs, OrderedOutputs
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.results import read_results
from vitrail.exports.units import in_units
from vitrail.models import Model
from vitrail.serve import create_app
from vitrail.verbs.task_predictions import LabelPrediction, NumberPrediction, OrderedPrediction

NAMES = ("cat", "dog", "bird")
OUTPUTS = {
    "multilabel": LabelOutputs(thresholds=(0.3, 0.5, 0.7)),
    "regression": NumberOutputs(mean=(20.0, -5.0, 1000.0), deviation=(3.0, 0.5, 100.0)),
    "ordinal": OrderedOutputs(size=3),
}
IMAGES = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), dtype=np.uint8)


def model_of(task: str) -> Model:
    model = vitrail.create("ViT-Ti/8", image_size=16, depth=1, width=24, heads=3, classes=3)
    assert isinstance(model.head, torch.nn.Linear)
    with torch.no_grad():
        model.head.weight.copy_(torch.randn(3, 24, generator=torch.Generator().manual_seed(1)))
    model.card = Card(class_names=NAMES, outputs=OUTPUTS[task])
    return model.eval()


def raw_of(model: Model) -> torch.Tensor:
    return vitrail.predict(model, list(IMAGES)).logits


@pytest.mark.parametrize("task", OUTPUTS)
def test_a_card_goes_to_a_run_folder_and_back(task: str, tmp_path: Path) -> None:
    vitrail.save(model_of(task), tmp_path / "run")
    assert vitrail.load(tmp_path / "run").card.outputs == OUTPUTS[task]
    words = {"multilabel": "labels", "regression": "numbers", "ordinal": "ordered classes"}[task]
    said = vitrail.describe(tmp_path / "run").text().splitlines()
    assert next(line.split(maxsplit=1)[1] for line in said if line.startswith("head ")) == f"3 {words}"
    assert vitrail.load(tmp_path / "run", classes=5).card.outputs is None
    (tmp_path / "run" / "outputs.json").write_text('{"kind": "ordered-outputs", "size": 9}')
    with pytest.raises(vitrail.CheckpointError):
        vitrail.load(tmp_path / "run")


def test_labels_are_said_from_their_thresholds_on() -> None:
    model = model_of("multilabel")
    found = vitrail.predict(model, list(IMAGES))
    shares = raw_of(model).sigmoid()
    for each, row in zip(found, shares, strict=True):
        assert isinstance(each, LabelPrediction)
        wanted = [name for name, share, least in zip(NAMES, row, (0.3, 0.5, 0.7), strict=True) if share >= least]
        assert list(each.labels) == wanted
    (row,) = vitrail.predict(model, IMAGES[0]).rows()
    assert row["cat"] == pytest.approx(float(shares[0, 0]), abs=1e-6)
    assert [*row] == ["name", "labels", *NAMES]


def test_numbers_are_given_in_their_own_units() -> None:
    model = model_of("regression")
    found = vitrail.predict(model, list(IMAGES))
    wanted = raw_of(model) * torch.tensor([3.0, 0.5, 100.0]) + torch.tensor([20.0, -5.0, 1000.0])
    first = found[0]
    assert isinstance(first, NumberPrediction)
    np.testing.assert_allclose([*first.values.values()], wanted[0], rtol=1e-5)
    assert found.document()["predictions"][0]["values"] == first.values
    with pytest.raises(ConfigError, match="numbers, not with classes"):
        first.top()


def test_the_answer_among_ordered_classes_is_the_median() -> None:
    model = model_of("ordinal")
    with torch.no_grad():
        model.get_parameter("head.weight").zero_()
        model.get_parameter("head.bias").copy_(torch.tensor([0.4, 0.25, 0.35]).log())
    first = vitrail.predict(model, IMAGES[0])[0]
    assert isinstance(first, OrderedPrediction)
    assert first.label == "dog"
    assert first.top(2)[0][0] == "dog"
    assert first.expected == pytest.approx(0.25 + 0.7)


def targets_of(task: str) -> Any:
    rng = np.random.default_rng(2)
    if task == "ordinal":
        return rng.integers(0, 3, 12)
    return rng.normal(size=(12, 3)) if task == "regression" else np.maximum(rng.random((12, 3)) < 0.5, np.eye(3)[0] > 0)


@pytest.mark.parametrize("task", OUTPUTS)
def test_evaluate_measures_what_the_card_says(task: str, tmp_path: Path) -> None:
    model = model_of(task)
    if task == "ordinal" or task == "multilabel":
        model.card = Card(class_names=("0", "1", "2"), outputs=OUTPUTS[task])
    else:
        model.card = Card(class_names=("value 1", "value 2", "value 3"), outputs=OUTPUTS[task])
    targets = targets_of(task)
    found = vitrail.evaluate(model, (IMAGES, targets), out=tmp_path, fresh=True)
    document = found.document()
    assert document["task"] == task
    assert len(document["each"]) == 3
    if task == "multilabel":
        wanted = average_precision_score(targets, raw_of(model).sigmoid().numpy(), average="macro")
        assert document["metrics"]["mean_average_precision"] == pytest.approx(wanted)
    if task == "regression":
        values = [[*each.values.values()] for each in vitrail.predict(model, list(IMAGES))]  # pyright: ignore[reportAttributeAccessIssue]
        wanted = np.abs(np.array(values) - targets.astype(np.float32)).mean()
        assert document["metrics"]["mean_absolute_error"] == pytest.approx(wanted, rel=1e-5)
    if task == "ordinal":
        labels = [NAMES.index(each.label) for each in vitrail.predict(model_of(task), list(IMAGES))]
        assert found.accuracy == pytest.approx(np.mean(np.array(labels) == targets))
    assert json.loads((tmp_path / "evaluation.json").read_text())["metrics"] == document["metrics"]
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 13
    assert {row.metric for row in read_results(tmp_path / "evaluation.json")} == {*document["metrics"]}
    assert "images" in str(found)


def test_data_of_other_labels_and_options_of_one_class_are_refused() -> None:
    with pytest.raises(DataError, match="expected 3 targets of each image, cat, dog, bird; got 2"):
        vitrail.evaluate(model_of("multilabel"), (IMAGES[:2], np.ones((2, 2), dtype=int)))
    with pytest.raises(ConfigError, match="labels: of one class an image alone, and the model's task is multilabel"):
        vitrail.evaluate(model_of("multilabel"), (IMAGES, targets_of("multilabel")), labels="real.json")
    with pytest.raises(ConfigError, match="of one class an image right; the model's task is regression"):
        vitrail.calibrate(model_of("regression"), (IMAGES, targets_of("regression")))


@pytest.mark.slow
@pytest.mark.usefixtures("untyped")
def test_an_exported_file_of_numbers_gives_them_in_their_own_units(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = model_of("regression")
    wanted = [*vitrail.predict(model, IMAGES[0])[0].values.values()]  # pyright: ignore[reportAttributeAccessIssue]
    made = vitrail.export(model, to="onnx", out=tmp_path / "numbers.onnx")
    found = vitrail.predict(made.path, IMAGES[0])
    np.testing.assert_allclose([*found[0].values.values()], wanted, rtol=1e-5)  # pyright: ignore[reportAttributeAccessIssue]
    np.testing.assert_allclose(found.logits[0], wanted, rtol=1e-5)  # of any other program too


@pytest.mark.parametrize("task", OUTPUTS)
def test_a_page_says_the_likeliest_class_alone(task: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"a page says the likeliest class, and the model's task is {task}"):
        vitrail.export(model_of(task), to="html", out=tmp_path / "page.html")
    with pytest.raises(ConfigError, match=r"a file of onnx ends in \.onnx; got page\.html\. Say to=html"):
        vitrail.export(model_of(task), out=tmp_path / "page.html")
    if task != "ordinal":
        with pytest.raises(
            ConfigError, match=f"int8 is held to the accuracy of classes, and the model's task is {task}"
        ):
            vitrail.export(model_of(task), to="onnx", precision="int8", out=tmp_path / "labels.onnx")


def test_the_units_are_in_a_copy_and_the_model_stays_as_it_is() -> None:
    model = model_of("regression")
    before = raw_of(model)
    made = in_units(model)
    torch.testing.assert_close(
        raw_of(made), before * torch.tensor([3.0, 0.5, 100.0]) + torch.tensor([20.0, -5.0, 1000.0])
    )
    torch.testing.assert_close(raw_of(model), before)
    assert in_units(model_of("ordinal")).card.outputs == OUTPUTS["ordinal"]


@pytest.mark.slow
def test_inspect_names_labels_and_numbers(tmp_path: Path) -> None:
    for task in ("multilabel", "regression"):
        report = vitrail.inspect(model_of(task), IMAGES[:2], out=tmp_path / task, bias=False)
        top = report.numbers["images"][0]["top"]
        assert len(top) == 3
        assert (top[0]["probability"] is None) == (task == "regression")


@pytest.mark.parametrize("task", OUTPUTS)
def test_a_server_answers_as_predict_does(task: str) -> None:
    model, picture = model_of(task), io.BytesIO()
    Image.fromarray(IMAGES[0]).save(picture, "PNG")
    (wanted,) = vitrail.predict(model, picture.getvalue()).document()["predictions"]
    with TestClient(create_app({"one": model})) as client:
        answer = client.post("/v1/classify", content=picture.getvalue(), headers={"content-type": "image/png"})
        (found,) = answer.json()["predictions"]
        assert client.get("/v1/models").json()["data"][0]["task"] == task
    for name in ("labels", "label"):
        assert found.get(name) == wanted.get(name)
    for name, value in wanted.get("values", {}).items():
        assert found["values"][name] == pytest.approx(value, rel=1e-5)
    if task == "multilabel":
        assert [each["label"] for each in found["top"]] == [each["label"] for each in wanted["top"]]
