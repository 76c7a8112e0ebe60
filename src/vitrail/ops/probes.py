"""Classifiers of frozen features, beside the least squares of `ridge`: nearest neighbours, logistic regression."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.ops.ridge import Whitening, whitening_of

ROWS = 2048  # test rows whose similarities are formed at once
ROUNDS = 200  # of L-BFGS at most


def neighbour_votes(
    features: Float[Tensor, "M D"],
    labels: Int[Tensor, " M"],
    others: Float[Tensor, "Q D"],
    *,
    classes: int,
    neighbours: int,
    temperature: float,
) -> Float[Tensor, "Q K"]:
    """Votes for each class of the nearest rows by cosine, each weighing exp(cosine / temperature) (Wu et al., 2018)."""
    known = F.normalize(features.float(), dim=1)
    count = min(neighbours, len(known))
    votes = torch.zeros(len(others), classes, dtype=torch.float64)
    for start in range(0, len(others), ROWS):
        some = F.normalize(others[start : start + ROWS].float(), dim=1)
        near, which = (some @ known.T).topk(count, dim=1)
        weights = torch.exp((near.double() - 1) / temperature)
        votes[start : start + ROWS].scatter_add_(1, labels[which].long(), weights)
    return votes


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
    rows = whitening(features)
    targets = F.one_hot(labels.long(), classes).double()  # M K
    weights = torch.zeros(rows.shape[1] + 1, classes, dtype=torch.float64)  # the bias last
    optimiser = torch.optim.LBFGS(
        [weights],
        max_iter=ROUNDS,
        tolerance_grad=1e-6,
        tolerance_change=1e-10,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def loss() -> float:
        scores = F.log_softmax(torch.addmm(weights[-1], rows, weights[:-1]), dim=1)
        errors = (scores.exp() - targets) / len(rows)  # M K
        weights.grad = torch.cat([rows.T @ errors + l2 * weights[:-1], errors.sum(dim=0, keepdim=True)])
        return float(l2 / 2 * weights[:-1].square().sum() - (targets * scores).sum() / len(rows))

    optimiser.step(loss)
    return Logistic(whitening=whitening, weight=weights[:-1], bias=weights[-1])
