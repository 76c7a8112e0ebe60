"""What looking inside gives, slowly and obviously: loops over numbers, no package, no torch."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def rollout(layers: Sequence[Numbers]) -> Numbers:
    """Attention rollout of one image: `layers` are h T T; what every token is made of after the last."""
    tokens = layers[0].shape[1]
    joint = np.eye(tokens)
    for heads in layers:
        mixed = np.zeros((tokens, tokens))
        for query in range(tokens):
            for key in range(tokens):
                mixed[query, key] = sum(head[query, key] for head in heads) / len(heads) + (query == key)
            mixed[query] /= mixed[query].sum()
        joint = mixed @ joint
    return joint


def attention_distance(heads: Numbers, rows: int, cols: int, stride: int, leading: int, normalized: bool) -> Numbers:
    """Mean distance in pixels that each head of one layer (h T T) looks, from patch to patch."""
    found = []
    for head in heads:
        total = 0.0
        for query in range(rows * cols):
            weights = head[leading + query, leading:]
            scale = weights.sum() if normalized else 1.0
            for key in range(rows * cols):
                far = math.hypot(query // cols - key // cols, query % cols - key % cols) * stride
                total += far * weights[key] / scale
        found.append(total / (rows * cols))
    return np.array(found)


def cosine(one: Numbers, two: Numbers) -> float:
    """Cosine of two vectors."""
    return float((one * two).sum() / math.sqrt((one * one).sum() * (two * two).sum()))


def unbiased_hsic(first: Numbers, second: Numbers) -> float:
    """HSIC by its definition over quadruples of different samples (Song et al., 2012, eq. 4), from Gram matrices."""
    count = len(first)
    total, ways = 0.0, 0
    for i in range(count):
        for j in range(count):
            for q in range(count):
                for r in range(count):
                    if len({i, j, q, r}) == 4:
                        total += first[i, j] * (second[i, j] + second[q, r] - 2 * second[i, q])
                        ways += 1
    return total / ways


def cka(one: Numbers, two: Numbers) -> float:
    """CKA of two sets of features (n F) of the same samples."""
    first, second = one @ one.T, two @ two.T
    return unbiased_hsic(first, second) / math.sqrt(unbiased_hsic(first, first) * unbiased_hsic(second, second))
