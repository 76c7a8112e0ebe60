"""A small Vision Transformer for tests of what reads its weights."""

from typing import Any

import torch

from vitrail.config import Card, PatchStem, Preprocessing, ViTConfig
from vitrail.models import ViT
from vitrail.models.build import build


def vit(preprocessing: Preprocessing, temperature: float = 1.0, **fields: Any) -> ViT:
    """A small model whose every weight is drawn, so that none can be forgotten."""
    small = {"stem": PatchStem(patch=4), "depth": 2, "width": 24, "mlp_width": 40, "heads": 3, "classes": 7}
    model = build(ViTConfig(**small | {"image_size": (12, 20)} | fields), seed=0)  # pyright: ignore[reportArgumentType]
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=source), alpha=0.3)
    assert isinstance(model, ViT)
    names = tuple(f"<b>{number}</b>" for number in range(model.config.classes or 0))
    model.card = Card(class_names=names or None, preprocessing=preprocessing, temperature=temperature)
    return model.eval()
