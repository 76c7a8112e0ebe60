"""What int8 costs, and the images that say so."""

from pathlib import Path

import numpy as np
import pytest
import torch
from families import family
from PIL import Image
from torch import Tensor

import vitrail
from vitrail.config import Card
from vitrail.evaluation.answers import Answers
from vitrail.exports.int8 import expected_loss


def answers_of(logits: Tensor) -> Answers:
    shares, classes = logits.softmax(dim=1).topk(5)
    none, rows = torch.full((len(logits),), -1), torch.arange(len(logits))
    gone = logits.isnan().any(dim=1)
    nan = torch.full((len(logits),), torch.nan).numpy()
    return Answers(
        samples=rows.numpy(),
        labels=none.numpy(),
        classes=torch.where(gone[:, None], -1, classes).numpy(),
        probabilities=shares.numpy(),
        true_probability=nan,
        ranks=none.numpy(),
        losses=nan,
        count=logits.shape[1],
    )


def test_without_labels_the_loss_is_what_the_models_probabilities_expect() -> None:
    logits = torch.randn(60, 7, generator=torch.Generator().manual_seed(0)) * 3
    moved = logits + torch.randn(60, 7, generator=torch.Generator().manual_seed(1))
    shares, changed = logits.softmax(dim=1), 0
    lost = []
    for row, other in zip(shares, moved, strict=True):
        best, taken = int(row.argmax()), int(other.argmax())
        changed += best != taken
        among = taken in row.topk(5).indices.tolist()
        lost.append(float(row[best]) - (float(row[taken]) if among else 0.0))
    assert 3 < changed < 30
    assert expected_loss(answers_of(logits), answers_of(moved)) == pytest.approx(np.mean(lost), abs=1e-6)
    assert expected_loss(answers_of(logits), answers_of(logits)) == 0
    logits[3] = torch.nan  # to which there is no answer that could be lost
    assert expected_loss(answers_of(logits), answers_of(logits)) == 0


@pytest.mark.slow
def test_images_without_labels_or_that_cannot_be_read_are_no_obstacle(untyped: None, tmp_path: Path) -> None:
    model, draw = family("vit", depth=1), np.random.default_rng(0)
    model.card = Card(class_names=tuple(f"kind {number}" for number in range(7)))
    for number in range(150):
        Image.fromarray(draw.integers(0, 256, (12, 20, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    (tmp_path / "7.png").write_bytes((tmp_path / "7.png").read_bytes()[:90])
    made = vitrail.export(model, out=tmp_path / "small.onnx", precision="int8", calibrate=tmp_path, loss=50)
    assert made.quantized is not None
    assert (made.quantized.images, made.quantized.labeled) == (149, False)
