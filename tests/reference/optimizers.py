"""Schedules, losses, clipping and optimisers in plain Python and float64, one number or array at a time."""

import math

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
Arrays = dict[str, Reals]


def warmed(step: int, warmup: int) -> float:
    return step / warmup if step < warmup else 1.0


def linear(base: float, end: float, warmup: int, step: int, steps: int) -> float:
    """A straight line from the base rate after the warm-up to the end rate at the last step, times the warm-up."""
    gone = max(step - warmup, 0) / (steps - warmup)
    return warmed(step, warmup) * (base * (1 - gone) + end * gone)


def cosine(base: float, end: float, warmup: int, step: int, steps: int) -> float:
    gone = max(step - warmup, 0) / (steps - warmup)
    return warmed(step, warmup) * (end + (base - end) * math.cos(math.pi * gone / 2) ** 2)


def hyperrule(base: float, supports: tuple[int, ...], step: int) -> float | None:
    """BiT's staircase: a warm-up to the first support, a tenth past each of the next, nothing from the last on."""
    first, *others = supports
    if step < first:
        return base * step / first
    if step >= others[-1]:
        return None
    for support in others:
        if step > support:
            base = base / 10
    return base


def softmax_loss(logits: Reals, targets: Reals) -> Reals:
    """Each image's - sum over k of t_k log(e^{x_k} / sum over j of e^{x_j})."""
    top = logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(axis=1, keepdims=True)) + top
    return (targets * (total - logits)).sum(axis=1)


def sigmoid_loss(logits: Reals, targets: Reals) -> Reals:
    """Each image's sum over k of - t_k log s(x_k) - (1 - t_k) log(1 - s(x_k))."""
    return (targets * np.logaddexp(0, -logits) + (1 - targets) * np.logaddexp(0, logits)).sum(axis=1)


def clipped(gradients: Arrays, most: float) -> Arrays:
    norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))
    factor = min(1.0, most / norm)
    return {name: gradient * factor for name, gradient in gradients.items()}


class Adam:
    """Adam (Kingma and Ba, 2015); decay is decoupled, and multiplied by the relative schedule, as the authors' code.

    `decays` holds the names that shrink. Each update takes relative x decay of the weight, relative being rate / base.
    """

    def __init__(
        self,
        weights: Arrays,
        *,
        base: float,
        decay: float,
        decays: set[str],
        betas: tuple[float, float],
        epsilon: float,
    ) -> None:
        self.weights = {name: weight.copy() for name, weight in weights.items()}
        self.first = {name: np.zeros_like(weight) for name, weight in weights.items()}
        self.second = {name: np.zeros_like(weight) for name, weight in weights.items()}
        self.base, self.decay, self.decays, self.betas, self.epsilon = base, decay, decays, betas, epsilon
        self.count = 0

    def step(self, gradients: Arrays, relative: float, shares: dict[str, float] | None = None) -> None:
        self.count += 1
        for name, gradient in gradients.items():
            one, two = self.betas
            self.first[name] = one * self.first[name] + (1 - one) * gradient
            self.second[name] = two * self.second[name] + (1 - two) * gradient**2
            mean = self.first[name] / (1 - one**self.count)
            square = self.second[name] / (1 - two**self.count)
            update = self.base * mean / (np.sqrt(square) + self.epsilon)
            if name in self.decays:
                update = update + self.decay * self.weights[name]
            self.weights[name] = self.weights[name] - relative * (shares or {}).get(name, 1.0) * update


class SGD:
    """Momentum as the authors' code has it: the buffer is momentum x buffer + gradient."""

    def __init__(self, weights: Arrays, *, momentum: float) -> None:
        self.weights = {name: weight.copy() for name, weight in weights.items()}
        self.buffers = {name: np.zeros_like(weight) for name, weight in weights.items()}
        self.momentum = momentum

    def step(self, gradients: Arrays, rate: float) -> None:
        for name, gradient in gradients.items():
            self.buffers[name] = self.momentum * self.buffers[name] + gradient
            self.weights[name] = self.weights[name] - rate * self.buffers[name]


def orthogonal(matrix: Reals, steps: int = 5) -> Reals:
    """Newton-Schulz steps of Jordan et al. (2024): each singular value s becomes a s + b s^3 + c s^5."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / max(math.sqrt(float((values**2).sum())), 1e-7)
    for _ in range(steps):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return (left * values) @ right


class Muon:
    """Nesterov's momentum of each matrix, orthogonalized; `parts` says how many a matrix is, one above the other."""

    def __init__(self, weights: Arrays, *, parts: dict[str, int], momentum: float, decay: float) -> None:
        self.weights = {name: weights[name].copy() for name in parts}
        self.buffers = {name: np.zeros_like(weights[name]) for name in parts}
        self.parts, self.momentum, self.decay = parts, momentum, decay

    def step(self, gradients: Arrays, rate: float) -> None:
        for name, count in self.parts.items():
            kept = self.momentum
            self.buffers[name] = kept * self.buffers[name] + (1 - kept) * gradients[name]
            wanted = kept * self.buffers[name] + (1 - kept) * gradients[name]
            rows, cols = len(wanted) // count, wanted.shape[1]
            updates = [orthogonal(wanted[part * rows : (part + 1) * rows]) for part in range(count)]
            update = 0.2 * math.sqrt(max(rows, cols)) * np.concatenate(updates)
            self.weights[name] = self.weights[name] * (1 - rate * self.decay) - rate * update
