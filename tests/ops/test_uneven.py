"""Weights and shifts of uneven classes against scikit-learn, the papers' formulas, and cases by hand."""

import numpy as np
import pytest
from reference import uneven as slow
from sklearn.utils.class_weight import compute_class_weight

from vitrail.ops.uneven import BETA, imbalance, log_priors, weights_of

COUNTS = np.array([50, 5, 20, 1, 24])


def test_balanced_weights_are_scikit_learns() -> None:
    labels = np.repeat(np.arange(5), COUNTS)
    expected = compute_class_weight("balanced", classes=np.arange(5), y=labels)
    np.testing.assert_allclose(weights_of(COUNTS, "balanced"), expected, rtol=1e-12)
    assert (weights_of(COUNTS, "balanced") * COUNTS).sum() == pytest.approx(100)  # an image counts for one, on average
    np.testing.assert_allclose(weights_of(np.array([30, 10]), "balanced"), [2 / 3, 2.0])  # by hand


def test_effective_weights_are_the_papers() -> None:
    np.testing.assert_allclose(weights_of(COUNTS, "effective"), slow.effective(COUNTS.tolist(), BETA), rtol=1e-9)
    many = weights_of(np.array([10**9, 10**6]), "effective")  # more images than any that are not alike
    np.testing.assert_allclose(many, [1, 1])


def test_a_class_without_images_counts_for_nothing_and_changes_no_other() -> None:
    without = np.array([50, 0, 5])
    for kind in ("balanced", "effective"):
        found = weights_of(without, kind)
        assert found[1] == 0
        np.testing.assert_allclose(found[[0, 2]], weights_of(without[[0, 2]], kind))
    assert np.isfinite(log_priors(without)).all()


def test_numbers_are_taken_as_they_are() -> None:
    assert weights_of(COUNTS, (1.0, 0.0, 2.5, 3.0, 1.0)).tolist() == [1, 0, 2.5, 3, 1]


def test_shares_are_those_of_the_images() -> None:
    np.testing.assert_allclose(np.exp(log_priors(COUNTS)), COUNTS / 100)
    assert imbalance([50, 5, 20]) == 10
    assert imbalance([3, 0]) == float("inf")
    assert imbalance([]) == 1
