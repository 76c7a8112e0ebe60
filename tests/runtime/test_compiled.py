"""The compiler of what is trained: the same loss and gradients as without it, from fewer bytes that are kept."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import vitrail
from vitrail.config import parse
from vitrail.models import Model
from vitrail.ops.cost.counts import Step, activation_bytes
from vitrail.runtime.compiled import backend_for, lean_inductor, quick_inductor

BATCH, TOKENS, WIDTH, WIDE, DEPTH = 3, 17, 24, 40, 2


def small() -> Model:
    fields = {"depth": DEPTH, "width": WIDTH, "heads": 3, "mlp_width": WIDE, "pooling": "mean"}
    model = vitrail.create("ViT-Ti/8", image_size=32, classes=5, **fields)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.train()


def step(model: Model, backend: str | Callable[..., Any] | None) -> tuple[Tensor, list[Tensor], int]:
    """Give the loss of three images, the gradients, and the numbers that are kept beside the weights."""
    torch.compiler.reset()
    forward = model if backend is None else torch.compile(model, dynamic=False, backend=backend)
    images = torch.rand(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(2)) * 2 - 1
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    model.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = F.cross_entropy(forward(images), torch.tensor([1, 4, 2]))
    numbers = sum(kept.values())
    loss.backward()
    grads = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return loss.detach(), grads, numbers


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on the CPU")
def test_what_norms_and_activations_write_is_made_again_to_the_same_gradients(untyped: None) -> None:
    model = small()
    loss, grads, _ = step(model, None)
    lean_loss, lean_grads, lean = step(model, lean_inductor)
    _, _, usual = step(model, "inductor")
    torch.testing.assert_close(lean_loss, loss, atol=1e-5, rtol=1e-5)
    assert len(lean_grads) == len(grads) == len(list(model.parameters()))
    for ours, plain in zip(lean_grads, grads, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-4)
    # Of every block: two norms' outputs and the activation's.
    assert usual - lean >= BATCH * TOKENS * (2 * WIDTH + WIDE) * (DEPTH - 1)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on the CPU")
def test_what_it_keeps_is_what_a_plan_says(untyped: None) -> None:
    model = small()
    _, _, numbers = step(model, lean_inductor)
    said = activation_bytes(model.config, Step(kind="train", batch=BATCH, compiled=True))
    assert abs(4 * numbers / said - 1) < 0.03


def test_a_gpu_trains_plain_vits_with_it_and_a_cpu_none() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert backend_for(parse("ViT-B/16"), gpu) is lean_inductor
    assert backend_for(parse("R50+ViT-B/16"), gpu) is backend_for(parse("BiT-R50x1"), gpu) is quick_inductor
    assert backend_for(parse("ViT-B/16"), cpu) == "inductor"
