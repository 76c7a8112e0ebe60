"""The layout of the authors' releases: ViT and hybrids (google-research/vision_transformer), BiT (big_transfer).

`rows` is the layout itself: for every parameter of ours its name, the names of theirs that it is made of, and how.
"""

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple, assert_never

import numpy as np

from vitrail.checkpoint.npz import Arrays
from vitrail.config import BiTConfig, HybridStem, ModelConfig, PatchStem, ViTConfig
from vitrail.ops.counts import Convolution, convolutions

Shape = tuple[int, ...]

# The names of the first release, before the authors moved to Flax's linen, and the names of today.
_OLD_NAMES = (
    (re.compile(r"^(?:opt/)?target/"), ""),
    (re.compile(r"/MultiHeadDotProductAttention_1/"), "/MultiHeadDotProductAttention_0/"),
    (re.compile(r"/LayerNorm_2/"), "/LayerNorm_1/"),
    (re.compile(r"/MlpBlock_3/"), "/MlpBlock_0/"),
)


class Row(NamedTuple):
    """One parameter of ours, the arrays of theirs that it is made of, the shape of each, and how it is read."""

    ours: str
    theirs: tuple[str, ...]
    shape: Shape
    read: Callable[..., np.ndarray]


def today(arrays: Arrays) -> Arrays:
    """Give the arrays of a file of the first release in the names of today; others stay."""
    renamed = {}
    for name, array in arrays.items():
        current = name
        for pattern, replacement in _OLD_NAMES:
            current = pattern.sub(replacement, current)
        renamed[current] = array
    return renamed


def flat(array: np.ndarray) -> np.ndarray:
    """Read a bias, a scale, or the class token, 1 1 D."""
    return array.reshape(-1)


def table(array: np.ndarray) -> np.ndarray:
    """Read the position table, 1 T D."""
    return array[0]


def dense(kernel: np.ndarray) -> np.ndarray:
    """Read a dense or patch kernel, (..., in, out); patches are flat by row, column, channel, as ours."""
    return kernel.reshape(-1, kernel.shape[-1]).T


def convolution(kernel: np.ndarray) -> np.ndarray:
    """Read a convolution's kernel, height width in out."""
    return kernel.transpose(3, 2, 0, 1)


