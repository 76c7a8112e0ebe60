"""Nothing in a model, a head or a loss tells left from right but its weights: mirrored, they say the mirrored of it."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitrail
from vitrail.config.dense import DenseHead, LinearHead, QueryHead
from vitrail.config.recipe import Training
from vitrail.config.task import read_image_task
from vitrail.data.source import Batch
from vitrail.models.dense import DenseViT
from vitrail.runtime.dense import answer_images
from vitrail.train.dense import DensePrediction

PATCH, ROWS, COLS, CLASSES = 4, 3, 5, 4
HEADS: dict[str, DenseHead] = {
    "segment": QueryHead(task="segment", queries=6, blocks=2, upscale=4),
    "detect": QueryHead(task="detect", queries=6, blocks=2),
    "linear": LinearHead(),
}


def model_of(head: DenseHead) -> DenseViT:
    size = (ROWS * PATCH, COLS * PATCH)
    shape: dict[str, Any] = {"depth": 3, "width": 24, "heads": 3, "mlp_width": 32, "image_size": size}
    model = vitrail.create("ViT-Ti/4", classes=CLASSES, head=head, **shape)
    assert isinstance(model, DenseViT)
    torch.manual_seed(5)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.3 * torch.randn_like(each))
    return model.eval()


def mirrored(model: DenseViT) -> DenseViT:
    """Turn every weight that has a left and a right: patches, their places, the finer map, and where boxes lie."""
    turned = copy.deepcopy(model)
    turn: dict[str, Callable[[Tensor], Tensor]] = {
        "embedding.projection.weight": lambda w: w.unflatten(1, (PATCH, PATCH, 3)).flip(2).flatten(1),
        "positions.table.0": lambda w: torch.cat([w[:1], w[1:].unflatten(0, (ROWS, COLS)).flip(1).flatten(0, 1)]),
    }
    for level in range(2):
        turn |= dict.fromkeys(
            [f"head.upscale.{level}.expand.weight", f"head.upscale.{level}.expand.bias"],
            lambda w: w.unflatten(0, (2, 2, -1)).flip(1).flatten(0, 2),
        )
        turn[f"head.upscale.{level}.smooth.weight"] = lambda w: w.flip(3)
    for name in ("guess_box", "box"):  # the first number is where the middle lies from left to right
        turn |= dict.fromkeys([f"head.{name}.4.weight", f"head.{name}.4.bias"], lambda w: torch.cat([-w[:1], w[1:]]))
    turned.load_state_dict({name: turn.get(name, lambda w: w)(w) for name, w in model.state_dict().items()})
    return turned


@pytest.mark.parametrize("case", HEADS)
def test_a_mirrored_model_says_the_mirrored_of_a_mirrored_image(case: str) -> None:
    model, images = model_of(HEADS[case]), torch.randn(3, 3, ROWS * PATCH, COLS * PATCH)
    sizes = [(37, 50), (12, 20), (9, 7)]
    with torch.no_grad():
        ours = answer_images(model, images, sizes)
        theirs = answer_images(mirrored(model), images.flip(3), sizes)
    if case != "detect":
        assert len({*torch.cat([each.mask.flatten() for each in ours if each.mask is not None]).tolist()}) > 1
    for one, two, (_, width) in zip(ours, theirs, sizes, strict=True):
        if one.mask is not None:
            assert two.mask is not None
            assert (two.mask != one.mask.flip(1)).float().mean() < 0.01  # of two scores that are equal either may win
        else:
            assert one.found is not None
            assert two.found is not None
            left, top, right, bottom = one.found.boxes.T
            expected = np.stack([width - right, top, width - left, bottom], axis=1)
            assert len(expected) > 2
            assert two.found.boxes == pytest.approx(expected, abs=1e-3)
            assert two.found.classes.tolist() == one.found.classes.tolist()
            assert two.found.scores == pytest.approx(one.found.scores, abs=1e-5)


@pytest.mark.parametrize("case", HEADS)
def test_what_is_lost_is_the_same_in_a_mirror(case: str) -> None:
    """Attention is masked as in training, by masks and boxes so far."""
    model, samples = model_of(HEADS[case]), torch.arange(3)
    images, masks = (
        torch.randn(3, 3, ROWS * PATCH, COLS * PATCH),
        torch.randint(CLASSES, (3, ROWS * PATCH, COLS * PATCH)),
    )
    masks = torch.where(torch.rand(masks.shape) < 0.1, 255, masks).to(torch.uint8)
    boxes = torch.tensor([[[1, 0.1, 0.2, 0.5, 0.8], [3, 0.4, 0.0, 1.0, 0.3]]]).repeat(3, 1, 1)
    flipped = torch.stack([boxes[..., 0], 1 - boxes[..., 3], boxes[..., 2], 1 - boxes[..., 1], boxes[..., 4]], dim=2)
    lost = []
    for each, seen, known, objects in (
        (model, images, masks, boxes),
        (mirrored(model), images.flip(3), masks.flip(2), flipped),
    ):
        training = Training(steps=3, task=read_image_task(HEADS[case].task))  # pyright: ignore[reportArgumentType]
        learned = DensePrediction(each, training)
        learned.module.train()
        some: dict[str, Any] = {"objects": objects} if case == "detect" else {"masks": known}
        batch = Batch(seen, samples, samples, samples, samples[:0], 0, 0, (), **some)
        inputs = learned.inputs(batch)
        lost.append(learned.compute_loss(learned.module(*inputs), batch, inputs).losses)
    torch.testing.assert_close(lost[0], lost[1], atol=1e-4, rtol=1e-4)
