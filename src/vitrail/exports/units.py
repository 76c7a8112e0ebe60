"""A model that answers with numbers, made to give them in their own units: what another program reads of its file."""

import copy
from dataclasses import replace

import torch
from torch import nn

from vitrail.config.outputs import TASK_OF, NumberOutputs, OrderedOutputs
from vitrail.errors import ConfigError
from vitrail.models import Model
from vitrail.models.heads import TwoHeads


def in_units(model: Model) -> Model:
    """Give a copy whose head gives the numbers themselves; a model of another task as it is."""
    outputs = model.card.outputs
    if not isinstance(outputs, NumberOutputs):
        return model
    made = copy.deepcopy(model)
    scale = torch.tensor(outputs.deviation, dtype=torch.float64)
    shift = torch.tensor(outputs.mean, dtype=torch.float64)
    heads = [made.head.first, made.head.second] if isinstance(made.head, TwoHeads) else [made.head]
    for head in heads:
        if not isinstance(head, nn.Linear):
            raise ConfigError("the numbers of this head have no units that a file could hold: it is not linear.")
        with torch.no_grad():
            weight = head.weight
            weight.copy_((weight.double() * scale.to(weight.device)[:, None]).to(weight.dtype))
            before = 0.0 if head.bias is None else head.bias.double()
            bias = (before * scale.to(weight.device) + shift.to(weight.device)).to(weight.dtype)
            head.bias = nn.Parameter(bias, requires_grad=weight.requires_grad)
    count = outputs.size
    made.card = replace(made.card, outputs=NumberOutputs(mean=(0.0,) * count, deviation=(1.0,) * count))
    return made


def unit_of(model: Model) -> float:
    """Give the size of the numbers that a model answers with, in which rounding is measured; 1 of logits."""
    outputs = model.card.outputs
    if not isinstance(outputs, NumberOutputs):
        return 1.0
    return max(1.0, *outputs.deviation, *map(abs, outputs.mean))


def check_one_class(model: Model, *, page: bool) -> None:
    """Refuse a page, which says the likeliest class, and int8, which is held to the accuracy, of other tasks."""
    outputs = model.card.outputs
    if outputs is None or (isinstance(outputs, OrderedOutputs) and not page):
        return
    what = "a page says the likeliest class" if page else "int8 is held to the accuracy of classes"
    raise ConfigError(f"{what}, and the model's task is {TASK_OF[type(outputs)]}. Take to=onnx in float32.")
