"""Least squares against the normal equations, solved directly, and against scikit-learn's ridge regression."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from sklearn.linear_model import Ridge as TheirRidge

from vitrail.ops.probes import solve, whitening_of

BIAS, LEAST = 100.0, 1e-5  # of the authors' evaluator, typed again


def rows_of(count: int, width: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(count, width)) * generator.uniform(0.01, 9, width) + generator.normal(size=width)
    labels = np.concatenate([np.arange(classes), generator.integers(0, classes, count - classes)])
    others = generator.normal(size=(13, width))
    return torch.from_numpy(features), torch.from_numpy(labels), torch.from_numpy(others)


@given(
    st.sampled_from([(7, 19), (29, 11), (12, 11), (11, 11), (3, 1), (5, 40)]),
    st.sampled_from([0.03, 1.0, 1024.0, 1e6]),
    st.integers(0, 5),
)
def test_scores_are_those_of_the_normal_equations(shape: tuple[int, int], l2: float, seed: int) -> None:
    count, width = shape
    features, labels, others = rows_of(count, width, 3, seed)
    ridge = solve(features, labels, 3)
    found = ridge.scores(ridge.project(others), l2)
    x, o = features.numpy(), others.numpy()
    deviation = x.std(axis=0) + LEAST
    white = np.hstack([(x - x.mean(axis=0)) / deviation, np.full((count, 1), BIAS)])
    probe = np.hstack([(o - x.mean(axis=0)) / deviation, np.full((13, 1), BIAS)])
    targets = np.where(labels.numpy()[:, None] == np.arange(3), 1.0, -1.0)
    weights = np.linalg.solve(white.T @ white + l2 * np.eye(width + 1), white.T @ targets)
    np.testing.assert_allclose(found.numpy(), probe @ weights, rtol=1e-6, atol=1e-7 * (1 + 1 / l2))


def test_scores_are_scikit_learns_where_the_constant_is_a_feature() -> None:
    features, labels, others = rows_of(31, 7, 4)
    ridge = solve(features, labels, 4)
    theirs = TheirRidge(alpha=64.0, fit_intercept=False)
    white = ridge.whitening(features)
    targets = torch.nn.functional.one_hot(labels, 4).double() * 2 - 1
    theirs.fit(np.pad(white.numpy(), ((0, 0), (0, 1)), constant_values=BIAS), targets.numpy())
    expected = theirs.predict(np.pad(ridge.whitening(others).numpy(), ((0, 0), (0, 1)), constant_values=BIAS))
    np.testing.assert_allclose(ridge.scores(ridge.project(others), 64.0).numpy(), expected, rtol=1e-8, atol=1e-10)


def test_no_regularization_gives_the_smallest_solution_also_where_there_are_many() -> None:
    features, labels, others = rows_of(6, 17, 3)
    ridge = solve(features, labels, 3)
    found = ridge.scores(ridge.project(others), 0.0)
    white = np.pad(ridge.whitening(features).numpy(), ((0, 0), (0, 1)), constant_values=BIAS)
    probe = np.pad(ridge.whitening(others).numpy(), ((0, 0), (0, 1)), constant_values=BIAS)
    targets = torch.nn.functional.one_hot(labels, 3).double().numpy() * 2 - 1
    np.testing.assert_allclose(found.numpy(), probe @ np.linalg.pinv(white) @ targets, rtol=1e-6, atol=1e-8)


def test_a_feature_that_never_changes_does_no_harm() -> None:
    features, labels, others = rows_of(20, 5, 3)
    features[:, 2] = others[:, 2] = 7.0
    ridge = solve(features, labels, 3)
    assert torch.isfinite(ridge.scores(ridge.project(others), 1.0)).all()
    assert whitening_of(features).deviation[0, 2] == pytest.approx(LEAST)


def test_everything_is_float64_whatever_comes_in() -> None:
    features, labels, others = rows_of(20, 5, 3)
    ridge = solve(features.float(), labels, 3)
    assert ridge.eigenvalues.dtype == ridge.project(others.float()).dtype == torch.float64
