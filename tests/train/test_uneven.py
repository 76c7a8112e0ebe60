"""Runs on uneven classes: what the loss is, which images come, what is said and refused, and that they resume."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import uneven as slow
from torch import Tensor

import vitrail
from vitrail.config.objective import MaskedPatches
from vitrail.config.recipe import Training
from vitrail.data.source import Batch
from vitrail.errors import ConfigError
from vitrail.models import create
from vitrail.train.objective import Classification

COUNTS = (40, 8, 2)


def batch_of(targets: Tensor) -> Batch:
    places = torch.arange(len(targets))
    images = torch.zeros(len(targets), 3, 8, 8)
    return Batch(images, targets.argmax(dim=1), places, places, places[:0], 0, 0, (), targets)


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_the_adjusted_loss_is_the_papers_and_what_is_right_goes_by_the_logits_as_they_are(strength: float) -> None:
    model = create("ViT-Ti/8", image_size=8, classes=3, depth=1, width=24, heads=3)
    training = Training(steps=1, logit_adjustment=strength)
    objective = Classification(model, training, np.array([90, 9, 1]))
    logits = torch.tensor([[2.0, 1.0, 0.5], [0.3, 0.2, 0.1], [-1.0, 2.0, 1.9]])
    labels = [0, 1, 2]
    batch = batch_of(torch.eye(3))
    losses, correct = objective.compute_loss(logits, batch, (batch.images,))
    expected = [
        slow.adjusted_loss(row, label, [90, 9, 1], strength) for row, label in zip(logits.tolist(), labels, strict=True)
    ]
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-5)
    assert correct.tolist() == [1, 0, 0]


def uneven() -> tuple[Any, Any]:
    labels = np.repeat(np.arange(3), COUNTS)
    pixels = np.random.default_rng(0).integers(0, 150, (50, 16, 16, 3), dtype=np.uint8)
    pixels[..., 1] += (labels * 50).astype(np.uint8)[:, None, None]
    return pixels, labels


def train(out: Path | None = None, **fields: Any) -> vitrail.Run:
    model = vitrail.create("ViT-Ti/8", image_size=16, depth=1, width=24, heads=3, classes=3)
    usual = {"steps": 6, "batch_size": 10, "evaluate_every": 3, "quiet": True, "device": "cpu", "workers": 0}
    return vitrail.finetune({"train": uneven(), "val": uneven()}, model=model, out=out, **{**usual, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"class_weights": "balanced", "focal": 2.0},
        {"class_weights": [1, 2, 3.5]},
        {"sampling": "balanced", "mixup": 0.2},
        {"logit_adjustment": 1.0, "loss": "sigmoid"},
    ],
    ids=str,
)
def test_a_run_takes_each_correction_and_measures_classes_alike(fields: dict[str, Any]) -> None:
    run = train(**fields)
    assert run.finished
    assert 0 <= run.metrics["balanced_accuracy"] <= 1
    assert 0 <= run.metrics["macro_f1"] <= 1
    evaluations = [record for record in run.history if record["kind"] == "evaluation"]
    corrected = {"class_weights", "sampling", "logit_adjustment"} & fields.keys() and not isinstance(
        fields.get("class_weights"), list
    )
    by = "balanced_accuracy" if corrected else "accuracy"
    assert evaluations[-1]["best"] == max(record[by] for record in evaluations)


def test_a_run_by_balanced_sampling_resumes_to_the_bit_with_any_number_of_workers(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"sampling": "balanced", "class_weights": "effective", "logit_adjustment": 0.5, "focal": 1}
    whole = train(tmp_path / "whole", **fields)
    cut = train(tmp_path / "cut", **fields, save_every=2, callbacks=lambda record: record["step"] >= 4)
    assert cut.step == 4
    (tmp_path / "cut" / "summary.json").unlink()
    again = train(tmp_path / "cut", **fields, save_every=2, workers=2)
    assert again.step == whole.step == 6
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_weights_of_another_length_are_refused_before_anything_is_computed() -> None:
    with pytest.raises(
        ConfigError, match=r"one number for each of the 3 classes, in their order.*got 2\. Give as many"
    ):
        train(class_weights=[1, 2])
    with pytest.raises(ConfigError, match="class_weights must be at least 0; got -2"):
        train(class_weights=[1, -2, 3])
    with pytest.raises(ConfigError, match="class_weights are all 0: no image would count"):
        train(class_weights=[0, 0, 0])
    with pytest.raises(ConfigError, match="balanced, effective"):
        train(class_weights="even")


def test_what_is_of_labels_is_refused_where_they_are_not_learned() -> None:
    with pytest.raises(ConfigError, match="only labels have class_weights and sampling"):
        Training(steps=1, objective=MaskedPatches(), class_weights="balanced", sampling="balanced")


def test_uneven_classes_are_said_with_what_helps(capsys: pytest.CaptureFixture[str]) -> None:
    train(quiet=False, steps=1)
    said = capsys.readouterr().err
    assert "classes are uneven, from 2 to 40 images each" in said
    assert "logit_adjustment=1, class_weights=balanced and sampling=balanced" in said
    train(quiet=False, steps=1, sampling="balanced", logit_adjustment=1)
    said = capsys.readouterr().err
    assert "classes are uneven" not in said
    assert "together they do it twice" in said
