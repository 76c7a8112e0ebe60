"""Every family under torch.compile, torch.export, bf16 autocast and gradient checkpointing."""

import shutil

import pytest
import torch
from families import FAMILIES, family, images_for
from torch import Tensor
from torch.nn import functional as F

from vitrail.models import Model

QUICK = ("vit-mean",)  # compiling takes seconds


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in FAMILIES]
)
def test_compiles_as_one_graph(untyped: None, name: str) -> None:
    torch.compiler.reset()
    model = family(name)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    images = images_for(model)
    model.train()
    F.cross_entropy(compiled(images), torch.tensor([1, 2])).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval()
    larger = torch.rand(1, 3, 28, 44)
    with torch.no_grad():  # without which a backward pass is traced that nobody asks for
        torch.testing.assert_close(compiled(images), model(images))
        torch.testing.assert_close(compiled(larger), model(larger))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on the CPU")
@pytest.mark.parametrize("name", FAMILIES)
def test_compiles_with_the_default_backend(untyped: None, name: str) -> None:
    torch.compiler.reset()
    model = family(name)
    images = images_for(model)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, fullgraph=True)(images), model(images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_exports_with_a_dynamic_batch(untyped: None, name: str) -> None:
    model = family(name, checkpointing=True)  # which a graph never has
    program = torch.export.export(model, (images_for(model),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    images = images_for(model, batch=5)
    torch.testing.assert_close(program.module()(images), model(images))
    assert not any("checkpoint" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("name", FAMILIES)
def test_exports_at_another_size_than_it_was_built_for(untyped: None, name: str) -> None:
    model = family(name)
    images = torch.rand(2, 3, 28, 44)
    program = torch.export.export(model, (images,))
    torch.testing.assert_close(program.module()(images), model(images))


@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16_autocast_stays_near(name: str) -> None:
    model = family(name)
    images = images_for(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(images)
        F.cross_entropy(logits.float(), torch.tensor([1, 2])).backward()
    assert logits.dtype == torch.bfloat16
    expected = model(images)
    assert (logits.float() - expected).abs().max() < 0.05 * expected.abs().max()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_whole_model_in_bfloat16_stays_near(name: str) -> None:
    model = family(name, torch.bfloat16)
    images = images_for(model, dtype=torch.bfloat16)
    expected = model.float()(images.float())
    assert (model.bfloat16()(images).float() - expected).abs().max() < 0.1 * expected.abs().max()


def stored_bytes(model: Model, images: Tensor) -> int:
    """Bytes that the forward pass keeps for the backward pass, weights aside."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    stored: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(images).sum()
    total = sum(stored.values())
    loss.backward()
    return total


@pytest.mark.parametrize(("name", "share"), [("vit", 0.25), ("hybrid", 0.5), ("bit", 0.5)])
def test_checkpointing_stores_less_for_the_same_gradients(name: str, share: float) -> None:
    changes: dict[str, object] = {} if name == "bit" else {"depth": 6}
    plain = family(name, torch.float64, **changes)
    sparing = family(name, torch.float64, checkpointing=True, **changes)
    images = images_for(plain, batch=3, dtype=torch.float64)
    assert stored_bytes(sparing, images) < share * stored_bytes(plain, images)
    for one, other in zip(plain.parameters(), sparing.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
