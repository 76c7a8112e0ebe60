"""Every kind of position at every place, the original encoder, axial attention and maximum pooling, by value."""

from typing import Any

import pytest
import torch
from families import SMALL
from peak import peak_bytes
from reference import variants
from torch import nn

import vitrail
from vitrail.config import PatchStem, Positions, ViTConfig
from vitrail.config.check import KINDS
from vitrail.errors import ConfigError, ShapeError
from vitrail.models import ViT, build
from vitrail.models.axial import from_lines, to_lines
from vitrail.ops import attention_chunks
from vitrail.ops.attention import attend
from vitrail.ops.attention_chunks import CHUNK
from vitrail.ops.patches import patchify

ADDED = ["learned", "learned-2d", "sinusoidal", "sinusoidal-2d"]
PLACES = ["stem", "layers", "shared"]
QUICK = [("sinusoidal-2d", "layers"), ("relative", "shared")]  # to compile: of each kind the hardest
COMBINATIONS = [("none", "stem"), *((kind, at) for kind in [*ADDED, "relative"] for at in PLACES)]


def variant(kind: str, at: str, **changes: Any) -> ViT:
    positions: Positions = KINDS[kind]() if kind == "none" else KINDS[kind](at=at)
    fields = {
        "image_size": (12, 20),
        "stem": PatchStem(patch=4),
        "positions": positions,
        **SMALL,
        "depth": 3,
        **changes,
    }
    model = build(ViTConfig(**fields), seed=1).double().eval()
    assert isinstance(model, ViT)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def slow(model: ViT, images: torch.Tensor, kind: str, at: str) -> torch.Tensor:
    config, weights = model.config, {name: value.detach() for name, value in model.state_dict().items()}
    grid = (images.shape[2] // 4, images.shape[3] // 4)
    rows = [
        variants.logits(
            weights,
            patches,
            kind=kind,
            at=at,
            heads=3,
            layers=config.layers,
            pooling=config.pooling,
            old=(3, 5),
            new=grid,
            post=config.norm == "post",
            relu=config.activation == "relu",
            axial=config.attention == "axial",
        )
        for patches in patchify(images, 4)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("size", [(12, 20), (20, 16)], ids=["built", "resampled"])
@pytest.mark.parametrize("pooling", ["token", "mean", "max"])
@pytest.mark.parametrize(("kind", "at"), COMBINATIONS)
def test_every_position_at_every_place_equals_the_slow_reference(
    kind: str, at: str, pooling: str, size: tuple[int, int]
) -> None:
    model = variant(kind, at, pooling=pooling)
    images = torch.rand(2, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    # Fixed codes are kept in float32.
    tolerance = 1e-5 if kind.startswith("sinusoidal") else 1e-10
    torch.testing.assert_close(model(images), slow(model, images, kind, at), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("kind", "at"),
    [pytest.param(kind, at, marks=[] if (kind, at) in QUICK else [pytest.mark.slow]) for kind, at in COMBINATIONS],
)
def test_every_position_at_every_place_compiles_and_exports(untyped: None, kind: str, at: str) -> None:
    torch.compiler.reset()
    model = variant(kind, at, depth=2)
    for size in ((12, 20), (20, 16)):
        images = torch.rand(2, 3, *size, dtype=torch.float64)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
        with torch.no_grad():  # without which a backward pass is traced that nobody asks for
            torch.testing.assert_close(compiled(images), model(images))
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    more = torch.rand(5, 3, 20, 16, dtype=torch.float64)
    torch.testing.assert_close(program.module()(more), model(more))


@pytest.mark.parametrize(("kind", "at"), COMBINATIONS)
def test_gradients_reach_every_position_and_attention_maps_are_what_is_used(kind: str, at: str) -> None:
    model = variant(kind, at)
    images = torch.rand(2, 3, 20, 16, dtype=torch.float64)
    model(images).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.positions.parameters())
    tokens = model.embed(images)
    for layer, weights in enumerate(model.attention_maps(images)):
        block = model.blocks[layer]
        tokens = model.positions.add(tokens, layer, (5, 4)) if layer else tokens
        normed = block.attention_input(tokens)
        value = block.attention.project(normed)[2]
        by_hand = block.attention.out((weights @ value).transpose(1, 2).flatten(2))
        keys = model.positions.keys(layer, (5, 4))
        torch.testing.assert_close(by_hand, block.attention(normed, None, keys), atol=1e-12, rtol=1e-10)
        tokens = block(tokens, (5, 4), keys)


@pytest.mark.parametrize(("kind", "at"), COMBINATIONS)
def test_tables_are_as_many_as_the_place_says(kind: str, at: str) -> None:
    sizes = {
        "none": 0,
        "learned": 16 * 24,
        "learned-2d": 24 + (3 + 5) * 12,
        "relative": (2 * 16 - 1) * 24,
        "sinusoidal": 0,
        "sinusoidal-2d": 0,
    }
    count = sum(parameter.numel() for parameter in variant(kind, at).positions.parameters())
    assert count == sizes[kind] * (3 if at == "layers" else 1)


def test_the_original_encoder_layer_is_torchs_with_the_norm_last() -> None:
    model = variant("sinusoidal", "stem", norm="post", activation="relu", depth=1)
    theirs = nn.TransformerEncoderLayer(24, 3, 40, 0.0, "relu", 1e-6, batch_first=True, norm_first=False).double()
    block = model.blocks[0]
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(block.attention.qkv.weight)  # pyright: ignore[reportOptionalMemberAccess]
        theirs.self_attn.in_proj_bias.copy_(block.attention.qkv.bias)
        for mine, other in (
            (block.attention.out, theirs.self_attn.out_proj),
            (block.mlp.expand, theirs.linear1),
            (block.mlp.contract, theirs.linear2),
            (block.attention_norm, theirs.norm1),
            (block.mlp_norm, theirs.norm2),
        ):
            other.weight.copy_(mine.weight)
            other.bias.copy_(mine.bias)
    tokens = torch.randn(2, 7, 24, dtype=torch.float64)
    torch.testing.assert_close(block(tokens), theirs(tokens), atol=1e-10, rtol=0)
    assert isinstance(model.norm, nn.Identity)


def test_the_original_encoder_equals_the_slow_reference() -> None:
    model = variant("sinusoidal", "stem", norm="post", activation="relu")
    images = torch.rand(2, 3, 12, 20, dtype=torch.float64)
    torch.testing.assert_close(model(images), slow(model, images, "sinusoidal", "stem"), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [(12, 20), (20, 16)], ids=["built", "resampled"])
@pytest.mark.parametrize(("kind", "at"), [pair for pair in COMBINATIONS if pair[0] != "relative"])
def test_axial_attention_is_full_attention_with_a_row_and_column_mask(
    kind: str, at: str, size: tuple[int, int]
) -> None:
    model = variant(kind, at, attention="axial", pooling="mean", depth=2)
    assert len(model.blocks) == 4
    images = torch.rand(2, 3, *size, dtype=torch.float64)
    tolerance = 1e-5 if kind.startswith("sinusoidal") else 1e-10
    torch.testing.assert_close(model(images), slow(model, images, kind, at), atol=tolerance, rtol=tolerance)


def test_axial_attention_maps_are_zero_outside_the_row_or_the_column() -> None:
    model = variant("learned", "stem", attention="axial", pooling="mean", depth=1)
    images = torch.rand(2, 3, 12, 20, dtype=torch.float64)
    row, column = model.attention_maps(images)
    index = torch.arange(15)
    assert torch.equal(row[0, 0] > 0, index[:, None] // 5 == index // 5)
    assert torch.equal(column[0, 0] > 0, index[:, None] % 5 == index % 5)
    torch.testing.assert_close(row.sum(-1), torch.ones(2, 3, 15, dtype=torch.float64))
    tokens = model.embed(images)
    for block, weights in zip(model.blocks, (row, column), strict=True):
        normed = block.attention_norm(tokens)
        value = block.attention.qkv(normed)[:, :, 48:].unflatten(2, (3, 8)).transpose(1, 2)
        by_hand = block.attention.out((weights @ value).transpose(1, 2).flatten(2))
        torch.testing.assert_close(by_hand, block.attention(normed, (3, 5)))
        tokens = block(tokens, (3, 5))
    for queries in (slice(2, 4), slice(0, 1), slice(1, 15, 4)):
        parts = model.attention_maps(images, queries=queries)
        assert torch.equal(parts[0], row[:, :, queries])
        assert torch.equal(parts[1], column[:, :, queries])
        assert parts[0].untyped_storage().nbytes() == parts[0].numel() * 8


@pytest.mark.parametrize("axis", ["row", "column"])
def test_lines_come_together_again(axis: Any) -> None:
    tokens = torch.randn(2, 15, 7)
    lines = to_lines(tokens, (3, 5), axis)
    assert torch.equal(from_lines(lines, (3, 5), axis), tokens)
    if axis == "column":
        assert torch.equal(lines[1], tokens[0, 1::5])
    with pytest.raises(ShapeError, match="give the grid"):
        to_lines(tokens, None, "row")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "axial"}, "a class token has no place; got pooling='token'. Take pooling='mean'"),
        ({"attention": "axial", "pooling": "mean", "positions": "relative"}, "take attention='full'"),
        ({"positions": "learned-2d", "width": 25, "heads": 5}, "need a width that is a multiple of 2; got 25"),
        ({"positions": "sinusoidal-2d", "width": 30}, "need a width that is a multiple of 4; got 30"),
        ({"positions": "relatve"}, "positions must be one of none, learned.* Did you mean 'relative'"),
        ({"positions.at": "layer"}, "positions.at must be one of 'stem', 'layers', 'shared'; got 'layer'"),
        ({"norm": "last"}, "norm must be one of 'pre', 'post'"),
    ],
)
def test_variants_that_cannot_be_are_refused(untyped: None, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        vitrail.create("ViT-Ti/16", image_size=32, device="meta", **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_long_sequences_never_form_the_whole_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """16,384 tokens of two heads: the matrix alone would be 2 GiB; attention holds a few of its inputs' sizes."""
    query, key, value = torch.randn(3, 1, 2, 16_384, 8)
    relative = torch.randn(2 * 16_384 - 1, 2, 8)
    monkeypatch.setattr(attention_chunks, "CHUNK", CHUNK // 4)
    for keys, limit in ((None, 32 * 2**20), (relative, 200 * 2**20)):
        with torch.inference_mode():
            mixed, peak = peak_bytes(lambda keys=keys: attend(query, key, value, dropout=0.0, pairs=keys))
        assert peak < limit
        logits = query[0, 1, 9_999] @ key[0, 1].T
        if keys is not None:
            logits = logits + query[0, 1, 9_999] @ keys[9_999 - torch.arange(16_384) + 16_383, 1].T
        expected = (logits / 8**0.5).softmax(0) @ value[0, 1]
        torch.testing.assert_close(mixed[0, 1, 9_999], expected, atol=1e-4, rtol=1e-4)


def test_some_of_the_queries_have_the_weights_of_all() -> None:
    model = variant("relative", "layers")
    images = torch.rand(1, 3, 12, 20, dtype=torch.float64)
    whole = model.attention_maps(images, layers=[1])[0]
    for queries in (slice(0, 1), slice(4, 9), slice(2, 13, 3), slice(-1, None)):
        part = model.attention_maps(images, layers=[1], queries=queries)[0]
        torch.testing.assert_close(part, whole[:, :, queries])
