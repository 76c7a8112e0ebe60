"""Neighbours and logistic regression against scikit-learn's."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from vitrail.ops import probes
from vitrail.ops.probes import fit_logistic, neighbor_votes


def clouds(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(99).normal(size=(4, 6))
    labels = np.concatenate([np.arange(4), generator.integers(0, 4, count - 4)])
    return torch.from_numpy(centers[labels] + generator.normal(size=(count, 6))).float(), torch.from_numpy(labels)


@pytest.mark.parametrize("neighbors", [1, 5, 20])
@pytest.mark.parametrize("at_once", [7 * 83, 2**24])
def test_votes_are_scikit_learns(neighbors: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MOST", at_once)
    (features, labels), (others, _) = clouds(83), clouds(40, seed=1)
    votes = neighbor_votes(features, labels, others, classes=4, neighbors=neighbors, temperature=0.07)
    weights: Any = lambda distance: np.exp(-distance / 0.07)  # noqa: E731
    theirs = KNeighborsClassifier(neighbors, metric="cosine", weights=weights)
    expected = theirs.fit(features.numpy(), labels.numpy()).predict_proba(others.numpy())
    np.testing.assert_allclose((votes / votes.sum(dim=1, keepdim=True)).numpy(), expected, atol=2e-4)
    assert (votes.argmax(dim=1).numpy() == expected.argmax(axis=1)).all()


def test_all_vote_where_there_are_fewer_than_asked_for() -> None:
    features, labels = clouds(9)
    votes = neighbor_votes(features, labels, features[:2], classes=4, neighbors=20, temperature=0.07)
    cosines = torch.nn.functional.normalize(features, dim=1) @ torch.nn.functional.normalize(features[0], dim=0)
    expected = torch.zeros(4, dtype=torch.float64).index_add_(0, labels, torch.exp((cosines.double() - 1) / 0.07))
    torch.testing.assert_close(votes[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("l2", "at_once"), [(0.3, 2**24), (1e-3, 2**24), (1e-3, 4 * 11)])
def test_logistic_regression_is_scikit_learns(l2: float, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MOST", at_once)
    (features, labels), (others, _) = clouds(150), clouds(40, seed=1)
    fitted = fit_logistic(features, labels, classes=4, l2=l2)
    white = fitted.whitening(features).numpy()
    theirs = LogisticRegression(C=1 / (l2 * len(features)), tol=1e-8, max_iter=2000).fit(white, labels.numpy())
    expected = theirs.predict_proba(fitted.whitening(others).numpy())
    np.testing.assert_allclose(fitted.scores(others).softmax(dim=1).numpy(), expected, atol=2e-4)


def test_logistic_regression_works_where_gradients_are_off() -> None:
    features, labels = clouds(30)
    with torch.inference_mode():
        fitted = fit_logistic(features, labels, classes=4, l2=0.1)
    again = fit_logistic(features, labels, classes=4, l2=0.1)
    torch.testing.assert_close(fitted.weight.clone(), again.weight)
