"""MATHS: pure functions of tensors, no parameters."""

from vitrail.ops.attention import attend
from vitrail.ops.attention_chunks import CHUNK, attention_weights, query_chunks, relative_logits
from vitrail.ops.convolution import (
    convolve_same,
    max_pool_same,
    standardize_by_deviation,
    standardize_by_variance,
)
from vitrail.ops.dropout import keep_mask, salted
from vitrail.ops.lines import Axis, from_lines, to_lines, weights_of_lines
from vitrail.ops.patches import patchify, resample_patches, unpatchify
from vitrail.ops.positions import (
    resample_axis,
    resample_positions,
    sinusoidal_2d_table,
    sinusoidal_table,
    sinusoids,
)

__all__ = [
    "CHUNK",
    "Axis",
    "attend",
    "attention_weights",
    "convolve_same",
    "from_lines",
    "keep_mask",
    "max_pool_same",
    "patchify",
    "query_chunks",
    "relative_logits",
    "resample_axis",
    "resample_patches",
    "resample_positions",
    "salted",
    "sinusoidal_2d_table",
    "sinusoidal_table",
    "sinusoids",
    "standardize_by_deviation",
    "standardize_by_variance",
    "to_lines",
    "unpatchify",
    "weights_of_lines",
]
