"""Face verification the slow way: pair by pair, angle by angle, in float64."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


def arcface_loss(representation: Reals, directions: Reals, label: int, scale: float, margin: float) -> float:
    """Cross-entropy of one image, by angles (Deng et al. 2019, eq. 3)."""
    logits = []
    for number, direction in enumerate(directions):
        cosine = float(representation @ direction) / math.sqrt(
            float(representation @ representation) * float(direction @ direction)
        )
        angle = math.acos(min(max(cosine, -1.0), 1.0))
        if number != label:
            logits.append(scale * math.cos(angle))
        elif angle + margin < math.pi:
            logits.append(scale * math.cos(angle + margin))
        else:
            logits.append(scale * (math.cos(angle) - margin * math.sin(margin)))
    most = max(logits)
    return most + math.log(sum(math.exp(logit - most) for logit in logits)) - logits[label]


def pairs(embeddings: Reals, labels: Sequence[int]) -> tuple[list[float], list[float]]:
    """Cosines of all pairs of one person, and of all pairs of two."""
    genuine, impostors = [], []
    for first in range(len(labels)):
        for second in range(first + 1, len(labels)):
            one, other = embeddings[first], embeddings[second]
            cosine = float(one @ other) / math.sqrt(float(one @ one) * float(other @ other))
            (genuine if labels[first] == labels[second] else impostors).append(cosine)
    return genuine, impostors


def tar(genuine: Sequence[float], impostors: Sequence[float], far: float) -> float:
    """Largest share of genuine pairs accepted at any threshold whose share of impostors is at most this."""
    best = 0.0
    for level in genuine:
        if sum(score >= level for score in impostors) <= far * len(impostors):
            best = max(best, sum(score >= level for score in genuine) / len(genuine))
    return best


def rank(scores: Sequence[float], people: Sequence[int], own: int) -> int:
    """Place of one's own person among all, each by their best image."""
    best: dict[int, float] = {}
    for score, person in zip(scores, people, strict=True):
        best[person] = max(score, best.get(person, -math.inf))
    return 1 + sum(score >= best[own] for person, score in best.items() if person != own)
