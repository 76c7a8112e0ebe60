"""Predicted memory against what torch allocates and autograd keeps, on small models."""

import contextlib
from typing import Any

import pytest
import torch
from families import FAMILIES
from peak import peak_bytes
from torch import Tensor
from torch.nn import functional as F

from vitrail.config import ModelConfig, override, parse
from vitrail.models import Model, build, give_keys
from vitrail.models.encoder import Block
from vitrail.ops.cost.counts import Step, activation_bytes, peak_memory

CASES: dict[str, tuple[str, dict[str, object], dict[str, Any]]] = {
    "vit": ("ViT-Ti/16", {"depth": 3}, {"batch": 6}),
    "vit-bfloat16": ("ViT-Ti/16", {"depth": 3}, {"batch": 6, "precision": "bfloat16"}),
    "vit-mean-dropout": ("ViT-Ti/16", {"depth": 3, "pooling": "mean", "dropout": 0.1}, {"batch": 6}),
    "vit-max-hidden": ("ViT-Ti/16", {"depth": 3, "pooling": "max", "representation_width": 64}, {"batch": 6}),
    "vit-original": ("ViT-Ti/16", {"depth": 3, "norm": "post", "activation": "relu"}, {"batch": 6}),
    "vit-relative": ("ViT-Ti/16", {"depth": 3, "positions": "relative"}, {"batch": 4}),
    "vit-biased": ("ViT-Ti/16", {"depth": 3, "positions": "bias"}, {"batch": 4}),
    "vit-many-classes": ("ViT-Ti/16", {"depth": 2, "classes": 20_000}, {"batch": 8}),
    "vit-checkpointing": ("ViT-Ti/16", {"depth": 8, "checkpointing": True}, {"batch": 6}),
    "axial": ("Axial-ViT-B/16", {"depth": 2, "width": 192, "mlp_width": 768}, {"batch": 6}),
    "hybrid": ("R26+ViT-S/32", {"depth": 2, "units": (2, 1)}, {"batch": 4}),
    "hybrid-bfloat16": ("R26+ViT-S/32", {"depth": 2, "units": (2, 1)}, {"batch": 4, "precision": "bfloat16"}),
    "hybrid-odd": ("R26+ViT-S/32", {"depth": 2, "units": (1, 1, 1), "image_size": (181, 203)}, {"batch": 4}),
    "bit": ("BiT-R50x1", {"units": (2, 1)}, {"batch": 4}),
    "bit-bfloat16": ("BiT-R50x1", {"units": (2, 1)}, {"batch": 4, "precision": "bfloat16"}),
    "bit-checkpointing": ("BiT-R50x1", {"units": (1, 2), "checkpointing": True}, {"batch": 4}),
}


LARGE = ("hybrid",)  # "hybrid-odd" is the same at a smaller size


def plain(case: str) -> bool:
    """Tell whether the CPU's kernels need no scratch of their own, which would depend on cores and instructions."""
    return "bfloat16" not in case and "bit" not in case


def made(case: str, kind: str) -> tuple[ModelConfig, Step, Model, Tensor, Tensor]:
    name, fields, options = CASES[case]
    config = parse(name, fields)
    assert config.classes is not None
    step = Step(kind=kind, device="cpu", **options)  # pyright: ignore[reportArgumentType]
    images = torch.rand(step.batch, 3, *config.image_size)
    model = build(config, seed=0)
    give_keys(model, torch.arange(step.batch))
    return config, step, model, images, torch.randint(config.classes, (step.batch,))


def cast(step: Step) -> contextlib.AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16) if step.precision == "bfloat16" else contextlib.nullcontext()


@pytest.mark.parametrize("case", [case for case in CASES if "checkpointing" not in case and case != "vit-relative"])
def test_activations_are_what_autograd_keeps(untyped: None, case: str) -> None:
    config, step, model, images, labels = made(case, "train")
    known = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), images]}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in known:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), cast(step):
        F.cross_entropy(model(images), labels)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert activation_bytes(config, step) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case in LARGE else []) for case in CASES if plain(case)]
)
def test_a_training_step_peaks_where_predicted(untyped: None, case: str) -> None:
    config, step, model, images, labels = made(case, "train")

    def once() -> None:
        with cast(step):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()

    once()
    model.zero_grad()
    _, measured = peak_bytes(once)
    predicted = peak_memory(config, step)
    assert predicted.activations + predicted.gradients == pytest.approx(measured, rel=0.08)


@pytest.mark.parametrize("case", [case for case in CASES if plain(case) and "relative" not in case])
def test_inference_peaks_where_predicted(untyped: None, case: str) -> None:
    config, step, model, images, _ = made(case, "infer")
    model.eval()
    with torch.inference_mode(), cast(step):
        model(images)
        _, measured = peak_bytes(lambda: model(images))
    assert peak_memory(config, step).activations == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("name", FAMILIES)
def test_memory_grows_with_the_batch_and_falls_with_checkpointing_and_precision(name: str) -> None:
    config = override(FAMILIES[name], {"image_size": (96, 160)})
    base = Step(kind="train", batch=64)
    total = peak_memory(config, base).total
    assert peak_memory(config, Step(kind="train", batch=128)).total > 1.4 * total
    if name != "hybrid-root":  # whose stem has no units to run again, and holds the most
        assert peak_memory(override(config, {"checkpointing": True}), base).total < total
    # Autocast widens what a GroupNorm reads and writes on a GPU, so convolutions gain nothing there.
    if name.startswith(("vit", "axial")):
        assert peak_memory(config, Step(kind="train", batch=64, precision="bfloat16")).total < total
    share = 1.0 if name == "vit-relative" else 0.7  # a chunk of logits is much beside so small a model
    assert peak_memory(config, Step(kind="infer", batch=64)).total < share * total
    adam, sgd = (peak_memory(config, Step(kind="train", batch=64, optimizer=kind)) for kind in ("adam", "sgd"))
    assert adam.moments == 2 * sgd.moments == 2 * sgd.weights
    muon = peak_memory(config, Step(kind="train", batch=64, optimizer="muon"))
    layers = [module for module in build(config, seed=0, device="meta").modules() if isinstance(module, Block)]
    matrices = sum(weight.numel() for block in layers for weight in block.parameters() if weight.ndim == 2)
    assert adam.moments - muon.moments == 4 * matrices
