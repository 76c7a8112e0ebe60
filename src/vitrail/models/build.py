"""From a name or a configuration to a module."""

from dataclasses import replace
from typing import assert_never

import torch

from vitrail.config import BiTConfig, ModelConfig, ViTConfig, as_size, parse, whole
from vitrail.errors import ConfigError
from vitrail.models.base import Model
from vitrail.models.bit import BiT
from vitrail.models.initialize import initialize
from vitrail.models.vit import ViT


def create(
    name: str,
    *,
    classes: int | None = 1000,
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
    place, seed = find_device(device), whole("seed", seed, least=0)
    model = skeleton(config)
    if place.type == "meta":
        return model
    model.to_empty(device=place)
    scale = config.layer_scale if isinstance(config, ViTConfig) else None
    initialize(model, seed=seed, head_bias=config.head_bias, layer_scale=scale)
    return model


def first_blocks(model: Model, count: int) -> ViT:
    """Give a Vision Transformer that ends after so many blocks, and then reads as it does; it shares the weights."""
    if not isinstance(model, ViT):
        raise ConfigError("a BiT has no blocks to end after. Leave the layer out.")
    shorter = skeleton(replace(model.config, depth=whole("layer", count, most=model.config.depth)))
    assert isinstance(shorter, ViT)
    held = model.state_dict()
    shorter.load_state_dict({name: held[name] for name in shorter.state_dict()}, assign=True)
    shorter.card = model.card
    return shorter.train(model.training)


def find_device(device: torch.device | str | None) -> torch.device:
    """Read a device that is there; none is torch's default."""
    if device is None:
        return torch.get_default_device()
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device must be one of this machine, such as 'cpu'; got {device!r}: {reason}") from error
    return found


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
