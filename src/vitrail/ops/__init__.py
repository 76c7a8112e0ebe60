"""MATHS: pure functions of tensors, no parameters."""

from vitrail.ops.attention import attention_weights
from vitrail.ops.convolution import (
    convolve_same,
    max_pool_same,
    standardise_by_deviation,
    standardise_by_variance,
)
from vitrail.ops.patches import patchify, unpatchify
from vitrail.ops.positions import resample_positions

__all__ = [
    "attention_weights",
    "convolve_same",
    "max_pool_same",
    "patchify",
    "resample_positions",
    "standardise_by_deviation",
    "standardise_by_variance",
    "unpatchify",
]
