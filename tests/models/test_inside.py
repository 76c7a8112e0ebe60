"""What a model shows of its inside, and what its parts promise each other."""

from typing import Any

import pytest
import torch
from families import FAMILIES, family, images_for
from torch.nn import functional as F

from vitrail.errors import ShapeError
from vitrail.models import BiT, ViT
from vitrail.ops import attention

VITS = [name for name in FAMILIES if name != "bit"]
PRE_NORM = [name for name in VITS if name not in ("vit-original", "axial", "vit-relative")]


def vit(name: str, dtype: torch.dtype = torch.float64, **changes: object) -> ViT:
    model = family(name, dtype, **changes)
    assert isinstance(model, ViT)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_the_logits_are_a_linear_classifier_of_the_representation(name: str) -> None:
    model = family(name, torch.float64)
    images = images_for(model, dtype=torch.float64)
    representation = model.represent(images)
    assert representation.shape == (2, model.config.representation)
    torch.testing.assert_close(model(images), representation @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize("name", VITS)
def test_the_representation_is_read_off_the_tokens(name: str) -> None:
    model = vit(name)
    images = images_for(model, dtype=torch.float64)
    tokens = model.tokens(images)
    assert tokens.shape == (2, model.config.tokens, 24)
    pooled = {"mean": tokens.mean(1), "max": tokens.max(1).values}.get(model.config.pooling, tokens[:, 0])
    if model.hidden is not None:
        pooled = torch.tanh(F.linear(pooled, model.hidden.weight, model.hidden.bias))
    torch.testing.assert_close(model.represent(images), pooled)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_attention_weights_times_values_equal_the_fused_path(dtype: torch.dtype) -> None:
    layer = vit("vit", dtype).blocks[1].attention
    tokens = torch.randn(2, 16, 24, generator=torch.Generator().manual_seed(0)).to(dtype)
    weights = layer.weights(tokens)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    value = layer.project(tokens)[2]
    mixed = (weights @ value.to(weights.dtype)).transpose(1, 2).flatten(2)
    expected = layer(tokens)
    tolerance: dict[str, Any] = {"atol": 1e-12, "rtol": 0} if dtype == torch.float64 else {"atol": 0.02, "rtol": 0.02}
    torch.testing.assert_close(layer.out(mixed.to(dtype)), expected, **tolerance)
    torch.testing.assert_close(layer.weights(tokens, slice(3, 7)), weights[:, :, 3:7])


@pytest.mark.parametrize("name", PRE_NORM)
def test_attention_maps_are_what_the_forward_pass_uses(name: str) -> None:
    model = vit(name)
    images = images_for(model, dtype=torch.float64)
    maps = model.attention_maps(images)
    tokens = model.embed(images)
    for block, weights in zip(model.blocks, maps, strict=True):
        value = block.attention.project(block.attention_norm(tokens))[2]
        mixed = tokens + block.attention.out((weights @ value).transpose(1, 2).flatten(2))
        tokens = mixed + block.mlp(block.mlp_norm(mixed))
    torch.testing.assert_close(model.norm(tokens), model.tokens(images))
    last, first = model.attention_maps(images, layers=[-1, 0], queries=slice(0, 1))
    torch.testing.assert_close(last, maps[1][:, :, :1])
    torch.testing.assert_close(first, maps[0][:, :, :1])
    assert not last.requires_grad


def test_attention_maps_hold_little_more_than_they_return(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.profiler import ProfilerActivity, profile

    monkeypatch.setattr(attention, "CHUNK", 1 << 16)
    model = vit("vit", torch.float32, depth=3)
    images = torch.rand(1, 3, 128, 128)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=False) as record:
        (weights,) = model.attention_maps(images, layers=[1])
    held, peak = 0, 0
    profiler: Any = record.profiler
    for event in profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert weights.shape == (1, 3, 1025, 1025)
    assert peak < 1.3 * weights.numel() * 4


def test_feature_maps_are_the_patch_tokens_on_their_grid() -> None:
    model = vit("vit")
    images = images_for(model, dtype=torch.float64)
    tokens = model.tokens(images)
    last = model.feature_map(images)
    assert last.shape == (2, 24, 3, 5)
    torch.testing.assert_close(last[1, :, 2, 3], tokens[1, 1 + 2 * 5 + 3])
    first, again = model.feature_map(images, layers=[0, -1])
    assert torch.equal(again, last)
    torch.testing.assert_close(first[0, :, 0, 1], model.norm(model.blocks[0](model.embed(images)))[0, 2])
    larger = model.feature_map(torch.rand(1, 3, 28, 16, dtype=torch.float64))
    assert larger.shape == (1, 24, 7, 4)


def test_a_resnets_feature_maps_are_its_stages() -> None:
    model = family("bit", torch.float64)
    assert isinstance(model, BiT)
    images = images_for(model, dtype=torch.float64)
    first, last = model.feature_map(images, layers=[0, 1])
    assert first.shape == (2, 256, 9, 12)
    assert last.shape == (2, 512, 5, 6)
    assert torch.equal(last, model.feature_map(images))
    torch.testing.assert_close(model.represent(images), last.mean((2, 3)))


@pytest.mark.parametrize("name", ["vit", "bit"])
def test_layers_that_are_not_there_are_refused(name: str) -> None:
    model = family(name)
    for layers, message in ([2], "from 0 to 1 .*got 2"), ([-3], "got -3"), ([], "at least one of the 2 layers"):
        with pytest.raises(ShapeError, match=message):
            model.feature_map(images_for(model), layers=layers)
