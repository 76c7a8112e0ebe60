"""Attention (eqs. 6 and 7) by torch's fused kernels, which never form the matrix of weights."""

from contextlib import nullcontext

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel

from vitrail.ops.attention_chunks import PairTerms, attend_in_chunks, forms_weights
from vitrail.ops.attention_kernels import KERNELS, in_single_precision

# Relative keys, or numbers added to the logits of each head; or what each query may attend to, which is never nothing.
Pairs = PairTerms | Bool[Tensor, "B 1 T T"] | None


def attend(
    query: Float[Tensor, "B h Q d"],
    key: Float[Tensor, "B h T d"],
    value: Float[Tensor, "B h T d"],
    *,
    dropout: float,
    pairs: Pairs,
    causal: bool = False,
) -> Float[Tensor, "B h Q d"]:
    """Mix the values (eqs. 6 and 7); a causal query sees itself and what comes before it."""
    if pairs is not None and not forms_weights(query, pairs, dropout, causal=causal):
        return fused_attention(query, key, value, pairs if pairs.dtype == torch.bool else pairs.to(query), dropout)
    if pairs is None and (dropout == 0 or query.device.type != "cpu"):
        return fused_attention(query, key, value, None, dropout, causal=causal)
    # In chunks of queries where a kernel would form the matrix of weights: for relative keys, or dropout on the CPU.
    return attend_in_chunks(fused_attention, query, key, value, pairs, dropout, causal=causal)


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, *, causal: bool = False
) -> Tensor:
    """Call torch's kernel; the bias is added to the logits."""
    if query.device.type == "cpu" and query.dtype == torch.bfloat16 and query.requires_grad:
        return in_single_precision(fused_attention, query, key, value, bias, dropout, causal=causal)
    with sdpa_kernel(KERNELS) if query.device.type == "cuda" else nullcontext():
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout, is_causal=causal)
    # A program that is exported may be taken apart for another engine, whose kernel lays its result out otherwise.
    return mixed.clone(memory_format=torch.contiguous_format) if torch.compiler.is_exporting() else mixed
