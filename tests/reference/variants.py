"""Slow, obvious ViT of every variant, on a dict of its weights; one loop a token, a head, a pair."""

import math

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Grid = tuple[int, int]


def code(place: float, width: int) -> Tensor:
    """The original Transformer's sines and cosines of one place."""
    values = []
    for index in range(width):
        angle = place / 10000 ** (2 * (index // 2) / width)
        values.append(math.sin(angle) if index % 2 == 0 else math.cos(angle))
    return torch.tensor(values, dtype=torch.float64)


def spread(old: int, new: int, index: int) -> float:
    """The place on the old axis of an index on the new one, corner-aligned."""
    return index * (old - 1) / (new - 1) if new > 1 else 0.0


def between(table: Tensor, place: float) -> Tensor:
    low = min(math.floor(place), table.shape[0] - 1)
    high = min(low + 1, table.shape[0] - 1)
    return table[low] * (1 - (place - low)) + table[high] * (place - low)


def added(w: Weights, kind: str, table: int, token: bool, width: int, old: Grid, new: Grid) -> Tensor:
    """The vector added to every token, T D."""
    rows = []
    leading = 1 if token else 0
    if token:
        first = {
            "learned": lambda: w[f"positions.table.{table}"][0],
            "learned-2d": lambda: w[f"positions.first.{table}"][0],
            "sinusoidal": lambda: code(0, width),
            "sinusoidal-2d": lambda: torch.zeros(width, dtype=torch.float64),
        }
        rows.append(first[kind]())
    for row in range(new[0]):
        for col in range(new[1]):
            at_row, at_col = spread(old[0], new[0], row), spread(old[1], new[1], col)
            if kind == "learned":
                grid = w[f"positions.table.{table}"][leading:].reshape(*old, -1)
                line = torch.stack([between(grid[:, index], at_row) for index in range(old[1])])
                rows.append(between(line, at_col))
            elif kind == "learned-2d":
                parts = between(w[f"positions.rows.{table}"], at_row), between(w[f"positions.cols.{table}"], at_col)
                rows.append(torch.cat(parts))
            elif kind == "sinusoidal":
                rows.append(code(leading + at_row * old[1] + at_col, width))
            else:
                rows.append(torch.cat([code(at_row, width // 2), code(at_col, width // 2)]))
    return torch.stack(rows)


def norm(x: Tensor, w: Weights, name: str, epsilon: float) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + epsilon) * w[f"{name}.weight"] + w[f"{name}.bias"]


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def attention(x: Tensor, w: Weights, name: str, heads: int, mask: Tensor, relative: Tensor | None) -> Tensor:
    """T D to T D; `mask` says who may look at whom; `relative` are the keys of the offsets 1 - T to T - 1."""
    tokens, width = x.shape
    size = width // heads
    query, key, value = linear(x, w, f"{name}.qkv").split(width, dim=1)
    mixed = torch.zeros_like(x)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        logits = query[:, part] @ key[:, part].T
        if relative is not None:
            extra = torch.zeros_like(logits)
            for one in range(tokens):
                for other in range(tokens):
                    extra[one, other] = query[one, part].dot(relative[one - other + tokens - 1, part])
            logits = logits + extra
        powers = torch.exp(logits / math.sqrt(size)) * mask
        mixed[:, part] = powers / powers.sum(1, keepdim=True) @ value[:, part]
    return linear(mixed, w, f"{name}.out")


def logits(
    w: Weights,
    patches: Tensor,
    *,
    kind: str,
    at: str,
    heads: int,
    layers: int,
    pooling: str,
    old: Grid,
    new: Grid,
    post: bool = False,
    relu: bool = False,
    axial: bool = False,
) -> Tensor:
    """Flat patches of one image, N PPC, to logits."""
    x = linear(patches, w, "embedding.projection")
    token = pooling == "token"
    if token:
        x = torch.cat([w["class_token"][None], x])
    width, tokens = x.shape[1], x.shape[0]
    row = torch.arange(new[0]).repeat_interleave(new[1])
    col = torch.arange(new[1]).repeat(new[0])
    masks = [torch.ones(tokens, tokens)] * 2
    if axial:
        masks = [(row[:, None] == row).double(), (col[:, None] == col).double()]
    for layer in range(layers):
        table = layer if at == "layers" else 0
        acts = at != "stem" or layer == 0
        relative = None
        if kind == "relative" and acts:
            stored = w[f"positions.offsets.{table}"]
            count = 2 * tokens - 1
            relative = torch.stack([between(stored, spread(stored.shape[0], count, index)) for index in range(count)])
        elif kind != "none" and kind != "relative" and acts:
            x = x + added(w, kind, table, token, width, old, new)
        name = f"blocks.{layer}"
        before = x if post else norm(x, w, f"{name}.attention_norm", 1e-6)
        x = x + attention(before, w, f"{name}.attention", heads, masks[layer % 2], relative)
        x = norm(x, w, f"{name}.attention_norm", 1e-6) if post else x
        before = x if post else norm(x, w, f"{name}.mlp_norm", 1e-6)
        hidden = linear(before, w, f"{name}.mlp.expand")
        cubic = hidden + 0.044715 * hidden**3
        hidden = hidden.clamp(min=0) if relu else 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * cubic))
        x = x + linear(hidden, w, f"{name}.mlp.contract")
        x = norm(x, w, f"{name}.mlp_norm", 1e-6) if post else x
    x = x if post else norm(x, w, "norm", 1e-6)
    pooled = {"token": x[0], "mean": x.mean(0), "max": x.max(0).values}[pooling]
    return linear(pooled, w, "head")
