"""How a parameter of ours is made of tensors of theirs, and taken apart again: pure, exact both ways."""

from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor

from vitrail.checkpoint.archives.base import Shape
from vitrail.checkpoint.layouts.base import SAME, Codec, Row
from vitrail.ops.cost.counts import Convolution


def _stack(*parts: Tensor) -> Tensor:
    """Put query, key and value one under the other."""
    return torch.cat(parts)


def _three(packed: Tensor, shape: Shape) -> tuple[Tensor, ...]:
    return tuple(part.reshape(shape) for part in packed.chunk(3))


def _turn(kernel: Tensor) -> Tensor:
    """Read a dense or patch kernel, (..., in, out); patches are flat by row, column, channel, as ours."""
    return kernel.reshape(-1, kernel.shape[-1]).T


def _turn_back(matrix: Tensor, shape: Shape) -> tuple[Tensor, ...]:
    return (matrix.T.reshape(shape),)


# A vector in any number of axes: a class token (1, 1, D), a norm's scale (1, 1, 1, C), a bias by head (h, d).
FLAT = Codec(lambda theirs: theirs.reshape(-1), lambda ours, shape: (ours.reshape(shape),))
# A position table (1, T, D).
TABLE = Codec(lambda theirs: theirs[0], lambda ours, shape: (ours[None],))
# A position table of the patches alone: the class token has no entry, so a zero one is put before it.
PATCH_TABLE = Codec(
    lambda theirs: torch.cat([theirs.new_zeros(1, theirs.shape[2]), theirs[0]]), lambda ours, shape: (ours[1:][None],)
)
# Flax's dense kernel, (..., in, out).
DENSE = Codec(_turn, _turn_back)
# Flax's convolution, (height, width, in, out), and torch's, (out, in, height, width).
CONVOLUTION = Codec(lambda theirs: theirs.permute(3, 2, 0, 1), lambda ours, shape: (ours.permute(2, 3, 1, 0),))
# Torch's convolution of stride P as our matrix of flat patches: row, column, channel.
PATCHES = Codec(
    lambda theirs: theirs.permute(0, 2, 3, 1).flatten(1),
    lambda ours, shape: (ours.unflatten(1, (shape[2], shape[3], shape[1])).permute(0, 3, 1, 2),),
)
# A linear layer kept as a convolution of one pixel, (out, in, 1, 1).
POINT = Codec(lambda theirs: theirs.flatten(1), lambda ours, shape: (ours.reshape(shape),))
# Query, key and value apart: torch's matrices and biases, Flax's kernels (D, h, d) and biases (h, d).
THREE = Codec(_stack, _three)
THREE_KERNELS = Codec(
    lambda *theirs: torch.cat([part.flatten(1).T for part in theirs]),
    lambda ours, shape: tuple(part.T.reshape(shape) for part in ours.chunk(3)),
)
THREE_BIASES = Codec(lambda *theirs: torch.cat([part.reshape(-1) for part in theirs]), _three)


def pair(ours: str, theirs: str, shape: Shape, codec: Codec = SAME) -> Iterator[Row]:
    """Give the rows of a weight and its bias that a library of torch names as we do."""
    yield Row(f"{ours}.weight", (f"{theirs}.weight",), shape, codec)
    yield Row(f"{ours}.bias", (f"{theirs}.bias",), shape[:1], SAME)


def units_of(convs: list[Convolution]) -> Iterator[tuple[int, int, dict[str, Convolution]]]:
    """Give stage, place in the stage, and convolutions of every unit; a stage begins with a shortcut that projects."""
    stage, index = -1, 0
    for _, group in groupby(convs, key=lambda conv: conv.unit):
        unit = {conv.part: conv for conv in group}
        stage, index = (stage + 1, 0) if "shortcut" in unit else (stage, index + 1)
        yield stage, index, unit
