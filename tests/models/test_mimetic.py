"""Mimetic initialisation beside its definition: what products are near to, how they spread, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from families import family

import vitrail
from vitrail.config.recipe import Mimetic, Training
from vitrail.errors import ConfigError
from vitrail.models import Model, ViT, create
from vitrail.models.mimetic import initialize_attention, two_factors


def begun(seed: int = 5, **fields: Any) -> ViT:
    model = create("ViT-Ti/16", image_size=32, depth=2, seed=seed)
    initialize_attention(model, Mimetic(**fields), seed=seed)
    assert isinstance(model, ViT)
    return model


def doubles(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    return tensor.detach().double().numpy()


@pytest.mark.parametrize("rank", [1, 4, 7])
def test_two_factors_have_the_nearest_product_of_their_rank_and_share_it_evenly(rank: int) -> None:
    noise = torch.randn(7, 7, generator=torch.Generator().manual_seed(3))
    left, right = (doubles(part) for part in two_factors(noise, 0.6, -0.3, rank=rank))
    wanted = 0.6 * doubles(noise) - 0.3 * np.eye(7)
    # The singular pairs by way of eigenvectors, which is not how they are found.
    values, vectors = np.linalg.eigh(wanted.T @ wanted)
    best = sum(np.outer(wanted @ vectors[:, -n], vectors[:, -n]) for n in range(1, rank + 1))
    np.testing.assert_allclose(left.T @ right, best, atol=1e-5)
    assert left.shape == right.shape == (rank, 7)
    np.testing.assert_allclose(np.linalg.norm(left, axis=1) ** 2, np.sqrt(values[::-1][:rank]), rtol=1e-4)
    np.testing.assert_allclose(left @ left.T, right @ right.T, atol=1e-5)


def test_values_times_outputs_are_noise_minus_the_identity() -> None:
    for block in begun(value_output=(0.5, 0.4)).blocks:
        value, out = doubles(block.attention.qkv.weight.chunk(3)[2]), doubles(block.attention.out.weight)
        noise = (value.T @ out.T + 0.4 * np.eye(192)) / 0.5  # a token x becomes x value' output'
        assert abs(noise.mean()) < 5 / 192**1.5
        assert noise.std() == pytest.approx(1 / np.sqrt(192), rel=5 / 192)
        assert abs(np.trace(noise)) < 5  # the identity is gone


def test_queries_times_keys_of_every_head_are_noise_plus_the_identity_as_far_as_their_rank_goes() -> None:
    model = begun(query_key=(0.0, 0.7))
    query, key, _ = (doubles(part) for part in model.blocks[1].attention.qkv.weight.chunk(3))
    for head in range(3):
        product = query[64 * head : 64 * (head + 1)].T @ key[64 * head : 64 * (head + 1)]
        np.testing.assert_allclose(product @ product, 0.7 * product, atol=1e-5)  # 0.7 times a projection
        assert np.trace(product) == pytest.approx(0.7 * 64, rel=1e-4)
    products = [
        doubles(query.T @ key)
        for query, key in (
            (part[0][:64], part[1][:64])
            for part in (block.attention.qkv.weight.chunk(3) for block in begun(query_key=(0.7, 0.7)).blocks)
        )
    ]
    assert not np.allclose(products[0], products[1])
    assert all(np.linalg.matrix_rank(product, tol=1e-4) == 64 for product in products)
    assert all(np.trace(product) > 30 for product in products)  # a token attends to what is like it


def test_it_is_a_function_of_the_seed_and_leaves_all_else() -> None:
    one, same, other = begun(), begun(), begun(seed=6)
    plain = dict(create("ViT-Ti/16", image_size=32, depth=2, seed=5).named_parameters())
    changed = set()
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, same.get_parameter(name))
        if not torch.equal(parameter, plain[name]):
            changed.add(name.partition(".")[2].partition(".")[2])
            assert not torch.equal(parameter, other.get_parameter(name))
    assert changed == {"attention.qkv.weight", "attention.out.weight"}


def test_a_run_begins_with_it() -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    fields: dict[str, Any] = {"model.depth": 1, "image_size": 16, "steps": 1, "batch_size": 6, "validation_share": 0}
    fields |= {"lr": 1e-12, "warmup": 0, "quiet": True, "workers": 0, "device": "cpu", "ema": None, "seed": 4}
    run = vitrail.pretrain(
        (pixels, np.arange(6) % 2), model="ViT-Ti/8", recipe="small", initialization="mimetic", **fields
    )
    wanted: Model = create("ViT-Ti/8", image_size=16, depth=1, seed=4)
    initialize_attention(wanted, Mimetic(), seed=4)
    name = "blocks.0.attention.out.weight"
    torch.testing.assert_close(run.model.get_parameter(name), wanted.get_parameter(name))


def test_what_has_weights_or_no_attention_or_too_much_is_refused() -> None:
    images = (np.zeros((4, 32, 32, 3), np.uint8), np.arange(4) % 2)
    with pytest.raises(ConfigError, match="this one comes with weights"):
        vitrail.finetune(images, model=family("vit"), steps=1, initialization="mimetic")
    with pytest.raises(ConfigError, match="a BiT has none"):
        vitrail.pretrain(images, model="BiT-R50x1", steps=1, stochastic_depth=0, initialization="mimetic")
    with pytest.raises(ConfigError, match="at most as wide as the tokens, 192; got 384"):
        initialize_attention(create("ViT-Ti/16", depth=1, attention_width=384), Mimetic(), seed=0)
    with pytest.raises(ConfigError, match="query_key must be two numbers"):
        Training(steps=1, initialization=Mimetic(query_key=(1.0,)))  # pyright: ignore[reportArgumentType]
