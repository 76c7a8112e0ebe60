"""Equality with implementations that are not ours: torch's encoder layer, a convolution, transformers' ViT."""

import pytest
import torch
from families import SMALL, family, images_for
from torch import nn
from torch.nn import functional as F

from vitrail.config import PatchStem, ViTConfig
from vitrail.models import ViT, build


def test_a_block_equals_torchs_encoder_layer() -> None:
    model = family("vit", torch.float64, activation="gelu", depth=1)
    assert isinstance(model, ViT)
    block, config = model.blocks[0], model.config
    theirs = nn.TransformerEncoderLayer(
        config.width, config.heads, config.mlp_width, 0.0, F.gelu, 1e-6, batch_first=True, norm_first=True
    ).double()
    state = block.state_dict()
    renamed = {
        "self_attn.in_proj_weight": "attention.qkv.weight",
        "self_attn.in_proj_bias": "attention.qkv.bias",
        "self_attn.out_proj.weight": "attention.out.weight",
        "self_attn.out_proj.bias": "attention.out.bias",
        "linear1.weight": "mlp.expand.weight",
        "linear1.bias": "mlp.expand.bias",
        "linear2.weight": "mlp.contract.weight",
        "linear2.bias": "mlp.contract.bias",
        "norm1.weight": "attention_norm.weight",
        "norm1.bias": "attention_norm.bias",
        "norm2.weight": "mlp_norm.weight",
        "norm2.bias": "mlp_norm.bias",
    }
    theirs.load_state_dict({name: state[ours] for name, ours in renamed.items()})
    tokens = torch.randn(3, 7, 24, dtype=torch.float64)
    torch.testing.assert_close(block(tokens), theirs(tokens), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", ["vit", "hybrid-root"])
def test_the_patch_embedding_is_a_strided_convolution(name: str) -> None:
    model = family(name, torch.float64)
    assert isinstance(model, ViT)
    embedding = model.embedding if name == "vit" else model.embedding.get_submodule("patches")
    weight, bias = embedding.get_parameter("projection.weight"), embedding.get_parameter("projection.bias")
    patch = model.config.stem.patch
    features = torch.randn(2, weight.shape[1] // patch**2, 3 * patch, 5 * patch, dtype=torch.float64)
    kernel = weight.unflatten(1, (patch, patch, features.shape[1])).permute(0, 3, 1, 2)
    expected = F.conv2d(features, kernel, bias, stride=patch).flatten(2).transpose(1, 2)
    torch.testing.assert_close(embedding(features), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("size", [(24, 24), (24, 40)])
def test_the_whole_model_equals_transformers(size: tuple[int, int]) -> None:
    from transformers import ViTConfig as TheirConfig, ViTForImageClassification

    config = ViTConfig(stem=PatchStem(patch=8), image_size=size, activation="gelu", **{**SMALL, "depth": 3})
    ours = build(config, seed=3).double().eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    theirs = ViTForImageClassification(
        TheirConfig(
            hidden_size=24,
            num_hidden_layers=3,
            num_attention_heads=3,
            intermediate_size=40,
            hidden_act="gelu",
            layer_norm_eps=1e-6,
            image_size=size,  # pyright: ignore[reportArgumentType]
            patch_size=8,
            num_labels=7,  # pyright: ignore[reportCallIssue]
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    theirs = theirs.double().eval()
    weights = ours.state_dict()
    state = {
        "vit.embeddings.cls_token": weights["class_token"][None, None],
        "vit.embeddings.position_embeddings": weights["positions.table.0"][None],
        "vit.embeddings.patch_embeddings.projection.weight": weights["embedding.projection.weight"]
        .unflatten(1, (8, 8, 3))
        .permute(0, 3, 1, 2),
        "vit.embeddings.patch_embeddings.projection.bias": weights["embedding.projection.bias"],
        "vit.layernorm.weight": weights["norm.weight"],
        "vit.layernorm.bias": weights["norm.bias"],
        "classifier.weight": weights["head.weight"],
        "classifier.bias": weights["head.bias"],
    }
    missing = [name for name in theirs.state_dict() if name not in state]
    for name in missing:
        state[name] = _their_block_weight(name, weights)
    theirs.load_state_dict(state)
    images = torch.rand(2, 3, *size, dtype=torch.float64) * 2 - 1
    torch.testing.assert_close(ours(images), theirs(images).logits, atol=1e-10, rtol=0)


def _their_block_weight(name: str, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """Find our weight for one of transformers' blocks, in its names of any version 5."""
    index = next(part for part in name.split(".") if part.isdigit())
    kind = name.rsplit(".", maxsplit=1)[1]
    for part, chunk in (("q_proj", 0), ("query", 0), ("k_proj", 1), ("key", 1), ("v_proj", 2), ("value", 2)):
        if f".{part}." in name:
            return weights[f"blocks.{index}.attention.qkv.{kind}"].chunk(3)[chunk]
    ours = {
        "attention.o_proj": "attention.out",
        "attention.output.dense": "attention.out",
        "mlp.fc1": "mlp.expand",
        "intermediate.dense": "mlp.expand",
        "mlp.fc2": "mlp.contract",
        "output.dense": "mlp.contract",
        "layernorm_before": "attention_norm",
        "layernorm_after": "mlp_norm",
    }
    found = next(mine for theirs, mine in ours.items() if f"{theirs}." in name)
    return weights[f"blocks.{index}.{found}.{kind}"]


@pytest.mark.parametrize("name", ["vit", "vit-mean", "hybrid"])
def test_without_positions_permuted_tokens_give_permuted_outputs(name: str) -> None:
    model = family(name, torch.float64)
    assert isinstance(model, ViT)
    tokens = model.embed(images_for(model, dtype=torch.float64))
    grid = model.config.grid
    order = torch.randperm(tokens.shape[1], generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(model.encode(tokens[:, order], grid), model.encode(tokens, grid)[:, order])
