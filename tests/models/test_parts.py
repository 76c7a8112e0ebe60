"""Parts that the paper's ViT lacks: counted as they are built, and equal to their own definitions."""

from typing import Any

import pytest
import torch
from families import SMALL, family
from torch.nn import functional as F

from vitrail.config import PatchStem, RotaryPositions, Sinusoidal2DPositions, ViTConfig, decode, encode
from vitrail.errors import ConfigError, ShapeError
from vitrail.inspection.attention import Distances, Pooled, Rollout, observe, shape_of
from vitrail.models import ViT, build
from vitrail.models.parts import AttentionPool, PartedMlp
from vitrail.ops.cost.counts import Step, forward_macs, parameters, peak_memory
from vitrail.ops.rotary import rotary_table, rotate

BASE: dict[str, Any] = {"stem": PatchStem(patch=4), "image_size": (12, 20), **SMALL}
SIX = {"heads": 6}
PARTS: dict[str, dict[str, Any]] = {
    "registers": {"registers": 3, "class_token": False, "pooling": "mean"},
    "distilled": {"registers": 1, "pooling": "distilled"},
    "clip": {"first_norm": True, "projection": 11, "activation": "quick-gelu"},
    "eva": {"mlp": "gated", "activation": "silu", "inner_norm": "both", **SIX}
    | {"positions": RotaryPositions(table="bicubic", places="steps", pairs="neighbors", reference=4)},
    "siglip": {"qk_norm": True, "attention_width": 36, "pooling": "attention"},
    "no norm": {"final_norm": "none"},
    "norm after pooling": {"final_norm": "pooled", "pooling": "mean", "class_token": True},
    "dinov3": {"pooling": "token+mean", "registers": 2, "positions": RotaryPositions(), **SIX},
    "last norm after post-norm": {"norm": "post", "final_norm": "tokens"},
    "everything after": {"pooling": "attention", "class_token": True, "projection": 5, "pre_logits": 9},
    "patch norms": {"stem": PatchStem(patch=4, norms=True), "positions": Sinusoidal2DPositions(code="simple")},
}


def made(name: str, **changes: Any) -> ViT:
    model = build(ViTConfig(**{**BASE, **PARTS[name], **changes}), seed=0).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    assert isinstance(model, ViT)
    return model


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_counted_as_it_is_built_and_goes_through_json(name: str) -> None:
    model = made(name)
    config = model.config
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters(config).total
    assert decode(encode(config), ViTConfig) == config
    assert forward_macs(config).total > 0
    assert peak_memory(config, Step(kind="train", batch=2)).total > 0


@pytest.mark.parametrize("name", PARTS)
def test_the_multiplications_are_those_of_the_matrices(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = made(name)
    with (
        FlopCounterMode(display=False) as counter,
        torch.no_grad(),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        model(torch.zeros(1, 3, 12, 20))
    assert counter.get_total_flops() == 2 * forward_macs(model.config).total


@pytest.mark.parametrize("name", PARTS)
def test_weights_inside_are_those_that_mix_the_values(name: str) -> None:
    model, images = made(name), torch.rand(2, 3, 16, 12)
    tokens, grid = model.embed(images), model.grid_of(images)
    block = model.blocks[0]
    read = block.attention_input(tokens)
    weights = block.attention.weights(read, grid=grid)
    _, _, value = block.attention.project(read, grid)
    mixed = (weights @ value).transpose(1, 2).flatten(2)
    mixed = getattr(block.attention, "inner_norm", torch.nn.Identity())(mixed)
    torch.testing.assert_close(block.attention.out(mixed), block.attention(read, grid), atol=1e-5, rtol=1e-5)


def test_rotary_angles_depend_on_the_way_from_patch_to_patch_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(8, generator=generator).expand(1, 1, 15, 8) for _ in range(2))
    for how in (RotaryPositions(), RotaryPositions(places="steps", pairs="neighbors", period=100.0)):
        table = rotary_table(how, 8, 3, 5, torch.device("cpu"))
        logits = rotate(query, table, 0, how.pairs)[0, 0] @ rotate(key, table, 0, how.pairs)[0, 0].T
        places = [(row, col) for row in range(3) for col in range(5)]
        by_way: dict[tuple[int, int], list[float]] = {}
        for i, (row, col) in enumerate(places):
            for j, (other, across) in enumerate(places):
                by_way.setdefault((row - other, col - across), []).append(float(logits[i, j]))
        assert all(max(each) - min(each) < 1e-4 for each in by_way.values())
        assert len({round(each[0], 3) for each in by_way.values()}) > 20


def test_rotary_positions_turn_by_the_formula_and_leave_the_first_tokens_alone() -> None:
    how, heads = RotaryPositions(period=9.0), torch.randn(1, 2, 1 + 6, 4)
    table = rotary_table(how, 4, 2, 3, torch.device("cpu"))
    turned = rotate(heads, table, 1, "halves")
    assert torch.equal(turned[:, :, 0], heads[:, :, 0])
    angle = 2 * torch.pi * torch.tensor([-0.5, -2 / 3])  # of the first patch: row 0 of 2, column 0 of 3
    first, second = heads[0, 0, 1, :2], heads[0, 0, 1, 2:]
    expected = torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()])
    torch.testing.assert_close(turned[0, 0, 1], expected)
    with pytest.raises(ShapeError, match="of every patch of a grid, here 6; got 4"):
        rotate(heads[:, :, :5], table, 1, "halves")


