"""Weights of several models as one: their mean, and whether they are of one kind."""

from collections.abc import Iterable

import torch
from torch import Tensor

from vitrail.config import ModelConfig, encode, override
from vitrail.models import Model
from vitrail.models.build import skeleton

# Fields that matter in training alone: models that are averaged may differ in them.
IN_TRAINING = {"dropout": 0.0, "attention_dropout": 0.0, "stochastic_depth": 0.0, "checkpointing": False}
IN_TRAINING |= {"head_bias": 0.0}


@torch.no_grad()
def mean_model(models: Iterable[Model]) -> Model:
    """Give a model of the mean weights, on the CPU: summed in double precision, and to the bit where it is one model.

    Its configuration and its card are the first one's.
    """
    total: dict[str, Tensor] = {}
    first, count = None, 0
    for model in models:
        first, count = first or model, count + 1
        for name, tensor in model.state_dict().items():
            value = tensor.detach().to("cpu", torch.float64)
            total[name] = value if name not in total else total[name] + value
    assert first is not None
    held = first.state_dict()
    made = skeleton(first.config)
    made.load_state_dict({name: (value / count).to(held[name].dtype) for name, value in total.items()}, assign=True)
    made.card = first.card
    return made.eval()


def differences(one: ModelConfig, other: ModelConfig) -> list[str]:
    """Name the fields in which two configurations compute differently: what the other has, and what the one."""
    if type(one) is not type(other):
        return [f"{type(other).__name__}, not {type(one).__name__}"]
    first, second = (encode(override(config, _computing(config))) for config in (one, other))
    return [f"{name} {second[name]!r}, not {first[name]!r}" for name in first if first[name] != second[name]]


def _computing(config: ModelConfig) -> dict[str, object]:
    """Give the fields that say nothing of what is computed one value each; the first one of layer scale is such too."""
    fields: dict[str, object] = {name: value for name, value in IN_TRAINING.items() if hasattr(config, name)}
    return fields | ({"layer_scale": 1.0} if getattr(config, "layer_scale", None) is not None else {})
