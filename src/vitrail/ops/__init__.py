"""MATHS: pure functions of tensors, no parameters."""

from vitrail.ops.attention import attend
from vitrail.ops.attention_chunks import CHUNK, attention_weights
from vitrail.ops.patches import patchify, resample_patches, unpatchify
from vitrail.ops.positions import resample_axis, resample_positions

__all__ = [
    "CHUNK",
    "attend",
    "attention_weights",
    "patchify",
    "resample_axis",
    "resample_patches",
    "resample_positions",
    "unpatchify",
]
