"""WHAT a model is: frozen dataclasses, checked once, without torch."""

from vitrail.config.card import Card, Provenance
from vitrail.config.check import as_size, whole
from vitrail.config.fields import decode, encode, override, read_settings
from vitrail.config.model import (
    BiTConfig,
    Grid,
    HybridStem,
    ModelConfig,
    PatchStem,
    Stem,
    ViTConfig,
)
from vitrail.config.positions import (
    AppliedAt,
    BiasPositions,
    Learned2DPositions,
    LearnedPositions,
    NoPositions,
    PairPositions,
    Positions,
    RelativePositions,
    Resampling,
    RotaryPositions,
    Sinusoidal2DPositions,
    SinusoidalPositions,
)
from vitrail.config.preprocessing import Preprocessing, read_preprocessing
from vitrail.config.words import suggest
from vitrail.config.zoo import FILE_FIELDS, name_of, names, parse, read_model_settings, row

__all__ = [
    "FILE_FIELDS",
    "AppliedAt",
    "BiTConfig",
    "BiasPositions",
    "Card",
    "Grid",
    "HybridStem",
    "Learned2DPositions",
    "LearnedPositions",
]
__all__ += ["ModelConfig", "NoPositions", "PairPositions", "PatchStem", "Positions", "Preprocessing", "Provenance"]
__all__ += [
    "RelativePositions",
    "Resampling",
    "RotaryPositions",
    "Sinusoidal2DPositions",
    "SinusoidalPositions",
    "Stem",
    "ViTConfig",
    "as_size",
    "decode",
]
__all__ += ["encode", "name_of", "names", "override", "parse", "read_model_settings", "read_preprocessing"]
__all__ += ["read_settings", "row", "suggest", "whole"]
