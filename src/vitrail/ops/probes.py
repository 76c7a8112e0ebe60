"""Classifiers of frozen features: least squares (Section 4.1), nearest neighbours, logistic regression.

The least squares are onto targets of -1 and 1, in closed form and float64, with the constants of the authors'
evaluator: features are whitened one by one, and a constant feature, so large that it is hardly regularised, stands for
the bias. One eigendecomposition serves every strength of regularisation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

BIAS = 100.0  # the constant feature
LEAST = 1e-5  # added to every deviation
MOST = 2**24  # numbers that are formed at once
STEPS = 200  # of L-BFGS at most


@dataclass(frozen=True, kw_only=True)
class Whitening:
    """Each feature's mean and deviation, of the training rows."""

    mean: Float[Tensor, "1 D"]
    deviation: Float[Tensor, "1 D"]

    def __call__(self, features: Float[Tensor, "M D"]) -> Float[Tensor, "M D"]:
        """Whiten rows."""
        return (features.double() - self.mean) / self.deviation


def whitening_of(features: Float[Tensor, "M D"]) -> Whitening:
    """Measure what whitens these rows."""
    rows = features.double()
    deviation = rows.std(dim=0, keepdim=True, correction=0) + LEAST
    return Whitening(mean=rows.mean(dim=0, keepdim=True), deviation=deviation)


@dataclass(frozen=True, kw_only=True)
class Ridge:
    """A solved problem: weights = directions diag(1 / (eigenvalues + l2)) coefficients, for every l2."""

    whitening: Whitening
    eigenvalues: Float[Tensor, " R"]
    directions: Float[Tensor, "D1 R"]
    coefficients: Float[Tensor, "R K"]

    def project(self, features: Float[Tensor, "M D"]) -> Float[Tensor, "M R"]:
        """Bring rows into the problem's own directions, once for all strengths."""
        return _with_bias(self.whitening(features)) @ self.directions

    def scores(self, projected: Float[Tensor, "M R"], l2: float) -> Float[Tensor, "M K"]:
        """How much each row looks like each class; with l2 = 0 the solution of the smallest norm."""
        damped = self.eigenvalues + l2
        most = self.eigenvalues.amax() * len(damped) * torch.finfo(torch.float64).eps
        scale = torch.where(damped > most, 1 / damped, 0)
        return (projected * scale) @ self.coefficients


def solve(features: Float[Tensor, "M D"], labels: Int[Tensor, " M"], classes: int) -> Ridge:
    """Decompose whichever is smaller: the features' products with each other, or the rows'."""
    whitening = whitening_of(features)
    rows = _with_bias(whitening(features))  # M D+1
    count, width = rows.shape
    if count < width:
        eigenvalues, vectors = torch.linalg.eigh(rows @ rows.T)
        directions, coefficients = rows.T @ vectors, _onto_targets(vectors, labels, classes)
    else:
        eigenvalues, directions = torch.linalg.eigh(rows.T @ rows)
        coefficients = directions.T @ _onto_targets(rows, labels, classes)
    return Ridge(
        whitening=whitening, eigenvalues=eigenvalues.clamp(min=0), directions=directions, coefficients=coefficients
    )


def _onto_targets(rows: Float[Tensor, "M D1"], labels: Int[Tensor, " M"], classes: int) -> Float[Tensor, "D1 K"]:
    """Multiply with the targets, which are never formed: twice the sum of each class's rows, less that of all."""
    sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels.long(), rows)
    return 2 * sums.T - rows.sum(dim=0)[:, None]


def _with_bias(rows: Float[Tensor, "M D"]) -> Float[Tensor, "M D1"]:
    return torch.nn.functional.pad(rows, (0, 1), value=BIAS)


def neighbor_votes(
    features: Float[Tensor, "M D"],
    labels: Int[Tensor, " M"],
    others: Float[Tensor, "Q D"],
    *,
    classes: int,
    neighbors: int,
    temperature: float,
) -> Float[Tensor, "Q K"]:
    """Votes for each class of the nearest rows by cosine, each weighing exp(cosine / temperature) (Wu et al., 2018)."""
    known = F.normalize(features.float(), dim=1)
    count = min(neighbors, len(known))
    votes = torch.zeros(len(others), classes, dtype=torch.float64)
    for some, part in zip(in_parts(others, len(known)), in_parts(votes, len(known)), strict=True):
        near, which = (F.normalize(some.float(), dim=1) @ known.T).topk(count, dim=1)
        part.scatter_add_(1, labels[which].long(), torch.exp((near.double() - 1) / temperature))
    return votes


def in_parts(rows: Tensor, each: int) -> Sequence[Tensor]:
    """Cut rows into parts, of which so many numbers each are not too many."""
    return rows.split(max(MOST // max(each, 1), 1))


@dataclass(frozen=True, kw_only=True)
class Logistic:
    """A linear classifier of whitened features."""

    whitening: Whitening
    weight: Float[Tensor, "D K"]
    bias: Float[Tensor, " K"]

    def scores(self, features: Float[Tensor, "M D"]) -> Float[Tensor, "M K"]:
        """Logits."""
        return self.whitening(features) @ self.weight + self.bias


def fit_logistic(features: Float[Tensor, "M D"], labels: Int[Tensor, " M"], *, classes: int, l2: float) -> Logistic:
    """Minimise the mean cross-entropy plus l2 / 2 times the squared weights (not the bias), by L-BFGS in float64."""
    whitening = whitening_of(features)
    rows, labels = whitening(features), labels.long()
    weights = torch.zeros(rows.shape[1] + 1, classes, dtype=torch.float64)  # the bias last
    optimizer = torch.optim.LBFGS(
        [weights],
        max_iter=STEPS,
        tolerance_grad=1e-6,
        tolerance_change=1e-10,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def loss() -> float:
        total = l2 / 2 * float(weights[:-1].square().sum())
        slope = torch.cat([l2 * weights[:-1], torch.zeros_like(weights[:1])])
        for some, own in zip(in_parts(rows, classes), in_parts(labels, classes), strict=True):
            scores = F.log_softmax(torch.addmm(weights[-1], some, weights[:-1]), dim=1)  # M K
            total -= float(scores.gather(1, own[:, None]).sum()) / len(rows)
            errors = scores.exp_().scatter_add_(1, own[:, None], -torch.ones_like(own[:, None], dtype=torch.float64))
            slope[:-1].addmm_(some.T, errors, alpha=1 / len(rows))
            slope[-1] += errors.sum(dim=0) / len(rows)
        weights.grad = slope
        return total

    optimizer.step(loss)
    return Logistic(whitening=whitening, weight=weights[:-1], bias=weights[-1])
