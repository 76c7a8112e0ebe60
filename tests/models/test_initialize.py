"""The paper's initialisation: every row of the table by its moments."""

import functools
import math

import pytest
import torch
from families import FAMILIES
from torch import Tensor

import vitrail
from vitrail.models import build
from vitrail.models.build import rule


@functools.cache
def fresh(name: str, **fields: object) -> dict[str, Tensor]:
    return dict(vitrail.create(name, **fields).named_parameters())  # pyright: ignore[reportArgumentType]


def check(weight: Tensor, deviation: float, limit: float) -> None:
    """Mean, deviation and range; tolerances are five standard errors of each."""
    count = weight.numel()
    assert abs(weight.mean().item()) < 5 * deviation / math.sqrt(count)
    assert abs(weight.std().item() / deviation - 1) < 5 / math.sqrt(count)
    assert weight.abs().max().item() <= limit * (1 + 1e-6)


VIT = {"image_size": 64, "depth": 2, "representation_width": 192, "seed": 1}


@pytest.mark.parametrize(
    "name", ["blocks.1.attention.out.weight", "blocks.0.mlp.expand.weight", "blocks.1.mlp.contract.weight"]
)
def test_dense_kernels_are_xavier_uniform(name: str) -> None:
    weight = fresh("ViT-Ti/16", **VIT)[name]
    limit = math.sqrt(6 / sum(weight.shape))
    check(weight, limit / math.sqrt(3), limit)
    assert weight.abs().max() > 0.99 * limit


def test_query_key_and_value_are_each_a_matrix_of_their_own() -> None:
    limit = math.sqrt(6 / (192 + 192))
    parts = fresh("ViT-Ti/16", **VIT)["blocks.0.attention.qkv.weight"].chunk(3)
    for part in parts:
        check(part, limit / math.sqrt(3), limit)
        assert part.abs().max() > 0.99 * limit
    assert not torch.equal(parts[0], parts[1])


@pytest.mark.parametrize(
    ("model", "name", "fan"),
    [
        ("ViT-Ti/16", "embedding.projection.weight", 16 * 16 * 3),
        ("ViT-Ti/16", "hidden.weight", 192),
        ("R+ViT-Ti/16", "embedding.resnet.root.weight", 7 * 7 * 3),
        ("R+ViT-Ti/16", "embedding.patches.projection.weight", 8 * 8 * 64),
        ("BiT-R50x1", "stages.1.0.conv2.weight", 9 * 128),
        ("BiT-R50x1", "stages.1.0.shortcut.weight", 256),
        ("BiT-R50x1", "root.weight", 7 * 7 * 3),
    ],
)
def test_patches_convolutions_and_the_tanh_layer_are_lecun_normal(model: str, name: str, fan: int) -> None:
    weight = fresh(model, **(VIT if model.startswith("ViT") else {"seed": 1}))[name]
    check(weight, 1 / math.sqrt(fan), 2 / math.sqrt(fan) / 0.87962566)


def test_positions_and_mlp_biases_are_small_normals() -> None:
    weights = fresh("ViT-Ti/16", **VIT)
    check(weights["positions.table.0"], 0.02, math.inf)
    check(weights["blocks.0.mlp.expand.bias"], 1e-6, math.inf)
    check(weights["blocks.0.mlp.contract.bias"], 1e-6, math.inf)
    assert weights["positions.table.0"].abs().max() > 0.05  # not cut off


def test_the_rest_is_zero_or_one() -> None:
    weights = fresh("R26+ViT-S/32", depth=1, head_bias=-6.9)
    zero = ["class_token", "head.weight", "blocks.0.attention.qkv.bias", "blocks.0.attention.out.bias"]
    zero += ["embedding.patches.projection.bias", "norm.bias", "blocks.0.mlp_norm.bias"]
    zero += ["embedding.resnet.stages.1.1.norm3.weight", "embedding.resnet.stages.1.0.norm2.bias"]
    one = ["norm.weight", "blocks.0.attention_norm.weight", "embedding.resnet.root_norm.weight"]
    one += ["embedding.resnet.stages.1.1.norm1.weight", "embedding.resnet.stages.0.0.shortcut.1.weight"]
    assert all(not weights[name].any() for name in zero)
    assert all((weights[name] == 1).all() for name in one)
    assert (weights["head.bias"] == -6.9).all()
    bit = fresh("BiT-R50x1")
    assert (bit["stages.0.0.norm3.weight"] == 1).all()
    assert not bit["head.weight"].any()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_has_a_row(name: str) -> None:
    for parameter, _ in build(FAMILIES[name], seed=0, device="meta").named_parameters():
        rule(parameter)
    with pytest.raises(LookupError, match="add one"):
        rule("mystery")


def test_a_weight_is_a_function_of_the_seed_and_its_name_alone() -> None:
    before = torch.random.get_rng_state()
    two, three = fresh("ViT-Ti/16", depth=2, seed=3), fresh("ViT-Ti/16", depth=3, seed=3)
    assert all(torch.equal(two[name], three[name]) for name in two)
    assert not torch.equal(two["blocks.0.mlp.expand.weight"], two["blocks.1.mlp.expand.weight"])
    assert not torch.equal(two["positions.table.0"], fresh("ViT-Ti/16", depth=1, seed=4)["positions.table.0"])
    assert torch.equal(torch.random.get_rng_state(), before)
