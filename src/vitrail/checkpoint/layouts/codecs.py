"""How a parameter of ours is made of tensors of theirs, and taken apart again: pure, exact both ways."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.checkpoint.archives.base import Shape
from vitrail.checkpoint.layouts.base import Codec, Row
from vitrail.config import ModelConfig, ViTConfig
from vitrail.ops.cost.convolutions import Convolution, convolutions

UNIT = ("shortcut", "first", "second", "third")  # the convolutions of a ResNet's unit


def _three(packed: Tensor, shape: Shape) -> tuple[Tensor, ...]:
    return tuple(part.reshape(shape) for part in packed.chunk(3))


# The same axes.
SAME = Codec(Tensor.contiguous, lambda ours, shape: (ours,))
# A vector in any number of axes: a class token (1, 1, D), a norm's scale (1, 1, 1, C), a bias by head (h, d).
FLAT = Codec(lambda theirs: theirs.reshape(-1), lambda ours, shape: (ours.reshape(shape),))
# A position table (1, T, D).
TABLE = Codec(lambda theirs: theirs[0], lambda ours, shape: (ours[None],))
# A position table of the patches alone: the class token has no entry, so a zero one is put before it.
PATCH_TABLE = Codec(
    lambda theirs: torch.cat([theirs.new_zeros(1, theirs.shape[2]), theirs[0]]), lambda ours, shape: (ours[1:][None],)
)
# Flax's dense or patch kernel, (..., in, out); patches are flat by row, column, channel, as ours.
DENSE = Codec(lambda theirs: theirs.flatten(0, -2).T, lambda ours, shape: (ours.T.reshape(shape),))
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
THREE = Codec(lambda *theirs: torch.cat(theirs), _three)
THREE_KERNELS = Codec(
    lambda *theirs: torch.cat([part.flatten(1).T for part in theirs]),
    lambda ours, shape: tuple(part.T.reshape(shape) for part in ours.chunk(3)),
)
THREE_BIASES = Codec(lambda *theirs: torch.cat([part.reshape(-1) for part in theirs]), _three)


def pair(ours: str, theirs: str, shape: Shape, codec: Codec = SAME) -> Iterator[Row]:
    """Give the rows of a weight and its bias that a library of torch names as we do."""
    yield Row(f"{ours}.weight", (f"{theirs}.weight",), shape, codec)
    yield Row(f"{ours}.bias", (f"{theirs}.bias",), shape[:1], SAME)


def token_rows(config: ViTConfig, token: str, table: str, *, folded: bool) -> Iterator[Row]:
    """Give the rows of the class token and of the positions, in which it has no entry where it is `folded`."""
    if config.class_tokens:
        yield Row("class_token", (token,), (1, 1, config.width), FLAT)
    shape = (1, config.tokens - folded, config.width)
    yield Row("positions.table.0", (table,), shape, PATCH_TABLE if folded else TABLE)


def flax_dense(ours: str, theirs: str, shape: Shape) -> Iterator[Row]:
    """Give the rows of a kernel and its bias as Flax names them."""
    yield Row(f"{ours}.weight", (f"{theirs}/kernel",), shape, DENSE)
    yield Row(f"{ours}.bias", (f"{theirs}/bias",), shape[-1:], FLAT)


def flax_norm(ours: str, theirs: str, shape: Shape, words: tuple[str, str] = ("scale", "bias")) -> Iterator[Row]:
    """Give the rows of a norm as Flax names them, or in other words."""
    for part, word in zip(("weight", "bias"), words, strict=True):
        yield Row(f"{ours}.{part}", (f"{theirs}/{word}",), shape, FLAT)


class ResNetPart(NamedTuple):
    """A convolution of a ResNet, and its norm: after it in a hybrid's units, before it in BiT's."""

    place: tuple[int, int] | None  # stage and unit; None: the root
    number: int  # in the unit; 0: the shortcut
    conv: Convolution
    kernel: str  # our names
    norm: str | None
    width: int  # of the norm


def resnet_parts(config: ModelConfig) -> Iterator[ResNetPart]:
    """List the convolutions of a hybrid's stem or of a BiT."""
    hybrid = isinstance(config, ViTConfig)
    start = "embedding.resnet." if hybrid else ""
    root, *others = convolutions(config)
    yield ResNetPart(None, 0, root, f"{start}root.weight", f"{start}root_norm" if hybrid else None, root.outward)
    stage, index, unit = -1, 0, 0
    for conv in others:
        if conv.unit != unit:  # the first of a stage begins with a shortcut that projects
            stage, index = (stage + 1, 0) if conv.part == "shortcut" else (stage, index + 1)
            unit = conv.unit
        number, ours = UNIT.index(conv.part), f"{start}stages.{stage}.{index}"
        kernel, norm = (f"conv{number}", f"{ours}.norm{number}")
        if number == 0:
            kernel, norm = ("shortcut.0", f"{ours}.shortcut.1") if hybrid else ("shortcut", None)
        width = conv.outward if hybrid else conv.inward
        yield ResNetPart((stage, index), number, conv, f"{ours}.{kernel}.weight", norm, width)
