"""A last block that gives the class token alone: the same logits, the same gradients."""

from typing import Any

import pytest
import torch
from families import FAMILIES, family, images_for

from vitrail.config import LearnedPositions, ViTConfig
from vitrail.models import ViT, give_keys
from vitrail.runtime.class_token import ClassTokenForward

READS_ALL = {"vit-mean", "vit-max", "vit-original", "vit-relative", "vit-biased", "axial"}
VARIANTS: dict[str, dict[str, Any]] = {
    "hidden": {"pre_logits": 11},
    "no bias, scaled": {"qkv_bias": False, "layer_scale": 0.1},
    "one block": {"depth": 1},
    "positions at every layer": {"positions": LearnedPositions(at="layers")},
    "by cosines": {"cosine_scale": 16.0},
    "no classes": {"classes": None},
    "checkpointing": {"checkpointing": True},
    "exact gelu": {"activation": "gelu"},
}


def made(**changes: Any) -> ViT:
    model = family("vit", **changes)
    assert isinstance(model, ViT)
    return model


def both(model: ViT, images: torch.Tensor) -> list[tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    """Outputs and gradients, of the plain pass and of the other."""
    found = []
    for call in (model, ClassTokenForward(model)):
        model.zero_grad()
        outputs = call(images)
        (outputs * torch.arange(1.0, outputs.shape[1] + 1)).square().sum().backward()
        grads = {name: part.grad for name, part in model.named_parameters() if part.grad is not None}
        found.append((outputs.detach(), grads))
    return found


def test_only_models_whose_classifier_reads_the_class_token_are_admitted() -> None:
    vits = {name: config for name, config in FAMILIES.items() if isinstance(config, ViTConfig)}
    assert {name for name, config in vits.items() if config.reads_class_token_alone} == vits.keys() - READS_ALL


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_outputs_and_gradients_are_those_of_the_plain_pass(changes: dict[str, Any]) -> None:
    model = made(**changes)
    assert model.config.reads_class_token_alone
    (outputs, grads), (found, theirs) = both(model, images_for(model))
    torch.testing.assert_close(found, outputs, atol=1e-6, rtol=1e-5)
    assert theirs.keys() == grads.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(theirs[name], grad, atol=2e-5 * float(grad.abs().max()), rtol=0, msg=name)


def test_a_hybrid_and_other_sizes_too() -> None:
    for model in (family("hybrid"), family("hybrid-root"), made()):
        assert isinstance(model, ViT)
        own = images_for(model)
        for images in (own, torch.randn(3, 3, own.shape[2] + 12, own.shape[3] + 24)):
            with torch.no_grad():
                wanted, found = model.outputs(images), ClassTokenForward(model).outputs(images)
            for ours, theirs in zip(found, wanted, strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_what_dropout_leaves_out_of_the_class_token_is_the_same_by_the_samples_keys() -> None:
    model = made(dropout=0.3, stochastic_depth=0.4, layer_scale=0.5).train()
    give_keys(model, torch.arange(5))
    (outputs, grads), (found, theirs) = both(model, images_for(model, 5))
    torch.testing.assert_close(found, outputs, atol=1e-6, rtol=1e-5)
    for name, grad in grads.items():
        torch.testing.assert_close(theirs[name], grad, atol=2e-5 * float(grad.abs().max()), rtol=0, msg=name)


def test_a_token_that_the_classifier_does_not_read_costs_no_mlp_in_the_last_block() -> None:
    config = FAMILIES["vit"]
    assert isinstance(config, ViTConfig)
    model, rows = made(), list[int]()
    last = model.blocks[config.layers - 1]
    handle = last.mlp.register_forward_pre_hook(lambda _, given: rows.append(given[0].shape[1]))
    with torch.no_grad():
        ClassTokenForward(model)(images_for(model))
    handle.remove()
    assert rows == [1]
