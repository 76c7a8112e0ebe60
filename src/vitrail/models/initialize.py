"""The paper's initialisation, as the authors' code has it: one table, first match, every parameter in it."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from math import sqrt

import torch
from torch import Generator, Tensor, nn

Draw = Callable[[Tensor, Generator], object]


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


def xavier_uniform(tensor: Tensor, generator: Generator) -> None:
    """Draw from a uniform of variance 2/(fan_in + fan_out)."""
    nn.init.xavier_uniform_(tensor, generator=generator)


def three_xavier_uniform(tensor: Tensor, generator: Generator) -> None:
    """Draw query, key and value each as a matrix of its own."""
    for part in tensor.chunk(3):
        nn.init.xavier_uniform_(part, generator=generator)


ZERO, ONE = constant(0), constant(1)
DIRECTIONS = "head.directions.weight"  # of a classifier by cosines
OBJECTIVE = "objective."  # before the names of parameters that an objective adds to the model's

TABLE: tuple[tuple[str, Draw], ...] = (
    ("class_token", ZERO),
    ("objective.mask", normal(0.02)),
    ("objective.projection.weight", xavier_uniform),
    ("objective.predictor.weight", xavier_uniform),
    ("positions.*", normal(0.02)),
    (DIRECTIONS, lecun_normal),  # about as long as the unit vectors that they stand for
    ("head.*", ZERO),
    ("hidden.weight", lecun_normal),
    ("*.projection.weight", lecun_normal),
    ("*attention.qkv.weight", three_xavier_uniform),
    ("*attention.out.weight", xavier_uniform),
    ("*mlp.expand.weight", xavier_uniform),
    ("*mlp.contract.weight", xavier_uniform),
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
        if name == "head.bias":
            parameter.fill_(head_bias)
        elif name.endswith("_scale.weight") and layer_scale is not None:
            parameter.fill_(layer_scale)


@torch.no_grad()
def draw(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """Give a parameter its first values, on the CPU, so that every device has the same."""
    fresh = torch.empty(tuple(shape), dtype=torch.float32, device="cpu")
    rule(name)(fresh, _generator(seed, name))
    return fresh


def rule(name: str) -> Draw:
    """Find the first row of the table that a parameter's name matches."""
    for pattern, draw in TABLE:
        if fnmatchcase(name, pattern):
            return draw
    raise LookupError(f"no row of the table of initialisations matches {name!r}; add one.")


def _generator(seed: int, name: str) -> Generator:
    digest = blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
    return Generator("cpu").manual_seed(int.from_bytes(digest))
