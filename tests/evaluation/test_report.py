"""The report of answers against scikit-learn's numbers and lists made by hand."""

import csv
import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from evaluating import NAMES, Pictures, guessing, logits_of, passing
from sklearn import metrics

from vitrail.evaluation.answers import Given, answers
from vitrail.evaluation.report import Subject, predictions, report, results
from vitrail.models import Model
from vitrail.ops.metrics import wilson

IMAGES = 61


def subject(model: Model, source: Pictures, **more: Any) -> Subject:
    found = answers(model, source, passing())
    return Subject(title="one", found=found, source=source, class_names=NAMES, labeled=True, **more)


@pytest.fixture
def said() -> tuple[dict[str, Any], np.ndarray, Pictures]:
    """A report, the probabilities that it is about, and the images, of which 5 have no label and 2 are spoilt."""
    model, source = guessing(), Pictures(IMAGES).forget([0, 9, 17, 40, 60]).spoil(3, 33)
    logits = logits_of(model, source)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return report(subject(model, source), worst=4), shares, source


def known(source: Pictures) -> np.ndarray:
    return np.array([i for i in range(IMAGES) if source.labels[i] >= 0 and i not in source.spoilt])


def test_accuracy_top_five_and_loss_are_scikit_learns(said: Any) -> None:
    document, shares, source = said
    rows = known(source)
    labels, answered = source.labels[rows], shares[rows].argmax(axis=1)
    assert document["images"] == len(rows) == 54
    assert document["accuracy"] == pytest.approx(metrics.accuracy_score(labels, answered))
    answers = shares[rows].argmax(axis=1)
    recalls = metrics.recall_score(labels, answers, average="macro", labels=sorted({*labels.tolist()}))
    assert document["balanced_accuracy"] == pytest.approx(recalls)
    assert document["macro_f1"] == pytest.approx(metrics.f1_score(labels, answers, average="macro"))
    assert document["top5"] == pytest.approx(metrics.top_k_accuracy_score(labels, shares[rows], k=5, labels=range(7)))
    assert document["loss"] == pytest.approx(metrics.log_loss(labels, shares[rows], labels=range(7)), rel=1e-4)
    assert document["interval"] == wilson(int((labels == answered).sum()), 54)
    assert (document["not_counted"], document["left_out"], document["no_answer"]) == (5, 2, 0)
    assert document["skipped"] == [{"name": f"image {i}", "reason": "spoilt"} for i in (3, 33)]


def test_classes_and_confusions_are_scikit_learns(said: Any) -> None:
    document, shares, source = said
    rows = known(source)
    labels, answered = source.labels[rows], shares[rows].argmax(axis=1)
    matrix = metrics.confusion_matrix(labels, answered, labels=range(7))
    assert document["confusion"]["matrix"] == matrix.tolist()
    precision, recall, f1, images = metrics.precision_recall_fscore_support(
        labels,
        answered,
        labels=range(7),
        zero_division=np.nan,  # pyright: ignore[reportArgumentType]
    )
    for number, line in enumerate(document["classes"]):
        assert line["name"] == NAMES[number]
        assert line["images"] == np.asarray(images)[number]
        for name, expected in (("precision", precision), ("accuracy", recall), ("f1", f1)):
            value = np.asarray(expected)[number]
            assert line[name] is None if np.isnan(value) else line[name] == pytest.approx(value)
        wrong = np.where(np.arange(7) == number, 0, matrix[number])
        assert line["mistaken"] == wrong.max()
        if wrong.any():
            assert line["mistaken_for"] == NAMES[int(wrong.argmax())]
    largest = document["confusion"]["largest"]
    off = matrix - np.diag(np.diag(matrix))
    assert [line["images"] for line in largest] == sorted(off[off > 0].tolist(), reverse=True)
    for line in largest:
        assert matrix[NAMES.index(line["class"]), NAMES.index(line["answer"])] == line["images"]


def test_the_worst_are_the_surest_of_the_wrong(said: Any) -> None:
    document, shares, source = said
    wrong = [i for i in known(source) if shares[i].argmax() != source.labels[i]]
    surest = sorted(wrong, key=lambda i: -shares[i].max())[:4]
    assert document["worst"]["wrong"] == len(wrong)
    for line, i in zip(document["worst"]["images"], surest, strict=True):
        assert (line["name"], line["class"]) == (f"image {i}", NAMES[source.labels[i]])
        assert line["answer"] == NAMES[shares[i].argmax()]
        assert line["confidence"] == pytest.approx(shares[i].max(), rel=1e-4)


def test_calibration_is_of_the_images_that_count(said: Any) -> None:
    document, shares, source = said
    rows, total = known(source), 0.0
    for part in document["calibration"]["bins"]:
        inside = [i for i in rows if part["low"] < shares[i].max() <= part["high"]]
        assert part["images"] == len(inside)
        if inside:
            right = np.mean([shares[i].argmax() == source.labels[i] for i in inside])
            total += len(inside) * abs(np.mean([shares[i].max() for i in inside]) - right)
    assert document["calibration"]["error"] == pytest.approx(total / len(rows), rel=1e-4)


def test_the_document_is_json_and_its_rows_say_the_same(said: Any) -> None:
    document = said[0]
    assert json.loads(json.dumps(document, allow_nan=False))["accuracy"] == document["accuracy"]
    rows = results(document, run="run", data="data", setting={"split": "test"})
    assert {row.metric: row.value for row in rows} == {
        "accuracy": document["accuracy"],
        "top5": document["top5"],
        "balanced_accuracy": document["balanced_accuracy"],
        "macro_f1": document["macro_f1"],
        "loss": document["loss"],
        "ece": document["calibration"]["error"],
    }
    assert rows[0].interval == document["interval"]
    assert {row.images for row in rows} == {54}


