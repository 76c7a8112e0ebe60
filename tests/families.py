"""One small model of every family, all sizes different, every weight random."""

from typing import Any

import torch

from vitrail.config import (
    BiasPositions,
    BiTConfig,
    HybridStem,
    LearnedPositions,
    ModelConfig,
    PatchStem,
    RelativePositions,
    SinusoidalPositions,
    ViTConfig,
    override,
)
from vitrail.models import Model, build

SMALL: dict[str, Any] = {"depth": 2, "width": 24, "mlp_width": 40, "heads": 3, "classes": 7}

FAMILIES: dict[str, ModelConfig] = {
    "vit": ViTConfig(stem=PatchStem(patch=4), image_size=(12, 20), **SMALL),
    "vit-mean": ViTConfig(stem=PatchStem(patch=4), image_size=(12, 20), pooling="mean", **SMALL),
    "vit-hidden": ViTConfig(stem=PatchStem(patch=4), image_size=(12, 20), pre_logits=11, **SMALL),
    "vit-max": ViTConfig(stem=PatchStem(patch=4), image_size=(12, 20), pooling="max", **SMALL),
    "vit-original": ViTConfig(
        stem=PatchStem(patch=4),
        image_size=(12, 20),
        norm="post",
        activation="relu",
        positions=SinusoidalPositions(),
        **SMALL,
    ),
    "vit-relative": ViTConfig(stem=PatchStem(patch=4), image_size=(12, 20), positions=RelativePositions(), **SMALL),
    "vit-biased": ViTConfig(
        stem=PatchStem(patch=4),
        image_size=(12, 20),
        qkv_bias=False,
        positions=BiasPositions(table="bicubic-antialias"),
        **SMALL,
    ),
    "vit-scaled": ViTConfig(
        stem=PatchStem(patch=4),
        image_size=(12, 20),
        qkv_bias=False,
        layer_scale=0.1,
        positions=LearnedPositions(resampling="bicubic-antialias"),
        **SMALL,
    ),
    "axial": ViTConfig(stem=PatchStem(patch=4), image_size=(12, 20), attention="axial", pooling="mean", **SMALL),
    "hybrid": ViTConfig(stem=HybridStem(units=(2, 1), width=32), image_size=(24, 41), **SMALL),
    "hybrid-root": ViTConfig(stem=HybridStem(units=(), width=32, patch=3), image_size=(25, 40), **SMALL),
    "bit": BiTConfig(units=(2, 1), width=64, classes=7, image_size=(33, 47)),
}

# Those that the authors' layout can hold.
UNRELEASED = ("vit-max", "vit-original", "vit-relative", "vit-biased", "vit-scaled", "axial")
RELEASED = [name for name in FAMILIES if name not in UNRELEASED]


def family(name: str, dtype: torch.dtype = torch.float32, **changes: object) -> Model:
    """A model of the family in evaluation mode; nothing in it is zero, so that every weight counts."""
    model = build(override(FAMILIES[name], changes), seed=0).to(dtype).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(dtype))
    return model


def images_for(model: Model, batch: int = 2, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.rand(batch, 3, *model.config.image_size, generator=generator).to(dtype) * 2 - 1
