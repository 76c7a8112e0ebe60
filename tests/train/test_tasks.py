"""Runs that learn several labels, numbers or ordered classes: what is learned, kept in the card, and resumed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from vitrail.config import Card
from vitrail.config.outputs import LabelOutputs, NumberOutputs, OrderedOutputs
from vitrail.config.recipe import Training
from vitrail.config.task import Ordinal, Regression
from vitrail.data.source import Batch
from vitrail.errors import ConfigError, DataError
from vitrail.models import create
from vitrail.train.tasks import TaskObjective

COUNT = 50


def drawn() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    hot = (rng.random((COUNT, 3)) < 0.5).astype(np.int64)
    hot[~hot.any(axis=1), 0] = 1
    images = rng.integers(0, 100, (COUNT, 16, 16, 3), dtype=np.uint8)
    return images + (hot * 120).astype(np.uint8)[:, None, None], hot


IMAGES, HOT = drawn()
NUMBERS = IMAGES.mean(axis=(1, 2))[:, :2] * [1, 5] + [0, 1000]
TARGETS = {"multilabel": HOT, "regression": NUMBERS, "ordinal": HOT.sum(axis=1) - 1}


def train(task: str, out: Path | None = None, data: Any = None, **fields: Any) -> vitrail.Run:
    model = vitrail.create("ViT-Ti/8", image_size=16, depth=1, width=24, heads=3, classes=3)
    usual = {"steps": 40, "batch_size": 10, "evaluate_every": 20, "quiet": True, "device": "cpu", "workers": 0}
    usual |= {"lr": 3e-3, "seed": 0, "mixup": 0.0}
    data = (IMAGES, TARGETS[task]) if data is None else data
    return vitrail.finetune(data, model=model, out=out, task=task, **{**usual, **fields})


@pytest.mark.parametrize(
    ("task", "metric", "least"),
    [("multilabel", "mean_average_precision", 0.85), ("regression", "r2", 0.7), ("ordinal", "within_one", 0.99)],
)
def test_a_task_is_learned_and_its_outputs_mean_what_the_card_says(task: str, metric: str, least: float) -> None:
    run = train(task)
    assert run.metrics[metric] > least
    best = max if task != "ordinal" else min
    records = [record for record in run.history if record["kind"] == "evaluation"]
    assert records[-1]["best"] == best(record[records[0]["by"]] for record in records)
    outputs = run.model.card.outputs
    match outputs:
        case LabelOutputs():
            assert len({*outputs.thresholds, 0.5}) > 1, "the val images choose them"
        case NumberOutputs():
            kept = run.model.trained_on  # of the images that were trained on, not those to choose by
            rows = NUMBERS[next(iter(kept.values()))[0]]  # pyright: ignore[reportOptionalSubscript]
            np.testing.assert_allclose(outputs.mean, rows.mean(axis=0), rtol=1e-5)
            np.testing.assert_allclose(outputs.deviation, rows.std(axis=0), rtol=1e-4)
        case _:
            assert outputs == OrderedOutputs(size=3)


@pytest.mark.parametrize(
    ("task", "fields"),
    [
        ("multilabel", {"mixup": 0.2, "focal": 1.0}),
        pytest.param("regression", {"loss": "huber"}, marks=pytest.mark.slow),
        pytest.param("ordinal", {"sampling": "balanced"}, marks=pytest.mark.slow),
    ],
)
def test_a_run_of_a_task_resumes_to_the_bit_with_any_number_of_workers(
    tmp_path: Path, task: str, fields: dict[str, Any]
) -> None:
    fields = {**fields, "steps": 6, "save_every": 2, "evaluate_every": 3}
    whole = train(task, tmp_path / "whole", **fields)
    cut = train(task, tmp_path / "cut", **fields, callbacks=lambda record: record["step"] >= 4)
    assert cut.step == 4
    (tmp_path / "cut" / "summary.json").unlink()
    again = train(task, tmp_path / "cut", **fields, workers=2)
    assert again.step == whole.step == 6
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert again.model.card.outputs == whole.model.card.outputs
    assert again.metrics == whole.metrics


def batch_of(targets: torch.Tensor) -> Batch:
    places = torch.arange(len(targets))
    images = torch.zeros(len(targets), 3, 8, 8)
    return Batch(images, places - places - 1, places, places, places[:0], 0, 0, (), targets)


def test_numbers_are_asked_less_their_mean_by_their_deviation() -> None:
    model = create("ViT-Ti/8", image_size=8, classes=2, depth=1, width=24, heads=3)
    model.card = Card(outputs=NumberOutputs(mean=(100.0, -3.0), deviation=(10.0, 0.5)))
    objective = TaskObjective(model, Training(steps=1, task=Regression()))
    batch = batch_of(torch.tensor([[120.0, -3.0], [95.0, -2.0]]))
    losses, correct = objective.compute_loss(torch.tensor([[2.0, 0.0], [0.5, 0.0]]), batch, ())
    assert losses.tolist() == [0.0, pytest.approx((1.0 + 4.0) / 4)]
    assert not correct.any()


def test_class_weights_count_in_the_loss_of_ordered_classes() -> None:
    model = create("ViT-Ti/8", image_size=8, classes=3, depth=1, width=24, heads=3)
    model.card = Card(outputs=OrderedOutputs(size=3))
    plain, weighed = (
        TaskObjective(model, Training(steps=1, task=Ordinal(), class_weights=weights), np.array([8, 1, 1]))
        for weights in (None, (1.0, 2.0, 3.0))
    )
    batch, logits = batch_of(torch.eye(3)), torch.tensor([[1.0, 0.0, 0.0]]).expand(3, 3)
    one, other = (objective.compute_loss(logits, batch, ()).losses for objective in (plain, weighed))
    torch.testing.assert_close(other, one * torch.tensor([1.0, 2.0, 3.0]))


def test_what_cannot_be_learned_is_refused_before_anything_is_computed() -> None:
    with pytest.raises(DataError, match=r"item 0: the image has no label at all, as 50 of 50.*allow_empty=true"):
        train("multilabel", data=(IMAGES, np.zeros((COUNT, 3), dtype=int)))
    with pytest.raises(ConfigError, match="loss=huber is not of task=multilabel"):
        train("multilabel", loss="huber")
    with pytest.raises(ConfigError, match=r"sampling is of one class an image.*task is regression"):
        train("regression", sampling="balanced")
    with pytest.raises(ConfigError, match="task must be one of classify, multilabel"):
        train("caption", data=(IMAGES, HOT))
    with pytest.raises(DataError, match="order must name every class of the data once"):
        train("ordinal", order="0,1")


def test_a_run_of_numbers_begins_another_of_classes_and_remembers_no_names_of_numbers() -> None:
    numbers = train("regression", steps=2)
    again = vitrail.finetune((IMAGES, HOT.argmax(axis=1)), model=numbers, steps=2, quiet=True, device="cpu", workers=0)
    assert again.model.card.outputs is None
    assert again.model.card.seen == ()
