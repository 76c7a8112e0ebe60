"""WHAT a model is: frozen dataclasses, checked once, without torch."""

from vitrail.config.model import BiTConfig, Grid, HybridStem, ModelConfig, PatchStem, Stem, ViTConfig, as_size
from vitrail.config.override import override
from vitrail.config.zoo import names, parse

__all__ = [
    "BiTConfig",
    "Grid",
    "HybridStem",
    "ModelConfig",
    "PatchStem",
    "Stem",
    "ViTConfig",
    "as_size",
    "names",
    "override",
    "parse",
]
