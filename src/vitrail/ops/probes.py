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
    rows, labels = whitening(features), labels.long()
    parameters = torch.zeros(rows.shape[1] + 1, classes, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [parameters],
        max_iter=ROUNDS,
        tolerance_grad=1e-6,
        tolerance_change=1e-10,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        logits = torch.addmm(parameters[-1], rows, parameters[:-1])
        value = F.cross_entropy(logits, labels) + l2 / 2 * parameters[:-1].square().sum()
        value.backward()
        return value

    with torch.inference_mode(mode=False), torch.enable_grad():
        optimiser.step(loss)  # pyright: ignore[reportArgumentType]
    found = parameters.detach()
    return Logistic(whitening=whitening, weight=found[:-1], bias=found[-1])
