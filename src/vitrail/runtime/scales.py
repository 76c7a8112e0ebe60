"""The units of a model in eight bits: what each product of its blocks reads, over some images, and its weights."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitrail.data.open import open_data
from vitrail.data.source import Source
from vitrail.models import Model

CALIBRATED_ON = 128  # images, spread over those that are given
PRODUCTS = ("attention.qkv", "attention.out", "mlp.expand", "mlp.contract")  # of a block
TOGETHER = 64  # images that are looked at at a time


@dataclass(frozen=True, kw_only=True)
class Scales:
    """By the name of each product: the least and the greatest number that it reads, and the scale of its weights."""

    read: Mapping[str, Tensor] = field(default_factory=dict)
    weight: Mapping[str, Tensor] = field(default_factory=dict)


def sample_for(model: Model, source: Source | None = None) -> Float[Tensor, "B C H W"]:
    """Give some images of a source, spread over it, as the model reads them; None: the sample in the box."""
    images = source if source is not None else open_data("sample")["train"]
    places = sorted({int(place) for place in torch.linspace(0, len(images) - 1, CALIBRATED_ON)})
    return model.preprocess([images.read(place) for place in places])


def products_of(model: nn.Module) -> dict[str, nn.Linear]:
    """Give the dense layers of a model's blocks by their names."""
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and name.startswith("blocks.") and name.endswith(PRODUCTS)
    }


@torch.no_grad()
def find_scales(
    model: Model,
    images: Float[Tensor, "B C H W"],
    scale_of: Callable[[Tensor], Tensor],
    precision: torch.dtype = torch.float32,
) -> Scales:
    """Find what every product reads over some images, in the precision of what lies between them."""
    found: dict[str, Tensor] = {}
    half = precision == torch.bfloat16
    with _watching(model, found), torch.autocast(images.device.type, torch.bfloat16, enabled=half):
        for part in images.split(TOGETHER):
            model.outputs(part)
    return Scales(read=found, weight={name: scale_of(layer.weight) for name, layer in products_of(model).items()})


@contextmanager
def _watching(model: Model, found: dict[str, Tensor]) -> Iterator[None]:
    """Note what the products of blocks read, while the model runs."""

    def note(name: str, read: Tensor) -> None:
        low, high = torch.aminmax(read.detach().float())
        before = found.get(name)
        if before is not None:
            low, high = torch.minimum(low, before[0]), torch.maximum(high, before[1])
        found[name] = torch.stack((low, high))

    def watch(name: str, layer: nn.Module) -> RemovableHandle:
        return layer.register_forward_pre_hook(lambda _, given: note(name, given[0]))

    hooks = [watch(name, layer) for name, layer in products_of(model).items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
