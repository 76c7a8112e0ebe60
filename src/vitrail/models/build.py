"""From a name or a configuration to a module, and the paper's initialisation as the authors' code has it: one table."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from hashlib import blake2b
from math import sqrt
from types import EllipsisType
from typing import assert_never

import torch
from torch import Generator, Tensor, nn

from vitrail.config import BiTConfig, ModelConfig, ViTConfig, as_size, parse, whole
from vitrail.errors import ConfigError
from vitrail.models.base import Model
from vitrail.models.resnet import BiT
from vitrail.models.vit import ViT

Draw = Callable[..., object]  # of a tensor, and generator=
xavier_uniform: Draw = nn.init.xavier_uniform_  # of variance 2/(fan_in + fan_out)


def constant(value: float) -> Draw:
    """Fill with one value."""
    return lambda tensor, generator: tensor.fill_(value)


def normal(deviation: float) -> Draw:
    """Draw from N(0, deviation^2)."""
    return lambda tensor, generator: tensor.normal_(0, deviation, generator=generator)


def lecun_normal(tensor: Tensor, generator: Generator) -> None:
    """Draw from a normal of variance 1/fan_in, cut at two of its deviations before the cut."""
    deviation = sqrt(1 / tensor[0].numel()) / 0.87962566103423978  # the cut at 2 takes variance away
    nn.init.trunc_normal_(tensor, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)


def three_xavier_uniform(tensor: Tensor, generator: Generator) -> None:
    """Draw query, key and value each as a matrix of its own."""
    for part in tensor.chunk(3):
        nn.init.xavier_uniform_(part, generator=generator)


def uniform_by_fan_in(tensor: Tensor, generator: Generator) -> None:
    """Draw as torch draws a linear layer: uniform in 1 / sqrt(fan_in) around 0."""
    tensor.uniform_(-1, 1, generator=generator).div_(sqrt(tensor.shape[1]))


ZERO, ONE = constant(0), constant(1)
HEAD_BIASES = ("head.bias", "head.first.bias", "head.second.bias")
DIRECTIONS = "head.directions.weight"  # of a classifier by cosines
OBJECTIVE = "objective."  # before the names of parameters that an objective adds to the model's

TABLE: tuple[tuple[str, Draw], ...] = (
    ("*.lora_A.*", uniform_by_fan_in),
    ("*.lora_B.*", ZERO),
    ("class_token", ZERO),
    ("registers", normal(0.02)),
    ("pooling.probe", normal(0.02)),
    ("pooling.qkv.weight", three_xavier_uniform),
    ("pooling.out.weight", xavier_uniform),
    ("projection.weight", lecun_normal),
    ("objective.mask", normal(0.02)),
    ("objective.projection.weight", xavier_uniform),
    ("objective.predictor.weight", xavier_uniform),
    ("positions.biases.*", ZERO),
    ("positions.*", normal(0.02)),
    ("head.queries", normal(1.0)),
    ("head.box.4.*", ZERO),  # boxes are those of the patches at first
    ("head.guess_box.4.*", ZERO),
    ("head.marks", normal(0.02)),
    ("head.guess_class.bias", ZERO),
    ("head.guess_class.weight", lecun_normal),
    ("head.classifier.bias", ZERO),
    ("head.*norm.weight", ONE),
    ("head.queries.*", ZERO),
    ("head.*.bias", ZERO),
    ("head.*.*.weight", lecun_normal),
    ("head.classifier.weight", lecun_normal),
    (DIRECTIONS, lecun_normal),  # about as long as the unit vectors that they stand for
    ("head.*", ZERO),
    ("hidden.weight", lecun_normal),
    ("*.projection.weight", lecun_normal),
    ("*attention.qkv.weight", three_xavier_uniform),
    ("*attention.out.weight", xavier_uniform),
    ("*mlp.expand.weight", xavier_uniform),
    ("*mlp.contract.weight", xavier_uniform),
    ("*norm.bias", ZERO),
    ("*mlp.*.bias", normal(1e-6)),
    ("embedding.resnet.*.norm3.weight", ZERO),
    ("*_scale.weight", ONE),  # then the configuration's first value
    ("*norm*.weight", ONE),
    ("*.shortcut.1.weight", ONE),
    ("*root.weight", lecun_normal),
    ("*.conv?.weight", lecun_normal),
    ("*.shortcut*.weight", lecun_normal),
    ("*.bias", ZERO),
)


@torch.no_grad()
def initialize(model: nn.Module, *, seed: int, head_bias: float, layer_scale: float | None) -> None:
    """Fill every parameter; what one gets is a function of the seed and its name alone."""
    for name, parameter in model.named_parameters():
        parameter.copy_(draw(name, parameter.shape, seed))
        if name in HEAD_BIASES:
            parameter.fill_(head_bias)
        elif name.endswith("_scale.weight") and layer_scale is not None:
            parameter.fill_(layer_scale)


@torch.no_grad()
def draw(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """Give a parameter its first values, on the CPU, so that every device has the same."""
    fresh = torch.empty(tuple(shape), dtype=torch.float32, device="cpu")
    digest = blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
    rule(name)(fresh, generator=Generator("cpu").manual_seed(int.from_bytes(digest)))
    return fresh


def rule(name: str) -> Draw:
    """Find the first row of the table that a parameter's name matches."""
    for pattern, draw in TABLE:
        if fnmatchcase(name, pattern):
            return draw
    raise LookupError(f"no row of the table of initialisations matches {name!r}; add one.")


def create(
    name: str,
    *,
    classes: int | EllipsisType | None = ...,
    image_size: int | tuple[int, int] | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    **fields: object,
) -> Model:
    """Make a fresh model by the paper's name, such as ViT-B/16: one of `vitrail.names()`; `load` opens trained ones.

    `classes` is how many the classifier tells apart (None: there is none), `image_size` a side or (height, width) in
    pixels; left out, they are 1,000 and 224. `seed` draws the weights; `fields` are others of its configuration, such
    as `depth=6`. A name in the box, vitrail-ti8, gives a model like that one, of its 200 classes and 64 pixels where
    no others are said, which knows nothing: `vitrail.load("vitrail-ti8")` opens the trained one.
    """
    given = {} if classes is ... else {"classes": classes}
    given |= {} if image_size is None else {"image_size": as_size(image_size)}
    return build(parse(name, {**given, **fields}), seed=seed, device=device)


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
        if device == "gpu":
            reason = "torch calls it 'cuda'."
        raise ConfigError(f"device must be one of this machine, such as 'cpu'; got {device!r}: {reason}") from error
    return found


def skeleton(config: ModelConfig) -> Model:
    """Make the module on the meta device: names and shapes, no memory."""
    with torch.device("meta"):
        match config:
            case ViTConfig(head=None):
                return ViT(config)
            case ViTConfig():
                from vitrail.models.dense import DenseViT  # few models need it, and it costs every start

                return DenseViT(config)
            case BiTConfig():
                return BiT(config)
            case _:
                assert_never(config)
