"""Weights for another image size, task, patch or number of channels: pure, nothing in place, each change reported."""

from math import ceil
from typing import NamedTuple

from torch import Tensor

from vitrail.config import HybridStem, Learned2DPositions, LearnedPositions, ModelConfig, RelativePositions, ViTConfig
from vitrail.errors import CheckpointError
from vitrail.models.initialize import DIRECTIONS, draw
from vitrail.ops import resample_axis, resample_patches, resample_positions

Weights = dict[str, Tensor]


class Adapted(NamedTuple):
    """New weights, and in words what is new."""

    weights: Weights
    changes: tuple[str, ...]


def adapt(weights: Weights, old: ModelConfig, new: ModelConfig, *, new_head: bool = False) -> Adapted:
    """Give the weights of one configuration as those of another, step by step; `new_head` asks for a zero one."""
    changes: list[str] = []
    for step in (change_channels, change_patch, change_size):
        weights, said = step(weights, old, new)
        changes += said
    same = (old.classes, old.representation, old.cosine_scale is None)
    if new_head or same != (new.classes, new.representation, new.cosine_scale is None):
        weights, said = replace_head(weights, new)
        changes += said
    return Adapted(weights, tuple(changes))


def change_size(weights: Weights, old: ModelConfig, new: ModelConfig) -> Adapted:
    """Resample the positions from one grid to another (Section 3.2), as the model itself would; all else stays."""
    if not isinstance(old, ViTConfig) or not isinstance(new, ViTConfig) or old.grid == new.grid:
        return Adapted(weights, ())
    said = f"positions resampled from {old.grid[0]}x{old.grid[1]} to {new.grid[0]}x{new.grid[1]}"
    tables = {name: tensor for name, tensor in weights.items() if name.startswith("positions.")}
    fresh: Weights = {}
    match old.positions:
        case LearnedPositions(resampling=how):
            fresh = {name: resample_positions(table, old.grid, new.grid, how) for name, table in tables.items()}
            said += f" ({how})"
        case Learned2DPositions():
            axes = {"positions.rows.": 0, "positions.cols.": 1}
            for name, table in tables.items():
                axis = next((axis for start, axis in axes.items() if name.startswith(start)), None)
                fresh[name] = table if axis is None else resample_axis(table, 0, new.grid[axis])
        case RelativePositions():
            fresh = {name: resample_axis(table, 0, 2 * new.tokens - 1) for name, table in tables.items()}
        case _:
            said = f"positions are those of the new grid {new.grid[0]}x{new.grid[1]}"
    return Adapted(weights | fresh, (said,))


def change_patch(weights: Weights, old: ModelConfig, new: ModelConfig) -> Adapted:
    """Resize the patch kernel by the pseudo-inverse (FlexiViT): a resized patch has the embedding that it had."""
    if not isinstance(old, ViTConfig) or not isinstance(new, ViTConfig) or old.stem.patch == new.stem.patch:
        return Adapted(weights, ())
    name = f"embedding.{'patches.' if isinstance(old.stem, HybridStem) else ''}projection.weight"
    before, after = old.stem.patch, new.stem.patch
    kernel = resample_patches(weights[name], before, after)
    return Adapted(weights | {name: kernel}, (f"patches resized from {before} to {after} by the pseudo-inverse",))


def change_channels(weights: Weights, old: ModelConfig, new: ModelConfig) -> Adapted:
    """Sum the first layer over the channels for one, or repeat them, scaled to the same sum, for another number."""
    if old.channels == new.channels:
        return Adapted(weights, ())
    if new.channels != 1 and old.channels != 3:
        raise CheckpointError(
            f"channels can go from 3 to any number, or from any number to 1; got {old.channels} to {new.channels}."
        )
    name = "root.weight"
    if isinstance(old, ViTConfig):
        name = "embedding.resnet.root.weight" if isinstance(old.stem, HybridStem) else "embedding.projection.weight"
    kernel = weights[name]
    if kernel.ndim == 2:  # D PPC: the channel is the last of a flat patch
        kernel = kernel.unflatten(1, (kernel.shape[1] // old.channels, old.channels)).transpose(1, 2)  # D C PP
    if new.channels == 1:
        fresh = kernel.sum(dim=1, keepdim=True)
        said = f"first layer summed over {old.channels} channels"
    else:
        times = [ceil(new.channels / old.channels)] + [1] * (kernel.ndim - 2)
        fresh = kernel.repeat(1, *times)[:, : new.channels] * (old.channels / new.channels)
        said = f"first layer repeated for {new.channels} channels and scaled by {old.channels}/{new.channels}"
    if weights[name].ndim == 2:
        fresh = fresh.transpose(1, 2).flatten(1)
    return Adapted(weights | {name: fresh.contiguous()}, (said,))


def replace_head(weights: Weights, new: ModelConfig) -> Adapted:
    """Take the whole head away and put a zero one there (Section 3.2), or drawn directions where it is by cosines.

    The tanh layer stays where `new` has one.
    """
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}
    fresh = "zero classifier" if new.cosine_scale is None else "classifier by cosines"
    said = "classifier dropped" if new.classes is None else f"new {fresh} of {new.classes} classes"
    if isinstance(new, ViTConfig) and "hidden.weight" in weights:
        if new.pre_logits is None:
            kept = {name: tensor for name, tensor in kept.items() if not name.startswith("hidden.")}
            said += ", pre-training layer dropped"
        else:
            said += ", pre-training layer kept"
    if new.classes is None:
        return Adapted(kept, (said,))
    like = next(iter(kept.values()))
    if new.cosine_scale is not None:
        directions = draw(DIRECTIONS, (new.classes, new.representation), seed=0)
        return Adapted(kept | {DIRECTIONS: directions.to(like)}, (said,))
    head = {
        "head.weight": like.new_zeros(new.classes, new.representation),
        "head.bias": like.new_full((new.classes,), new.head_bias),
    }
    return Adapted(kept | head, (said,))
