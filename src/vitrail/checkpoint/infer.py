"""The architecture of a file in the authors' layout, from its names and shapes alone."""

import re
from math import isqrt

from vitrail.checkpoint.npz import Arrays
from vitrail.config import BiTConfig, Grid, HybridStem, ModelConfig, PatchStem, Stem, ViTConfig
from vitrail.errors import CheckpointError, ConfigError

_BLOCK = "Transformer/encoderblock_"


def infer(arrays: Arrays, *, image_size: tuple[int, int] | None, grid: Grid | None, classes: int | None) -> ModelConfig:
    """Recognise the family and read its configuration; the image size is that of the file's own position grid."""
    try:
        if "resnet/root_block/standardized_conv2d/kernel" in arrays:
            return _infer_bit(arrays, image_size=image_size, grid=grid, classes=classes)
        if "embedding/kernel" in arrays and any(name.startswith("Transformer/") for name in arrays):
            return _infer_vit(arrays, image_size=image_size, grid=grid, classes=classes)
    except ConfigError as error:
        raise CheckpointError(f"the file's shapes make no model: {error}") from error
    some = ", ".join(sorted(arrays)[:4])
    raise CheckpointError(
        "the file is neither a ViT nor a BiT in the authors' names: expected 'embedding/kernel' and 'Transformer/...', "
        f"or 'resnet/root_block/...'; got {len(arrays)} arrays such as {some}."
    )


def _infer_vit(
    arrays: Arrays, *, image_size: tuple[int, int] | None, grid: Grid | None, classes: int | None
) -> ViTConfig:
    patch, across, channels, width = _shape(arrays, "embedding/kernel", 4)
    if patch != across:
        raise CheckpointError(f"patches must be square; 'embedding/kernel' has {patch}x{across}.")
    depth = _count(arrays, _BLOCK, "block")
    _, heads, head_width = _shape(arrays, f"{_BLOCK}0/MultiHeadDotProductAttention_0/query/kernel", 3)
    if heads * head_width != width:
        raise CheckpointError(f"heads must divide the width {width}; the file has {heads} heads of {head_width}.")
    token = "cls" in arrays
    stem: Stem = PatchStem(patch=patch)
    if "conv_root/kernel" in arrays:
        _, _, channels, root = _shape(arrays, "conv_root/kernel", 4)
        stages = _count(arrays, "block", "stage", start=1) if "block1/unit1/conv1/kernel" in arrays else 0
        units = tuple(_count(arrays, f"block{stage}/unit", "unit", start=1) for stage in range(1, stages + 1))
        stem = HybridStem(units=units, width=root, patch=patch)
    positions = _shape(arrays, "Transformer/posembed_input/pos_embedding", 3)[1] - token
    if positions < 1:
        raise CheckpointError("the file's position table is empty.")
    rows, cols = _file_grid(positions, stem, image_size=image_size, grid=grid)
    return ViTConfig(
        stem=stem,
        depth=depth,
        width=width,
        mlp_width=_shape(arrays, f"{_BLOCK}0/MlpBlock_0/Dense_0/kernel", 2)[1],
        heads=heads,
        classes=_classes(arrays, "head/kernel", classes),
        image_size=(rows * stem.stride, cols * stem.stride),
        channels=channels,
        pooling="token" if token else "mean",
        representation_width=_shape(arrays, "pre_logits/kernel", 2)[1] if "pre_logits/kernel" in arrays else None,
    )


def _infer_bit(
    arrays: Arrays, *, image_size: tuple[int, int] | None, grid: Grid | None, classes: int | None
) -> BiTConfig:
    if grid is not None:
        raise CheckpointError(f"a BiT has no position table, so no grid; got grid={grid}. Leave it out.")
    _, _, channels, root = _shape(arrays, "resnet/root_block/standardized_conv2d/kernel", 4)
    stages = _count(arrays, "resnet/block", "stage", start=1)
    return BiTConfig(
        units=tuple(_count(arrays, f"resnet/block{stage}/unit", "unit", start=1) for stage in range(1, stages + 1)),
        width=root,
        classes=_classes(arrays, "resnet/head/conv2d/kernel", classes),
        channels=channels,
        image_size=image_size or (224, 224),
    )


def _file_grid(positions: int, stem: Stem, *, image_size: tuple[int, int] | None, grid: Grid | None) -> Grid:
    """Find the grid of the position table: the one given, a square, or that of the image size asked for."""
    if grid is not None:
        if grid[0] * grid[1] != positions or min(grid) < 1:
            raise CheckpointError(
                f"grid={tuple(grid)} has {grid[0] * grid[1]} positions; the file's table has {positions}. "
                "Give (rows, cols) that make them."
            )
        return grid
    side = isqrt(positions)
    if side * side == positions:
        return side, side
    if image_size is None:
        raise CheckpointError(
            f"the file's {positions} positions are no square grid. Say which with grid=(rows, cols), "
            "or image_size=(height, width) of the images it was trained on."
        )
    asked = stem.grid(*image_size)
    if asked[0] * asked[1] != positions:
        raise CheckpointError(
            f"the file's {positions} positions are no square grid, and image_size={image_size} has "
            f"{asked[0]}x{asked[1]} = {asked[0] * asked[1]}. Say the file's own with grid=(rows, cols)."
        )
    return asked


def _shape(arrays: Arrays, name: str, axes: int) -> tuple[int, ...]:
    if name not in arrays:
        raise CheckpointError(f"the file lacks {name!r}.")
    if arrays[name].ndim != axes:
        raise CheckpointError(f"{name!r} must have {axes} axes; its shape is {arrays[name].shape}.")
    return arrays[name].shape


def _classes(arrays: Arrays, name: str, asked: int | None) -> int:
    """Count the classes of the file's head; a file without one needs to be told."""
    if name in arrays:
        return _shape(arrays, name, 4 if "conv2d" in name else 2)[-1]
    if asked is None:
        raise CheckpointError(f"the file has no head ({name!r}). Give classes=... for a new one.")
    return asked


def _count(arrays: Arrays, prefix: str, what: str, start: int = 0) -> int:
    """Count numbered parts, such as encoderblock_0, encoderblock_1; none may be missing."""
    pattern = re.compile(re.escape(prefix) + r"(\d+)/")
    found = sorted({int(match[1]) for name in arrays if (match := pattern.match(name))})
    if found != list(range(start, start + len(found))) or not found:
        raise CheckpointError(f"the file's {what}s {prefix}* must be numbered from {start} without a gap; got {found}.")
    return len(found)
