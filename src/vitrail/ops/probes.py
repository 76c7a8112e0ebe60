"""Classifiers of frozen features, beside the least squares of `ridge`: nearest neighbours, logistic regression."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.ops.ridge import Whitening, whitening_of

MOST = 2**24  # numbers that are formed at once
ROUNDS = 200  # of L-BFGS at most


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
        max_iter=ROUNDS,
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
