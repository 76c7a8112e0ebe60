"""Heads of pixels and objects: their parameters, their multiply-accumulates, and the memory of a step with them."""

from typing import Any

import pytest
import torch
from peak import peak_bytes
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitrail.config import parse
from vitrail.config.dense import DenseHead, LinearHead, QueryHead
from vitrail.config.recipe import Adam, Training
from vitrail.config.task import read_image_task
from vitrail.data.source import Batch
from vitrail.models import build
from vitrail.models.dense import DenseViT
from vitrail.ops.cost.counts import forward_macs, parameters
from vitrail.runtime.step_memory import step_bytes
from vitrail.train.dense import DensePrediction

HEADS: dict[str, DenseHead] = {
    "segment": QueryHead(task="segment", queries=7, blocks=2, upscale=4),
    "segment-fine": QueryHead(task="segment", queries=12, blocks=3, upscale=8),
    "segment-coarse": QueryHead(task="segment", queries=40, blocks=1, upscale=1),
    "detect": QueryHead(task="detect", queries=60, blocks=2),
    "detect-masks": QueryHead(task="detect", queries=20, blocks=2, masks=True),
    "detect-fine": QueryHead(task="detect", queries=6, blocks=1, upscale=8, masks=True),
    "linear": LinearHead(),
}
SIZE = (96, 128)


def made(head: DenseHead, depth: int = 3) -> DenseViT:
    config = parse("ViT-Ti/16", {"depth": depth, "image_size": SIZE, "classes": 5, "head": head})
    model = build(config, seed=0)
    assert isinstance(model, DenseViT)
    return model


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case not in ("segment", "detect"))) for case in HEADS]
)
def test_parameters_and_multiplications_are_those_of_the_built_model(untyped: None, case: str) -> None:
    model = made(HEADS[case])
    assert parameters(model.config).total == sum(each.numel() for each in model.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model.eval()(torch.rand(1, 3, *SIZE))
    unasked = 5 * 192 * 48 if case.startswith("segment") else 0  # classes of patches, which training asks alone
    assert 2 * (forward_macs(model.config).total - unasked) == counter.get_total_flops()


def known(head: DenseHead, count: int, objects: int) -> Batch:
    """Images with so many classes of pixels, in stripes, or with so many boxes, perhaps of shapes."""
    samples = torch.arange(count)
    images = torch.rand(count, 3, *SIZE)
    if head.task == "segment":
        stripes = (torch.arange(SIZE[1]) * objects // SIZE[1]).to(torch.uint8).expand(count, *SIZE).contiguous()
        return Batch(images, samples, samples, samples, samples[:0], 0, 0, (), masks=stripes)
    corners = 0.7 * torch.rand(count, objects, 2)
    rows = torch.cat([torch.ones(count, objects, 1), corners, corners + 0.2], dim=2)
    shapes = torch.rand(count, objects, *SIZE) < 0.5 if head.shapes else None
    return Batch(images, samples, samples, samples, samples[:0], 0, 0, (), objects=rows, shapes=shapes)


CASES = [("segment", "float32", 3), ("detect", "bfloat16", 30), ("segment", "bfloat16", 5), ("detect", "float32", 3)]
CASES += [("detect-masks", "float32", 9), ("detect-masks", "bfloat16", 3), ("detect-fine", "float32", 4)]
CASES += [("linear", "float32", 4), ("segment-fine", "float32", 2), ("segment-coarse", "bfloat16", 5)]
QUICK = 1


@pytest.mark.parametrize(
    ("case", "precision", "objects"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (number >= QUICK)) for number, case in enumerate(CASES)],
)
def test_a_training_step_peaks_where_predicted(untyped: None, case: str, precision: str, objects: int) -> None:
    model, task = made(HEADS[case]), HEADS[case].task
    training = Training(steps=5, optimizer=Adam(), task=read_image_task(task))  # pyright: ignore[reportArgumentType]
    learned, batch = DensePrediction(model, training), known(HEADS[case], 5, objects)
    learned.module.train()

    def once() -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            inputs = learned.inputs(batch)
            outputs = learned.module(*inputs)  # which the loop holds too
            losses = learned.compute_loss(outputs, batch, inputs).losses
        losses.mean().backward()

    once()
    learned.module.zero_grad()
    weights = 4 * sum(each.numel() for each in model.parameters())
    measured = peak_bytes(once)[1] + 3 * weights + 4 * batch.images.numel()  # with Adam's moments
    measured += 0 if batch.shapes is None else batch.shapes.numel()
    predicted = step_bytes(model.config, training, 5, "cpu", precision, objects=objects)
    assert predicted == pytest.approx(measured, rel=0.08)
    assert step_bytes(model.config, training, 5, "cpu", precision) == pytest.approx(
        measured, rel=0.4
    )  # objects unknown