def qkv_kernel(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Stack three kernels, each D h d."""
    return np.concatenate([part.reshape(part.shape[0], -1).T for part in (query, key, value)])


def qkv_bias(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Stack three biases, each h d."""
    return np.concatenate([part.reshape(-1) for part in (query, key, value)])


def rows(config: ModelConfig) -> Iterator[Row]:
    """Give the row of every parameter of a model."""
    match config:
        case ViTConfig():
            yield from _vit_rows(config)
        case BiTConfig():
            yield from _bit_rows(config)
        case _:
            assert_never(config)


def _vit_rows(config: ViTConfig) -> Iterator[Row]:
    width, heads, size = config.width, config.heads, config.head_width
    match config.stem:
        case PatchStem(patch=side):
            yield from _dense("embedding.projection", "embedding", (side, side, config.channels, width))
        case HybridStem(patch=side) as stem:
            yield from _dense("embedding.patches.projection", "embedding", (side, side, stem.channels, width))
            yield from _hybrid_rows(config)
        case _:
            assert_never(config.stem)
    if config.class_tokens:
        yield Row("class_token", ("cls",), (1, 1, width), flat)
    positions = "Transformer/posembed_input/pos_embedding"
    yield Row("positions.table.0", (positions,), (1, config.tokens, width), table)
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"Transformer/encoderblock_{index}"
        attention = f"{theirs}/MultiHeadDotProductAttention_0"
        kernels = tuple(f"{attention}/{part}/kernel" for part in ("query", "key", "value"))
        biases = tuple(f"{attention}/{part}/bias" for part in ("query", "key", "value"))
        yield from _norm(f"{ours}.attention_norm", f"{theirs}/LayerNorm_0", width)
        yield Row(f"{ours}.attention.qkv.weight", kernels, (width, heads, size), qkv_kernel)
        yield Row(f"{ours}.attention.qkv.bias", biases, (heads, size), qkv_bias)
        yield from _dense(f"{ours}.attention.out", f"{attention}/out", (heads, size, width))
        yield from _norm(f"{ours}.mlp_norm", f"{theirs}/LayerNorm_1", width)
        yield from _dense(f"{ours}.mlp.expand", f"{theirs}/MlpBlock_0/Dense_0", (width, config.mlp_width))
        yield from _dense(f"{ours}.mlp.contract", f"{theirs}/MlpBlock_0/Dense_1", (config.mlp_width, width))
    yield from _norm("norm", "Transformer/encoder_norm", width)
    if config.representation_width:
        yield from _dense("hidden", "pre_logits", (width, config.representation_width))
    yield from _dense("head", "head", (config.representation, config.classes))


def _hybrid_rows(config: ViTConfig) -> Iterator[Row]:
    prefix = "embedding.resnet"
    root, *others = convolutions(config)
    yield _kernel(f"{prefix}.root", "conv_root", root)
    yield from _norm(f"{prefix}.root_norm", "gn_root", root.outward)
    for stage, index, unit in _units(others):
        ours, theirs = f"{prefix}.stages.{stage}.{index}", f"block{stage + 1}/unit{index + 1}"
        for part, conv in unit.items():
            number = {"first": "1", "second": "2", "third": "3", "shortcut": "_proj"}[part]
            names = ("shortcut.0", "shortcut.1") if part == "shortcut" else (f"conv{number}", f"norm{number}")
            yield _kernel(f"{ours}.{names[0]}", f"{theirs}/conv{number}", conv)
            yield from _norm(f"{ours}.{names[1]}", f"{theirs}/gn{number}", conv.outward)


def _bit_rows(config: BiTConfig) -> Iterator[Row]:
    root, *others = convolutions(config)
    yield _kernel("root", "resnet/root_block/standardized_conv2d", root)
    for stage, index, unit in _units(others):
        ours, theirs = f"stages.{stage}.{index}", f"resnet/block{stage + 1}/unit{index + 1:02d}"
        for part, conv in unit.items():
            if part == "shortcut":
                yield _kernel(f"{ours}.shortcut", f"{theirs}/a/proj/standardized_conv2d", conv)
                continue
            number, letter = {"first": (1, "a"), "second": (2, "b"), "third": (3, "c")}[part]
            yield _kernel(f"{ours}.conv{number}", f"{theirs}/{letter}/standardized_conv2d", conv)
            yield from _norm(f"{ours}.norm{number}", f"{theirs}/{letter}/group_norm", conv.inward, "gamma", "beta")
    yield from _norm("norm", "resnet/group_norm", config.representation, "gamma", "beta")
    yield from _dense("head", "resnet/head/conv2d", (1, 1, config.representation, config.classes))


def _units(convs: list[Convolution]) -> Iterator[tuple[int, int, dict[str, Convolution]]]:
    """Give stage, place in the stage, and convolutions of every unit; a stage begins with a shortcut that projects."""
    stage, index = -1, 0
    for _, group in groupby(convs, key=lambda conv: conv.unit):
        unit = {conv.part: conv for conv in group}
        stage, index = (stage + 1, 0) if "shortcut" in unit else (stage, index + 1)
        yield stage, index, unit


def _kernel(ours: str, theirs: str, conv: Convolution) -> Row:
    shape = (conv.kernel, conv.kernel, conv.inward, conv.outward)
    return Row(f"{ours}.weight", (f"{theirs}/kernel",), shape, convolution)


def _dense(ours: str, theirs: str, shape: Shape) -> Iterator[Row]:
    yield Row(f"{ours}.weight", (f"{theirs}/kernel",), shape, dense)
    yield Row(f"{ours}.bias", (f"{theirs}/bias",), shape[-1:], flat)


def _norm(ours: str, theirs: str, size: int, scale: str = "scale", bias: str = "bias") -> Iterator[Row]:
    yield Row(f"{ours}.weight", (f"{theirs}/{scale}",), (size,), flat)
    yield Row(f"{ours}.bias", (f"{theirs}/{bias}",), (size,), flat)
