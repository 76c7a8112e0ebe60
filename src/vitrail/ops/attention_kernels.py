"""Torch's attention kernels on a GPU: those that are taken, and a faster choice that is yet to be proved there."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

# On a GPU. cuDNN's is the fastest on Hopper (LOG.md), but its backward pass gives NaN at such lengths as 64 and 576
# once a query's logits are all far below zero (pytorch issue 196678; seen here too, without a mask).
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
CUDNN_FIRST = [SDPBackend.CUDNN_ATTENTION, *KERNELS]
TILE, HALF_TILE = 128, 64  # of cuDNN's backward pass: lengths of half a tile beyond whole ones are those


def kernels_for(query: Tensor, key: Tensor) -> list[SDPBackend]:
    """Give the kernels that may prove sound, the fastest first; `benchmarks/attention.py` tries them."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    trained = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
    safe = not trained or all(length % TILE != HALF_TILE for length in (query.shape[2], key.shape[2]))
    return CUDNN_FIRST if half and safe else KERNELS


def in_single_precision(
    attention: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout: float,
    *,
    causal: bool,
) -> Tensor:
    """Mix values in single precision: in half of it the backward pass of a CPU's kernel takes three times as long."""
    added = bias if bias is None or bias.dtype == torch.bool else bias.float()
    with torch.autocast("cpu", enabled=False):
        whole = attention(query.float(), key.float(), value.float(), added, dropout, causal=causal)
    return whole.to(query.dtype)
