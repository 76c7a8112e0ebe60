"""The layout of the authors' releases: ViT and hybrids (google-research/vision_transformer), BiT (big_transfer).

`rows` is the layout itself: for every parameter of ours its name, the names of theirs that it is made of, and how.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, assert_never

import numpy as np

from vitrail.config import BiTConfig, HybridStem, ModelConfig, PatchStem, ViTConfig


class Row(NamedTuple):
    """One parameter of ours, and what it is made of."""

    ours: str
    theirs: tuple[str, ...]
    read: Callable[..., np.ndarray]


def vector(array: np.ndarray) -> np.ndarray:
    """Read a bias, a scale, or the class token, 1 1 D."""
    return array.reshape(-1)


def table(array: np.ndarray) -> np.ndarray:
    """Read the position table, 1 T D."""
    return array.reshape(array.shape[-2:])


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
    match config.stem:
        case PatchStem():
            yield from _affine("embedding.projection", "embedding", dense)
        case HybridStem() as stem:
            yield from _affine("embedding.patches.projection", "embedding", dense)
            yield from _hybrid_rows(stem)
        case _:
            assert_never(config.stem)
    if config.class_tokens:
        yield Row("class_token", ("cls",), vector)
    yield Row("positions.table.0", ("Transformer/posembed_input/pos_embedding",), table)
    for index in range(config.depth):
        ours, theirs = f"blocks.{index}", f"Transformer/encoderblock_{index}"
        attention = f"{theirs}/MultiHeadDotProductAttention_0"
        parts = [f"{attention}/{part}" for part in ("query", "key", "value")]
        yield from _norm(f"{ours}.attention_norm", f"{theirs}/LayerNorm_0")
        yield Row(f"{ours}.attention.qkv.weight", tuple(f"{part}/kernel" for part in parts), qkv_kernel)
        yield Row(f"{ours}.attention.qkv.bias", tuple(f"{part}/bias" for part in parts), qkv_bias)
        yield from _affine(f"{ours}.attention.out", f"{attention}/out", dense)
        yield from _norm(f"{ours}.mlp_norm", f"{theirs}/LayerNorm_1")
        yield from _affine(f"{ours}.mlp.expand", f"{theirs}/MlpBlock_0/Dense_0", dense)
        yield from _affine(f"{ours}.mlp.contract", f"{theirs}/MlpBlock_0/Dense_1", dense)
    yield from _norm("norm", "Transformer/encoder_norm")
    if config.representation_width:
        yield from _affine("hidden", "pre_logits", dense)
    yield from _affine("head", "head", dense)


def _hybrid_rows(stem: HybridStem) -> Iterator[Row]:
    root = "embedding.resnet"
    yield Row(f"{root}.root.weight", ("conv_root/kernel",), convolution)
    yield from _norm(f"{root}.root_norm", "gn_root")
    for stage, count in enumerate(stem.units):
        for unit in range(count):
            ours, theirs = f"{root}.stages.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1}"
            for number in (1, 2, 3):
                yield Row(f"{ours}.conv{number}.weight", (f"{theirs}/conv{number}/kernel",), convolution)
                yield from _norm(f"{ours}.norm{number}", f"{theirs}/gn{number}")
            if unit == 0:
                yield Row(f"{ours}.shortcut.0.weight", (f"{theirs}/conv_proj/kernel",), convolution)
                yield from _norm(f"{ours}.shortcut.1", f"{theirs}/gn_proj")


def _bit_rows(config: BiTConfig) -> Iterator[Row]:
    yield Row("root.weight", ("resnet/root_block/standardized_conv2d/kernel",), convolution)
    for stage, count in enumerate(config.units):
        for unit in range(count):
            ours, theirs = f"stages.{stage}.{unit}", f"resnet/block{stage + 1}/unit{unit + 1:02d}"
            for number, letter in enumerate("abc", start=1):
                kernel = f"{theirs}/{letter}/standardized_conv2d/kernel"
                yield Row(f"{ours}.conv{number}.weight", (kernel,), convolution)
                yield from _norm(f"{ours}.norm{number}", f"{theirs}/{letter}/group_norm", "gamma", "beta")
            if unit == 0:
                yield Row(f"{ours}.shortcut.weight", (f"{theirs}/a/proj/standardized_conv2d/kernel",), convolution)
    yield from _norm("norm", "resnet/group_norm", "gamma", "beta")
    yield from _affine("head", "resnet/head/conv2d", dense)


def _affine(ours: str, theirs: str, read: Callable[..., np.ndarray]) -> Iterator[Row]:
    yield Row(f"{ours}.weight", (f"{theirs}/kernel",), read)
    yield Row(f"{ours}.bias", (f"{theirs}/bias",), vector)


def _norm(ours: str, theirs: str, scale: str = "scale", bias: str = "bias") -> Iterator[Row]:
    yield Row(f"{ours}.weight", (f"{theirs}/{scale}",), vector)
    yield Row(f"{ours}.bias", (f"{theirs}/{bias}",), vector)
