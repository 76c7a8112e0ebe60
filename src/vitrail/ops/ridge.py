"""Regularised least squares onto targets of -1 and 1, in closed form (Section 4.1), in float64.

The constants are those of the authors' evaluator: features are whitened one by one, and a constant feature, so large
that it is hardly regularised, stands for the bias. One eigendecomposition serves every strength of regularisation.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

BIAS = 100.0  # the constant feature
LEAST = 1e-5  # added to every deviation


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
        whitening=whitening,
        eigenvalues=eigenvalues.clamp(min=0),
        directions=directions,
        coefficients=coefficients,
    )


def _onto_targets(rows: Float[Tensor, "M D1"], labels: Int[Tensor, " M"], classes: int) -> Float[Tensor, "D1 K"]:
    """Multiply with the targets, which are never formed: twice the sum of each class's rows, less that of all."""
    sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels.long(), rows)
    return 2 * sums.T - rows.sum(dim=0)[:, None]


def _with_bias(rows: Float[Tensor, "M D"]) -> Float[Tensor, "M D1"]:
    return torch.nn.functional.pad(rows, (0, 1), value=BIAS)
