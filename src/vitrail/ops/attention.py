"""Attention: the fused path, with relative positions where there are any, and its weights as a matrix (eqs. 6, 7)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

CHUNK = 1 << 24  # weights formed at a time: 64 MiB in float32
# On a GPU: without cuDNN's, torch's first choice, whose backward pass gives NaN at such lengths as 64 and 576 once a
# query's logits are all far below zero (pytorch issue 196678; seen here too, without a mask).
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attend(
    query: Float[Tensor, "B h T d"],
    key: Float[Tensor, "B h T d"],
    value: Float[Tensor, "B h T d"],
    *,
    dropout: float,
    relative: Float[Tensor, "M h d"] | None,
    causal: bool = False,
) -> Float[Tensor, "B h T d"]:
    """Mix the values (eqs. 6 and 7) without ever forming the whole matrix of weights.

    The fused kernels do so by themselves, but for relative keys, and for dropout on the CPU: there the queries go in
    chunks, and where there are several, each is made again in the backward pass. A causal query sees itself and what
    comes before it.
    """
    if relative is None and (dropout == 0 or query.device.type != "cpu"):
        return _fused(query, key, value, None, dropout, causal=causal)
    chunks = list(_chunks(query, key))
    again = len(chunks) > 1 and torch.is_grad_enabled() and not torch.compiler.is_exporting()
    some, mixed = partial(_attend_some, causal=causal), []
    for rows in chunks:
        part = (query[:, :, rows.start : rows.stop], key, value, relative, rows.start, dropout)
        mixed.append(checkpoint(some, *part, use_reentrant=False) if again else some(*part))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=2)


def _attend_some(
    query: Tensor, key: Tensor, value: Tensor, relative: Tensor | None, first: int, dropout: float, *, causal: bool
) -> Tensor:
    """Mix the values for the queries from this place on."""
    bias = None if relative is None else relative_logits(query, relative, first)
    if causal:
        later = _later(query.shape[2], key.shape[2], first, query.device)
        bias = torch.zeros_like(later, dtype=query.dtype) if bias is None else bias
        bias = bias.masked_fill(later, -torch.inf)
    return _fused(query, key, value, bias, dropout)


def _later(queries: int, keys: int, first: int, device: torch.device) -> Bool[Tensor, "Q T"]:
    """Say which tokens come after each of the queries from this place on."""
    return torch.arange(keys, device=device) > torch.arange(first, first + queries, device=device)[:, None]


def _fused(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, *, causal: bool = False
) -> Tensor:
    with sdpa_kernel(KERNELS) if query.device.type == "cuda" else nullcontext():
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout, is_causal=causal)


def attention_weights(
    query: Float[Tensor, "B h S d"],
    key: Float[Tensor, "B h T d"],
    *,
    queries: slice = slice(None),
    relative: Float[Tensor, "M h d"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "B h Q T"]:
    """How much each query attends to every token (eq. 6); rows sum to one. Works in chunks, in float32 or better."""
    start, stop, step = queries.indices(query.shape[2])
    if step != 1:
        every = attention_weights(query, key, queries=slice(start, stop), relative=relative, causal=causal)
        return every[:, :, ::step]
    exact = torch.promote_types(query.dtype, torch.float32)
    wanted = query[:, :, start:stop]
    weights = query.new_empty((*wanted.shape[:3], key.shape[2]), dtype=exact)
    with _exactly(query.device.type):
        keys = key.to(exact).transpose(2, 3) * query.shape[3] ** -0.5  # B h d T
        for rows in _chunks(wanted, key):
            part = wanted[:, :, rows.start : rows.stop].to(exact)
            logits = part @ keys  # B h chunk T
            if relative is not None:
                logits = logits + relative_logits(part, relative.to(exact), start + rows.start)
            if causal:
                later = _later(part.shape[2], key.shape[2], start + rows.start, query.device)
                logits = logits.masked_fill(later, -torch.inf)
            weights[:, :, rows.start : rows.stop] = logits.softmax(dim=-1)
    return weights


def _exactly(device: str) -> AbstractContextManager[object]:
    """Keep autocast out of what follows, where the device has it."""
    available = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()


def relative_logits(
    query: Float[Tensor, "B h Q d"], relative: Float[Tensor, "M h d"], first: int
) -> Float[Tensor, "B h Q T"]:
    """The queries from this place on against the key of every offset p_q - p_k (Appendix D.4).

    The M = 2T - 1 keys are of the offsets 1 - T to T - 1.
    """
    count, tokens = query.shape[2], (relative.shape[0] + 1) // 2
    needed = relative[first : first + count + tokens - 1].flip(0)  # those of p_q - T + 1 to p_q, largest first
    by_offset = torch.einsum("bhqd,mhd->bhqm", query, needed) * query.shape[3] ** -0.5  # B h Q T+Q-1
    # Row q wants the T offsets from column Q-1-q on: in the flat rows, each begins one place earlier than the last.
    shifted = by_offset.flatten(2)[:, :, count - 1 :]
    shifted = shifted[:, :, : count * (tokens + count - 2)] if count > 1 else shifted[:, :, :tokens]
    return shifted.unflatten(2, (count, shifted.shape[2] // count))[:, :, :, :tokens]


def _chunks(query: Tensor, key: Tensor) -> Iterator[range]:
    """Split the queries of a batch; as for one image in a traced program."""
    images = 1 if torch.compiler.is_compiling() else query.shape[0]
    return query_chunks(query.shape[2], images * query.shape[1] * key.shape[2])


def query_chunks(queries: int, weights: int) -> Iterator[range]:
    """Split queries of so many weights each so that no more than CHUNK weights are formed at a time."""
    step = max(1, CHUNK // max(weights, 1))
    for start in range(0, queries, step):
        yield range(start, min(start + step, queries))
