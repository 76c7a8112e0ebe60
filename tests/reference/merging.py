"""Slow, obvious token merging and a ViT that merges: one image, one token, one pair at a time."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

Token = tuple[Tensor, float]  # its features, and the patches that it stands for


def cost(a: Tensor, b: Tensor, size: float, other: float) -> float:
    """By how much the squared distances of patches to the mean of their token grow, for directions a and b."""
    a, b = a / a.norm(), b / b.norm()
    mean = (size * a + other * b) / (size + other)
    return float(size * ((a - mean) ** 2).sum() + other * ((b - mean) ** 2).sum())


def merge(tokens: Sequence[Token], features: Sequence[Tensor], count: int) -> list[Token]:
    """Merge so many even tokens, each into the odd one that costs least; the cheapest go, in that order."""
    if not count:
        return [*tokens]
    even, odd = range(0, len(tokens), 2), range(1, len(tokens), 2)
    best = []
    for i in even:
        costs = {j: cost(features[i], features[j], tokens[i][1], tokens[j][1]) for j in odd}
        best.append((min(costs.values()), i, min(costs, key=lambda j: costs[j])))
    best.sort()
    groups = {j: [tokens[j]] for j in odd}
    for _, i, j in best[:count]:
        groups[j].append(tokens[i])
    means = []
    for members in groups.values():
        size = sum(size for _, size in members)
        means.append((torch.stack([size * token for token, size in members]).sum(0) / size, size))
    return [tokens[i] for _, i, _ in best[count:]] + means


def attention(queries: Tensor, keys: Tensor, values: Tensor, sizes: Sequence[float]) -> Tensor:
    """Attention of one head where every token is there as often as it stands for patches."""
    every = torch.tensor([place for place, size in enumerate(sizes) for _ in range(round(size))])
    mixed = []
    for query in queries:
        logits = keys[every] @ query / math.sqrt(len(query))
        mixed.append(logits.softmax(0) @ values[every])
    return torch.stack(mixed)


def norm(token: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    return F.layer_norm(token, token.shape, weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-6)


def represent(
    weights: Mapping[str, Tensor], embedded: Tensor, heads: int, schedule: Sequence[int], *, class_token: bool
) -> Tensor:
    """From the embedded tokens of one image, T D, to what the classifier reads."""
    tokens: list[Token] = [(token, 1.0) for token in embedded]
    for layer, count in enumerate(schedule):
        block = {name.removeprefix(f"blocks.{layer}."): tensor for name, tensor in weights.items()}
        read = torch.stack([norm(token, block, "attention_norm") for token, _ in tokens])
        packed = read @ block["attention.qkv.weight"].T + block["attention.qkv.bias"]
        query, key, value = packed.chunk(3, dim=1)
        sizes = [size for _, size in tokens]
        parts = zip(query.chunk(heads, dim=1), key.chunk(heads, dim=1), value.chunk(heads, dim=1), strict=True)
        mixed = torch.cat([attention(q, k, v, sizes) for q, k, v in parts], dim=1)
        mixed = mixed @ block["attention.out.weight"].T + block["attention.out.bias"]
        if "attention_scale.weight" in block:
            mixed = mixed * block["attention_scale.weight"]
        tokens = [(token + more, size) for (token, size), more in zip(tokens, mixed, strict=True)]
        first, patches = tokens[: int(class_token)], tokens[int(class_token) :]
        tokens = first + merge(patches, [norm(token, block, "mlp_norm") for token, _ in patches], count)
        grown = []
        for token, size in tokens:
            hidden = norm(token, block, "mlp_norm") @ block["mlp.expand.weight"].T + block["mlp.expand.bias"]
            more = F.gelu(hidden, approximate="tanh") @ block["mlp.contract.weight"].T + block["mlp.contract.bias"]
            grown.append((token + more * block.get("mlp_scale.weight", torch.tensor(1.0)), size))
        tokens = grown
    if class_token:
        return norm(tokens[0][0], weights, "norm")
    total = sum(size for _, size in tokens)
    return torch.stack([norm(token, weights, "norm") * size for token, size in tokens]).sum(0) / total
