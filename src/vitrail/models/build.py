"""From a name or a configuration to a module."""

from typing import assert_never

import torch

from vitrail.config import BiTConfig, ModelConfig, ViTConfig, as_size, parse
from vitrail.models.bit import BiT
from vitrail.models.initialise import initialise
from vitrail.models.vit import ViT

Model = ViT | BiT


def create(
    name: str,
    *,
    classes: int = 1000,
    image_size: int | tuple[int, int] = 224,
    seed: int = 0,
    device: torch.device | str | None = None,
    **fields: object,
) -> Model:
    """Make a fresh model by the paper's name, such as ViT-B/16; any field of its configuration can be changed."""
    config = parse(name, {"classes": classes, "image_size": as_size(image_size), **fields})
    return build(config, seed=seed, device=device)


def build(config: ModelConfig, *, seed: int, device: torch.device | str | None = None) -> Model:
    """Make the module of a configuration and initialise it; on the meta device it has shapes alone."""
    place = torch.get_default_device() if device is None else torch.device(device)
    model = skeleton(config)
    if place.type == "meta":
        return model
    model.to_empty(device=place)
    initialise(model, seed=seed, head_bias=config.head_bias)
    return model


def skeleton(config: ModelConfig) -> Model:
    """Make the module on the meta device: names and shapes, no memory."""
    with torch.device("meta"):
        match config:
            case ViTConfig():
                return ViT(config)
            case BiTConfig():
                return BiT(config)
            case _:
                assert_never(config)
