"""Attention where a matrix of weights must be formed: some queries at a time, so that the whole is never held."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = 1 << 24  # weights formed at a time: 64 MiB in float32
PairTerms = Float[Tensor, "M h d"] | Float[Tensor, "1 h T T"]  # keys of offsets in the sequence; logits as they are


def forms_weights(query: Tensor, pairs: Tensor, dropout: float, *, causal: bool) -> bool:
    """Tell whether torch's kernel would form the matrix of weights for what is said of pairs, or is not told it."""
    if pairs.dtype == torch.bool:
        return False
    learns = pairs.requires_grad and torch.is_grad_enabled()
    return pairs.ndim == 3 or causal or (query.device.type == "cpu" and (dropout > 0 or learns))


def attend_in_chunks(
    kernel: Callable[..., Tensor],
    query: Float[Tensor, "B h T d"],
    key: Float[Tensor, "B h T d"],
    value: Float[Tensor, "B h T d"],
    relative: PairTerms | None,
    dropout: float,
    *,
    causal: bool,
) -> Float[Tensor, "B h T d"]:
    """Mix the values (eqs. 6 and 7), with what pairs add to the logits, where there is any.

    Where there are several chunks, each is made again in the backward pass.
    """
    chunks = list(_chunks(query, key))
    again = len(chunks) > 1 and torch.is_grad_enabled() and not torch.compiler.is_exporting()
    some, mixed = partial(_attend_some, kernel, causal=causal), []
    for rows in chunks:
        part = (query[:, :, rows], key, value, relative, rows.start, dropout)
        mixed.append(checkpoint(some, *part, use_reentrant=False) if again else some(*part))
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=2)


def _attend_some(
    kernel: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relative: Tensor | None,
    first: int,
    dropout: float,
    *,
    causal: bool,
) -> Tensor:
    """Mix the values for the queries from this place on."""
    bias = None if relative is None else pair_logits(query, relative, first)
    if causal:
        later = _later(query.shape[2], key.shape[2], first, query.device)
        bias = torch.zeros_like(later, dtype=query.dtype) if bias is None else bias
        bias = bias.masked_fill(later, -torch.inf)
    return kernel(query, key, value, bias, dropout)


def attention_weights(
    query: Float[Tensor, "B h S d"],
    key: Float[Tensor, "B h T d"],
    *,
    queries: slice = slice(None),
    relative: PairTerms | None = None,
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
    with _without_autocast(query.device.type):
        keys = key.to(exact).transpose(2, 3) * query.shape[3] ** -0.5  # B h d T
        for rows in _chunks(wanted, key):
            part, first = wanted[:, :, rows].to(exact), start + rows.start
            logits = part @ keys  # B h chunk T
            if relative is not None:
                logits = logits + pair_logits(part, relative.to(exact), first)
            if causal:
                later = _later(part.shape[2], key.shape[2], first, query.device)
                logits = logits.masked_fill(later, -torch.inf)
            weights[:, :, rows] = logits.softmax(dim=-1)
    return weights


def _without_autocast(device: str) -> AbstractContextManager[object]:
    available = torch.amp.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()


def _later(queries: int, keys: int, first: int, device: torch.device) -> Bool[Tensor, "Q T"]:
    """Say which tokens come after each of the queries from this place on."""
    return torch.arange(keys, device=device) > torch.arange(first, first + queries, device=device)[:, None]


def pair_logits(query: Float[Tensor, "B h Q d"], terms: PairTerms, first: int) -> Float[Tensor, "B2 h Q T"]:
    """What pairs of tokens add to the logits of the queries from this place on; `B2` is one where it is no matter."""
    if terms.ndim == 4:
        return terms[:, :, first : first + query.shape[2]].to(query.dtype)
    return relative_logits(query, terms, first)


def relative_logits(
    query: Float[Tensor, "B h Q d"], relative: Float[Tensor, "M h d"], first: int
) -> Float[Tensor, "B h Q T"]:
    """The queries from this place on against the key of every offset p_q - p_k (Appendix D.4).

    The M = 2T - 1 keys are of the offsets 1 - T to T - 1.
    """
    count, tokens = query.shape[2], (relative.shape[0] + 1) // 2
    needed = relative[first : first + count + tokens - 1].flip(0)  # those of p_q - T + 1 to p_q, largest first
    by_offset = query @ needed.permute(1, 2, 0) * query.shape[3] ** -0.5  # B h Q T+Q-1, one after the other in memory
    # Row q wants the T offsets from column Q-1-q on: in the flat rows, each begins one place earlier than the last.
    shifted = by_offset.flatten(2)[:, :, count - 1 :]
    shifted = shifted[:, :, : count * (tokens + count - 2)] if count > 1 else shifted[:, :, :tokens]
    return shifted.unflatten(2, (count, shifted.shape[2] // count))[:, :, :, :tokens]


def _chunks(query: Tensor, key: Tensor) -> Iterator[slice]:
    """Split the queries of a batch; as for one image in a traced program."""
    images = 1 if torch.compiler.is_compiling() else query.shape[0]
    return query_chunks(query.shape[2], images * query.shape[1] * key.shape[2])


def query_chunks(queries: int, weights: int) -> Iterator[slice]:
    """Split queries of so many weights each so that no more than CHUNK weights are formed at a time.

    Where an exported program leaves their number free, they are one chunk.
    """
    if isinstance(queries, torch.SymInt):
        yield slice(0, queries)
        return
    step = max(1, CHUNK // max(weights, 1))
    for start in range(0, queries, step):
        yield slice(start, min(start + step, queries))