def test_few_classes_have_no_top_five() -> None:
    model, source = guessing(5), Pictures(7, NAMES[:5])
    found = Subject(title="", found=answers(model, source, passing()), source=source, class_names=None, labeled=True)
    document = report(found)
    assert "top5" not in document
    assert {row.metric for row in results(document, run="", data="", setting={})} == {
        *("accuracy", "balanced_accuracy", "macro_f1", "loss", "ece")
    }


def test_predictions_are_a_line_for_each_image_that_was_read() -> None:
    model, source = guessing(), Pictures(13).forget([2]).spoil(5)
    lines = list(csv.DictReader(io.StringIO(predictions(subject(model, source)).decode())))
    logits = logits_of(model, source)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert [line["name"] for line in lines] == [f"image {i}" for i in range(13) if i != 5]
    for line in lines:
        i, answer = int(line["name"].split()[1]), NAMES[shares[int(line["name"].split()[1])].argmax()]
        assert line["answer"] == answer
        assert float(line["confidence"]) == pytest.approx(shares[i].max(), rel=1e-4)
        if i == 2:
            assert (line["label"], line["probability"], line["right"]) == ("", "", "")
        else:
            label = source.labels[i]
            assert line["label"] == NAMES[label]
            assert float(line["probability"]) == pytest.approx(shares[i, label], rel=1e-3)
            assert line["right"] == ("true" if NAMES[label] == answer else "false")


def test_images_without_an_answer_count_as_wrong_and_spoil_no_other_number() -> None:
    model, source = guessing(), Pictures(11)
    found = subject(model, source)
    lost = np.arange(11) == 4
    broken = replace(
        found.found,
        classes=np.where(lost[:, None], -1, found.found.classes),
        probabilities=np.where(lost[:, None], np.nan, found.found.probabilities).astype(np.float32),
        true_probability=np.where(lost, np.nan, found.found.true_probability).astype(np.float32),
        ranks=np.where(lost, -1, found.found.ranks),
        losses=np.where(lost, np.nan, found.found.losses).astype(np.float32),
    )
    document = report(replace(found, found=broken))
    right = (found.found.ranks == 0) & ~lost
    assert document["no_answer"] == 1
    assert document["images"] == 11
    assert document["accuracy"] == pytest.approx(right.sum() / 11)
    assert document["loss"] == pytest.approx(found.found.losses[~lost].mean(), rel=1e-6)
    json.dumps(document, allow_nan=False)
    line = predictions(replace(found, found=broken)).decode().splitlines()[5]
    assert line == f"image 4,{NAMES[source.labels[4]]},,,,false"


def test_a_model_that_never_answers_has_an_accuracy_and_no_loss() -> None:
    model = guessing()
    with torch.no_grad():
        next(model.head.parameters())[0] = torch.nan
    document = report(subject(model, Pictures(5)))
    assert (document["accuracy"], document["no_answer"]) == (0, 5)
    assert "loss" not in document
    assert [row.metric for row in results(document, run="", data="", setting={})] == [
        *("accuracy", "top5", "balanced_accuracy", "macro_f1")
    ]


def test_two_models_are_compared_on_the_images_that_both_answer() -> None:
    source = Pictures(IMAGES).forget([0, 9])
    first, second = (guessing(seed=seed) for seed in (0, 1))
    one = subject(first, source)
    other = replace(subject(second, source.spoil(3, 33)), title="two")
    found = report(one, other=other)["against"]
    rows = known(source)
    mine, its = (logits_of(model, source)[rows].argmax(axis=1) == source.labels[rows] for model in (first, second))
    assert found["other"] == "two"
    assert found["images"] == len(rows) == 57
    assert (found["accuracy"], found["other_accuracy"]) == pytest.approx((mine.mean(), its.mean()))
    assert found["difference"] == pytest.approx(mine.mean() - its.mean())
    assert (found["both_right"], found["both_wrong"]) == ((mine & its).sum(), (~mine & ~its).sum())
    assert found["only_this"] == [f"image {i}" for i in rows[mine & ~its]]
    assert found["only_other"] == [f"image {i}" for i in rows[its & ~mine]]
    assert found["interval"][0] < found["difference"] < found["interval"][1]
    assert 0 < found["p"] <= 1


def test_labels_of_a_file_decide_and_the_datas_are_said_beside_them() -> None:
    model, source = guessing(), Pictures(13)
    answered = logits_of(model, source).argmax(axis=1).tolist()
    allowed = tuple(
        frozenset([answer] if i % 3 else [(answer + 1) % 7]) if i else frozenset[int]()
        for i, answer in enumerate(answered)
    )
    given = Given(kind="labels", file="real.json", allowed=allowed)
    document = report(subject(model, source, given=given))
    assert document["accuracy"] == pytest.approx(8 / 12)
    assert (document["images"], document["not_counted"], document["labels"]) == (12, 1, "labels")
    assert document["by_the_datas_labels"]["accuracy"] == pytest.approx(metrics.accuracy_score(source.labels, answered))
    assert {line["name"] for line in document["worst"]["images"]} == {f"image {i}" for i in (3, 6, 9, 12)}
    assert document["worst"]["images"][0]["class"] in NAMES
    assert "confusion" not in document
