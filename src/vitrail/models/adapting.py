"""Which parameters of a model are trained, by the way it is adapted; what stays is computed as in evaluation."""

import re
from collections.abc import Iterator
from typing import assert_never

from torch import nn

from vitrail.config.objective import Adapt, Full, HeadAlone, LastBlocks, LoRA, Norms
from vitrail.models.base import Model
from vitrail.models.lora import MARK, add_lora
from vitrail.models.resnet import BiT
from vitrail.models.vit import ViT

LAYER = re.compile(r"(?:blocks|stages)\.(\d+)\.")
HEAD = ("head.", "hidden.")  # the classifier, and the tanh layer that is as new as it is
STEM = ("embedding.", "class_token", "registers", "positions", "first_norm.", "root.")  # before the first layer


def begin_adapting(model: Model, adapt: Adapt, *, seed: int) -> None:
    """Make what is trained beside the weights, and leave nothing else with gradients."""
    if isinstance(adapt, Full):
        return
    if isinstance(adapt, LoRA):
        add_lora(model, adapt, seed=seed)
    trained = set(trained_names(model, adapt))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name in trained)


def trained_names(model: Model, adapt: Adapt) -> Iterator[str]:
    """Give the names of the parameters that are trained."""
    norms = (nn.LayerNorm, nn.GroupNorm)
    inside = {f"{path}." for path, module in model.named_modules() if isinstance(module, norms)}
    for name, _ in model.named_parameters():
        if name.startswith(HEAD):
            yield name
            continue
        match adapt:
            case Full():
                yield name
            case HeadAlone():
                continue
            case LoRA():
                if MARK in name:
                    yield name
            case Norms():
                if f"{name.rpartition('.')[0]}." in inside:
                    yield name
            case LastBlocks(blocks=blocks):
                layer = LAYER.match(name)
                first = model.layers - blocks
                if int(layer[1]) >= first if layer else not name.startswith(STEM):
                    yield name
            case _:
                assert_never(adapt)


def train_mode(module: nn.Module) -> None:
    """Put a module in training mode, but for layers that are not trained: nothing is dropped before what learns."""
    module.train()
    if not isinstance(module, ViT | BiT):
        return
    frozen = True
    for layer in module.blocks if isinstance(module, ViT) else module.stages:
        frozen = frozen and not any(parameter.requires_grad for parameter in layer.parameters())
        if not frozen:
            return
        layer.eval()
        if isinstance(module, ViT):
            module.dropout.eval()
