"""Attention (eqs. 6 and 7) by torch's fused kernels, which never form the matrix of weights."""

from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.ops.attention_chunks import attend_in_chunks

# On a GPU. cuDNN's is the fastest on Hopper (LOG.md), but its backward pass gives NaN at such lengths as 64 and 576
# once a query's logits are all far below zero (pytorch issue 196678; seen here too, without a mask).
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
CUDNN_FIRST = [SDPBackend.CUDNN_ATTENTION, *KERNELS]
TILE, HALF_TILE = 128, 64  # of cuDNN's backward pass: lengths of half a tile beyond whole ones are those


def attend(
    query: Float[Tensor, "B h T d"],
    key: Float[Tensor, "B h T d"],
    value: Float[Tensor, "B h T d"],
    *,
    dropout: float,
    relative: Float[Tensor, "M h d"] | None,
    causal: bool = False,
) -> Float[Tensor, "B h T d"]:
    """Mix the values (eqs. 6 and 7); a causal query sees itself and what comes before it.

    The kernels would form the matrix of weights for relative keys, and for dropout on the CPU: there queries go in
    chunks.
    """
    if relative is None and (dropout == 0 or query.device.type != "cpu"):
        return fused_attention(query, key, value, None, dropout, causal=causal)
    return attend_in_chunks(fused_attention, query, key, value, relative, dropout, causal=causal)


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, *, causal: bool = False
) -> Tensor:
    """Call torch's kernel; the bias is added to the logits."""
    with sdpa_kernel(kernels_for(query, key), set_priority=True) if query.device.type == "cuda" else nullcontext():
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout, is_causal=causal)
    # A program that is exported may be taken apart for another engine, whose kernel lays its result out otherwise.
    return mixed.clone(memory_format=torch.contiguous_format) if torch.compiler.is_exporting() else mixed


def kernels_for(query: Tensor, key: Tensor) -> list[SDPBackend]:
    """Give the kernels of a GPU that may be taken, the fastest first."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    trained = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
    safe = not trained or all(length % TILE != HALF_TILE for length in (query.shape[2], key.shape[2]))
    return CUDNN_FIRST if half and safe else KERNELS
