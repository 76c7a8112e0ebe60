"""WHAT a model is: frozen dataclasses, checked once, without torch."""

from vitrail.config.card import Card, Preprocessing, Provenance
from vitrail.config.check import as_size, pair, whole
from vitrail.config.codec import decode, encode
from vitrail.config.fields import override, reach, read_settings, suggest
from vitrail.config.model import BiTConfig, Grid, HybridStem, ModelConfig, PatchStem, Stem, ViTConfig
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
from vitrail.config.zoo import name_of, names, parse, row

__all__ = [
    "AppliedAt",
    "BiTConfig",
    "Card",
    "Grid",
    "HybridStem",
    "Learned2DPositions",
    "LearnedPositions",
    "ModelConfig",
    "NoPositions",
    "PatchStem",
    "Positions",
    "Preprocessing",
    "Provenance",
    "RelativePositions",
    "Resampling",
    "Sinusoidal2DPositions",
    "SinusoidalPositions",
    "Stem",
    "ViTConfig",
    "as_size",
    "decode",
    "encode",
    "name_of",
    "names",
    "override",
    "pair",
    "parse",
    "reach",
    "read_settings",
    "row",
    "suggest",
    "whole",
]