def test_a_gated_mlp_is_its_formula() -> None:
    mlp = made("eva").blocks[0].mlp
    assert isinstance(mlp, PartedMlp)
    tokens = torch.randn(2, 5, 24)
    gate, value = F.linear(tokens, mlp.expand.weight, mlp.expand.bias).split(40, dim=2)
    expected = mlp.contract(mlp.inner_norm(gate * torch.sigmoid(gate) * value))
    torch.testing.assert_close(mlp(tokens), expected)


def test_attention_pooling_is_torchs_attention_of_one_query_and_an_mlp() -> None:
    pool = made("everything after").pooling
    assert isinstance(pool, AttentionPool)
    theirs = torch.nn.MultiheadAttention(24, 3, batch_first=True)
    state = {"in_proj_weight": pool.qkv.weight, "in_proj_bias": pool.qkv.bias}
    state |= {"out_proj.weight": pool.out.weight, "out_proj.bias": pool.out.bias}
    theirs.load_state_dict(state)
    tokens = torch.randn(2, 6, 24)
    mixed = theirs(pool.probe.expand(2, 1, 24), tokens[:, 1:], tokens[:, 1:])[0][:, 0]
    torch.testing.assert_close(pool(tokens), mixed + pool.mlp(pool.mlp_norm(mixed)[:, None])[:, 0])


def test_two_heads_are_averaged_and_without_them_two_tokens_are() -> None:
    model, images = made("distilled"), torch.rand(2, 3, 12, 20)
    tokens = model.tokens(images)
    head = model.head
    expected = (head.first(tokens[:, 0]) + head.second(tokens[:, 1])) / 2  # pyright: ignore
    torch.testing.assert_close(model(images), expected)
    bare = made("distilled", classes=None)
    torch.testing.assert_close(bare(images), bare.tokens(images)[:, :2].mean(dim=1))


def test_registers_count_as_no_patches_where_a_model_is_looked_at() -> None:
    model, images = made("dinov3"), torch.rand(2, 3, 12, 20)
    shape = shape_of(model, images)
    assert (shape.leading, shape.tokens) == (3, 18)
    rolled, pooled, near = Rollout(shape), Pooled(shape), Distances(shape, normalized=True)
    with torch.no_grad():
        observe(model, images, [rolled, pooled, near])
        weights = torch.stack(model.attention_maps(images), dim=1)  # B L h T T
    assert rolled.maps().shape == (2, 3, 5)
    torch.testing.assert_close(pooled.maps().flatten(3), weights[:, :, :, 0, 3:])
    assert model.feature_map(images).shape == (2, 24, 3, 5)
    mean = made("registers")
    shape = shape_of(mean, images)
    pooled = Pooled(shape)
    with torch.no_grad():
        observe(mean, images, [pooled])
        weights = torch.stack(mean.attention_maps(images), dim=1)
    torch.testing.assert_close(pooled.maps().flatten(3), weights[:, :, :, 3:, 3:].mean(dim=3))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pooling": "distilled"}, r"got registers=0\. Take registers=1"),
        ({"class_token": False}, "reads the class token; got class_token=False"),
        ({"pooling": "token+mean", "final_norm": "pooled"}, "Take final_norm='tokens'"),
        ({"positions": RotaryPositions(), "heads": 4}, "multiple of 4; got 6"),
        ({"attention": "axial", "pooling": "mean", "registers": 1}, "registers have no place"),
        ({"attention_width": 10}, "heads must divide the attention_width 10"),
        ({"registers": -1}, "registers must be a whole number, at least 0"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ViTConfig(**{**BASE, **changes})


def test_norms_of_branches_come_after_attention_and_mlp_before_the_sums() -> None:
    model = family("vit", norm="branch", layer_scale=0.5)
    assert isinstance(model, ViT)
    block, tokens = model.blocks[1], torch.randn(2, 16, 24)
    mixed = tokens + block.attention_scale(block.attention_norm(block.attention(tokens)))
    expected = mixed + block.mlp_scale(block.mlp_norm(block.mlp(mixed)))
    torch.testing.assert_close(block(tokens), expected)
    assert model.config.last_norm == "tokens"
    with pytest.raises(ConfigError, match=r"axial attention has no .*norm=branch"):
        family("axial", norm="branch")
