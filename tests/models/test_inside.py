"""What a model shows of its inside, and what its parts promise each other."""

from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES, family, images_for
from peak import peak_bytes
from torch.nn import functional as F

from vitrail.errors import ConfigError, ShapeError
from vitrail.models import BiT, ViT
from vitrail.ops import attention_chunks

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
    torch.testing.assert_close(
        model(images), representation @ model.get_parameter("head.weight").T + model.get_parameter("head.bias")
    )


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
        heard = block.attention.out((weights @ value).transpose(1, 2).flatten(2))
        mixed = tokens + block.attention_scale(heard)
        tokens = mixed + block.mlp_scale(block.mlp(block.mlp_norm(mixed)))
    torch.testing.assert_close(model.norm(tokens), model.tokens(images))
    last, first = model.attention_maps(images, layers=[-1, 0], queries=slice(0, 1))
    torch.testing.assert_close(last, maps[1][:, :, :1])
    torch.testing.assert_close(first, maps[0][:, :, :1])
    assert not last.requires_grad


def test_attention_maps_hold_little_more_than_they_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_chunks, "CHUNK", 1 << 16)
    model = vit("vit", torch.float32, depth=3)
    images = torch.rand(1, 3, 128, 128)
    (weights,), peak = peak_bytes(lambda: model.attention_maps(images, layers=[1]))
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
    assert (first < 0).any()
    assert last.shape == (2, 512, 5, 6)
    assert torch.equal(last, model.feature_map(images))
    torch.testing.assert_close(model.represent(images), last.mean((2, 3)))


@pytest.mark.parametrize("name", ["vit", "bit"])
def test_layers_that_are_not_there_are_refused(untyped: None, name: str) -> None:
    model = family(name)
    images = images_for(model)
    cases = (
        ([2], "from 0 to 1 .*got 2"),
        ([-3], "got -3"),
        ([], "at least one of the 2"),
        (0.5, "got 0.5"),
        ("a", "'a'"),
    )
    for layers, message in cases:
        with pytest.raises(ShapeError, match=message):
            model.feature_map(images, layers=layers)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if isinstance(model, ViT):
        assert torch.equal(model.attention_maps(images, layers=0)[0], model.attention_maps(images)[0])
        for bad in (0, None, slice(0, 3, 0), slice(3, 0, -1), slice("a", 3), slice(0, 1.5)):
            with pytest.raises(ShapeError, match=r"a slice of the tokens, such as slice\(0, 1\); got"):
                model.attention_maps(images, queries=bad)  # pyright: ignore[reportArgumentType]
        assert model.feature_map(images, layers=np.int64(0)).shape == (2, 24, 3, 5)  # pyright: ignore


def test_a_resnet_says_that_it_has_no_tokens_and_no_attention() -> None:
    model = family("bit")
    with pytest.raises(ConfigError, match=r"a BiT has no tokens\. Take feature_map"):
        model.tokens(images_for(model))
    with pytest.raises(ConfigError, match="a BiT has no attention to show"):
        model.attention_maps(images_for(model))


def test_attention_maps_run_no_further_than_the_last_layer_asked_for() -> None:
    model = vit("vit", torch.float32, depth=3)
    calls = []
    for index, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, index=index: calls.append(index))
    model.attention_maps(images_for(model), layers=[1])
    assert calls == [0]


def test_shapes_of_attention_are_known_on_the_meta_device() -> None:
    model = vit("vit", torch.float32).to("meta")
    assert model.attention_maps(torch.empty(2, 3, 12, 20, device="meta"))[0].shape == (2, 3, 16, 16)


def test_a_resnet_holds_no_stage_that_was_not_asked_for() -> None:
    import weakref

    model = family("bit", torch.float32)
    assert isinstance(model, BiT)
    alive = []
    model.stages[0][-1].register_forward_hook(lambda *arguments: alive.append(weakref.ref(arguments[2])))
    model.norm.register_forward_hook(lambda *_: alive.append(alive[0]() is None))
    with torch.no_grad():
        model.represent(images_for(model))
    assert alive[1]
