"""Attention weights as a matrix, which the fused kernels never form (eq. 6)."""

import torch
from jaxtyping import Float
from torch import Tensor

CHUNK = 1 << 24  # weights computed at a time: 64 MiB in float32


def attention_weights(query: Float[Tensor, "B h Q d"], key: Float[Tensor, "B h T d"]) -> Float[Tensor, "B h Q T"]:
    """How much each query attends to every token (eq. 6); rows sum to one. Works in chunks, in float32 or better."""
    exact = torch.promote_types(query.dtype, torch.float32)
    batch, heads, queries, width = query.shape
    step = max(1, CHUNK // max(batch * heads * key.shape[2], 1))
    weights = query.new_empty((batch, heads, queries, key.shape[2]), dtype=exact)
    with torch.autocast(query.device.type, enabled=False):
        keys = key.to(exact).transpose(2, 3) * width**-0.5  # B h d T
        for start in range(0, queries, step):
            logits = query[:, :, start : start + step].to(exact) @ keys  # B h chunk T
            weights[:, :, start : start + step] = logits.softmax(dim=-1)
    return weights
