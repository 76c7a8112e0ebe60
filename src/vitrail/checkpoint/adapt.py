"""Weights for another image size or task: pure, nothing in place (Section 3.2)."""

from torch import Tensor

from vitrail.config import ModelConfig, ViTConfig
from vitrail.ops import resample_positions

Weights = dict[str, Tensor]


def resize(weights: Weights, old: ModelConfig, new: ModelConfig) -> Weights:
    """Resample the positions from one image size's grid to another's; all else stays."""
    if not isinstance(old, ViTConfig) or not isinstance(new, ViTConfig) or old.grid == new.grid:
        return weights
    return weights | {"positions.table.0": resample_positions(weights["positions.table.0"], old.grid, new.grid)}


def replace_head(weights: Weights, new: ModelConfig) -> Weights:
    """Take the whole head away and put a zero one there (Section 3.2); the tanh layer stays where `new` has one."""
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("head.")}
    if isinstance(new, ViTConfig) and new.representation_width is None:
        kept = {name: tensor for name, tensor in kept.items() if not name.startswith("hidden.")}
    like = next(iter(kept.values()))
    return kept | {
        "head.weight": like.new_zeros(new.classes, new.representation),
        "head.bias": like.new_full((new.classes,), new.head_bias),
    }
