"""What int8 asks of a model's layers: which cost most, and features of like ranges in front of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.exports.traced import plain
from vitrail.models import Model, eval_mode
from vitrail.models.encoder import Block
from vitrail.runtime.folded import FixedConv

Layer = nn.Linear | FixedConv  # whose products int8 is for
SHARE = 0.75  # of a feature's range that goes into the weights
LEAST = 1e-5  # below which a range is none


@contextmanager
def watching(model: Model, seen: Callable[[str, Layer, Tensor], None]) -> Iterator[None]:
    """Hand every layer that a pass calls to a function, with its name and what it reads."""

    def hand(name: str, layer: Layer, given: tuple[Tensor]) -> None:
        seen(name, layer, given[0])

    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, Layer)]
    hooks = [module.register_forward_pre_hook(partial(hand, name)) for name, module in layers]
    try:
        with eval_mode(model):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def layers_called(model: Model, images: Tensor) -> list[tuple[str, Layer]]:
    """List the layers in the order of a pass, by their names."""
    called: list[tuple[str, Layer]] = []
    with watching(model, lambda name, layer, _: called.append((name, layer))):
        model.outputs(images[:1])
    return called


def rank(model: Model, images: Tensor) -> list[int]:
    """Rank the layers by how far int8 in each alone moves the outputs, the farthest first: places in a pass."""
    exact, costs = _outputs(model, images), []
    for place, (_, layer) in enumerate(layers_called(model, images)):
        weight = layer.weight.data
        hook = layer.register_forward_pre_hook(lambda _, given: (rounded(given[0]),))
        layer.weight.data = rounded_rows(weight)
        try:
            costs.append((float((_outputs(model, images) - exact).square().mean()), place))
        finally:
            layer.weight.data = weight
            hook.remove()
    return [place for _, place in sorted(costs, reverse=True)]


def _outputs(model: Model, images: Tensor) -> Tensor:
    with eval_mode(model):
        return torch.cat([output for output in model.outputs(images) if output is not None], dim=1)


def rounded(values: Tensor) -> Tensor:
    """Round to 256 levels between the least and the greatest, zero among them, as the graph does."""
    low, high = values.min().clamp(max=0), values.max().clamp(min=0)
    scale = ((high - low) / 255).clamp(min=1e-12)
    zero = (-low / scale).round()
    return ((values / scale + zero).round().clamp(0, 255) - zero) * scale


def rounded_rows(weight: Tensor) -> Tensor:
    """Round each output's weights to 255 levels around zero."""
    scale = (weight.abs().amax(dim=tuple(range(1, weight.ndim)), keepdim=True) / 127).clamp(min=1e-12)
    return (weight / scale).round() * scale


def evened(model: Model, images: Sequence[Tensor]) -> Model:
    """Copy a model with the same outputs, whose layers read features of like ranges (SmoothQuant, Xiao et al., 2023).

    One scale holds for all features that a layer reads: a few that are large would leave the others few levels. So a
    feature is divided where it comes from (a norm's weights, or those of the values) and its weights are multiplied.
    """
    made, largest = plain(model), dict[nn.Module, Tensor]()

    def seen(_: str, layer: Layer, features: Tensor) -> None:
        if isinstance(layer, nn.Linear):
            here = features.abs().flatten(0, -2).amax(dim=0)
            largest[layer] = torch.maximum(largest.get(layer, here), here)

    with watching(made, seen):
        for batch in images:
            made.outputs(batch)
    for block in (part for part in made.modules() if isinstance(part, Block)):
        attention, width = block.attention, block.attention.out.in_features
        values = [part[2 * width :] for part in (attention.qkv.weight, attention.qkv.bias) if part is not None]
        _move(_inner_norm(attention) or values, attention.out, largest)
        _move(_inner_norm(block.mlp), block.mlp.contract, largest)
        if block.norm == "pre":  # after the sum, what a norm gives is the stream itself
            _move([block.attention_norm.weight, block.attention_norm.bias], attention.qkv, largest)
            _move([block.mlp_norm.weight, block.mlp_norm.bias], block.mlp.expand, largest)
    return made


def _inner_norm(part: nn.Module) -> list[Tensor]:
    """Give the weights of the norm before a part's last layer, as EVA has; none where there is no such norm."""
    norm = getattr(part, "inner_norm", None)
    return [norm.weight, norm.bias] if isinstance(norm, nn.LayerNorm) else []


@torch.no_grad()
def _move(source: Sequence[Tensor], layer: nn.Linear, largest: dict[nn.Module, Tensor]) -> None:
    """Divide features where they are made, and multiply the weights that read them."""
    if layer not in largest or not source:
        return
    ranges: Float[Tensor, " D"] = largest[layer].clamp(min=LEAST)
    factor = ranges**SHARE / layer.weight.abs().amax(dim=0).clamp(min=LEAST) ** (1 - SHARE)
    for part in source:
        part.div_(factor[:, None] if part.ndim == 2 else factor)
    layer.weight.mul_(factor)
