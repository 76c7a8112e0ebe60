"""WHAT a model is: frozen dataclasses, checked once, without torch."""

from vitrail.config.check import as_size, whole
from vitrail.config.fields import decode, encode, override, read_settings
from vitrail.config.model import (
    BiTConfig,
    Card,
    Grid,
    HybridStem,
    ModelConfig,
    PatchStem,
    Preprocessing,
    Provenance,
    Stem,
    ViTConfig,
)
from vitrail.config.positions import (
    AppliedAt,
    Learned2DPositions,
    LearnedPositions,
    NoPositions,
    Positions,
    RelativePositions,
    Resampling,
    Sinusoidal2DPositions,
    SinusoidalPositions,
)
from vitrail.config.words import suggest
from vitrail.config.zoo import name_of, names, parse, row

__all__ = ["AppliedAt", "BiTConfig", "Card", "Grid", "HybridStem", "Learned2DPositions", "LearnedPositions"]
__all__ += ["ModelConfig", "NoPositions", "PatchStem", "Positions", "Preprocessing", "Provenance", "RelativePositions"]
__all__ += ["Resampling", "Sinusoidal2DPositions", "SinusoidalPositions", "Stem", "ViTConfig", "as_size", "decode"]
__all__ += ["encode", "name_of", "names", "override", "parse", "read_settings", "row", "suggest", "whole"]
