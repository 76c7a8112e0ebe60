"""Training with a margin: a step by hand, parts of a batch, what is tallied, and learning."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from train.test_loop import LIVELY, STILL, assert_close, images_of, ready, scaled, take, task, training, weights_of

from vitrail.config.recipe import Adam, Augmentation, Schedule
from vitrail.errors import ConfigError
from vitrail.models.heads import CosineHead
from vitrail.runtime.reporter import SILENT
from vitrail.train.run import run

ARC: dict[str, Any] = {"margin": 0.5, "augmentation": STILL}


def loss_by_angles(cosines: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
    """The mean loss, with angles as such."""
    angles = torch.acos(cosines)
    moved = angles + margin * F.one_hot(labels, cosines.shape[1])
    assert moved.max() < math.pi
    return F.cross_entropy(scale * torch.cos(moved), labels)


def test_a_step_is_one_by_hand_with_angles(tmp_path: Path) -> None:
    source = images_of(12)
    made = ready(tmp_path, source, **ARC)
    model = made.state.model
    assert isinstance(model.head, CosineHead)
    assert model.head.scale == 32
    images, labels = scaled(source, list(range(12)))
    loss = loss_by_angles(model(images) / 32, labels, 32, 0.5)
    plain = F.cross_entropy(model(images), labels)
    right = int((model(images).argmax(dim=1) == labels).sum())
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)
    expected = {
        name: item.detach() - 0.1 * slope for name, item, slope in zip(names, parameters, gradients, strict=True)
    }
    take(made, 1)
    assert_close(made.state.tensors()[0], expected, atol=1e-5)
    total, correct, count = made.state.tally.tolist()
    assert total / 12 == pytest.approx(float(loss.detach()), rel=1e-5)  # the loss that is trained on,
    assert total / 12 > float(plain.detach()) + 1
    assert (correct, count) == (right, 12)  # and the accuracy without a margin


def test_micro_batches_and_filling_up_change_nothing(tmp_path: Path) -> None:
    unmixed = {**LIVELY, "augmentation": Augmentation(crop="squash"), "margin": 0.5}
    results = []
    for size, fills in ((12, False), (5, False), (5, True)):
        made = ready(tmp_path / f"{size}{fills}", images_of(24), micro_batch=size, clip_norm=1.0, **unmixed)
        made.plan.pad_to_micro_batch = fills
        results.append(weights_of(take(made, 3)))
    assert_close(results[1], results[0], atol=1e-5)
    assert_close(results[2], results[0], atol=1e-5)


@pytest.mark.slow
def test_a_margin_learns_eight_images_by_heart(tmp_path: Path) -> None:
    source = images_of(8)
    schedule = Schedule(curve="cosine", warmup_steps=5)
    config = training(
        optimizer=Adam(learning_rate=3e-3), schedule=schedule, steps=80, **(ARC | {"batch_size": 8, "clip_norm": 1.0})
    )
    outcome = run(task(tmp_path / "run", source, config, val=source), SILENT)
    assert outcome.metrics["accuracy"] == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"augmentation": Augmentation(mixup=0.2, cutmix=1.0)}, r"mixup and cutmix mix them. Set mixup=0 and cutmix=0"),
        ({"loss": "sigmoid"}, r"margin belongs to loss=softmax"),
        ({"margin": math.pi}, r"under 3.14; got 3.14.*Take margin=0.5"),
        ({"margin": -0.1}, r"margin must be"),
    ],
)
def test_a_margin_that_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        training(**{**ARC, **changes})
