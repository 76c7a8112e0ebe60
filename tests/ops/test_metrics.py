"""Metrics against scikit-learn's, against sums written out, and against what is known by hand."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as theirs

from vitrail.ops import metrics

RANDOM = np.random.default_rng(3)
CLASSES, IMAGES = 7, 211


def guesses(images: int = IMAGES, classes: int = CLASSES) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(11)
    logits, labels = random.normal(size=(images, classes)), random.integers(0, classes, images)
    logits[np.arange(images), labels] += 1
    return torch.from_numpy(logits), torch.from_numpy(labels)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_share_within_the_first_is_scikit_learns(most: int) -> None:
    logits, labels = guesses()
    found = metrics.within(metrics.ranks_of(logits, labels), most).double().mean().item()
    expected = theirs.top_k_accuracy_score(labels.numpy(), logits.numpy(), k=most, labels=range(CLASSES))
    assert found == pytest.approx(expected, abs=1e-12)
    assert 0.3 < found < 0.97


def test_of_equals_the_first_class_comes_first_in_ranks_and_in_answers() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0]]).repeat(5, 1)
    assert metrics.ranks_of(logits, torch.arange(5)).tolist() == [3, 0, 1, 4, 2]
    assert metrics.first_classes(logits[:1], 4).tolist() == [[1, 2, 4, 0]]
    wide = torch.zeros(2, 1021)  # where a sort that is not stable shows
    assert metrics.first_classes(wide, 5).tolist() == [[0, 1, 2, 3, 4]] * 2


def test_the_answers_place_is_the_rank_for_any_logits() -> None:
    logits = torch.from_numpy(np.random.default_rng(5).integers(0, 4, (53, CLASSES))).double()  # many equals
    order = metrics.first_classes(logits, CLASSES)
    for place in range(CLASSES):
        assert metrics.ranks_of(logits, order[:, place]).tolist() == [place] * 53


def test_what_has_no_label_or_no_number_has_no_rank() -> None:
    nan, infinite = math.nan, math.inf
    logits = torch.tensor([[9.0, nan, 0.0], [9.0, 1.0, 0.0], [-infinite, infinite, 0.0]])
    assert metrics.ranks_of(logits, torch.tensor([0, -1, 1])).tolist() == [-1, -1, 0]
    assert metrics.first_classes(logits, 2).tolist() == [[-1, -1], [0, 1], [1, 2]]
    assert metrics.within(torch.tensor([-1, 0, 4, 5]), 5).tolist() == [False, True, True, False]


def test_infinite_logits_have_the_probabilities_of_the_limit() -> None:
    infinite = math.inf
    logits = torch.tensor([[infinite, 0.0, infinite, -infinite], [-infinite] * 4, [math.nan, 0.0, 0.0, 0.0]])
    found = metrics.bounded(logits).softmax(dim=1)
    assert found[:2].tolist() == [[0.5, 0.0, 0.5, 0.0], [0.25] * 4]
    assert found[2].isnan().all()


def test_the_confusion_matrix_is_scikit_learns() -> None:
    labels, answers = RANDOM.integers(0, 5, (2, IMAGES))
    answers = np.where(answers == 3, 1, answers)  # a class that is never named
    found = metrics.confusion_matrix(labels, answers, CLASSES)
    assert (found == theirs.confusion_matrix(labels, answers, labels=range(CLASSES))).all()
    lacking = metrics.confusion_matrix(np.array([0, -1, 2]), np.array([1, 1, -1]), 3)
    assert lacking.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_recall_precision_and_f1_are_scikit_learns_and_open_where_there_is_nothing() -> None:
    labels, answers = RANDOM.integers(0, 5, (2, IMAGES))
    answers = np.where(answers == 3, 1, answers)
    counts = metrics.class_counts(np.append(labels, -1), np.append(answers, 2), CLASSES)  # one without a label
    precision, recall, f1, images = theirs.precision_recall_fscore_support(
        labels,
        answers,
        labels=range(CLASSES),
        zero_division=np.nan,  # pyright: ignore[reportArgumentType]
    )
    for found, expected in ((counts.precision, precision), (counts.recall, recall), (counts.f1, f1)):
        np.testing.assert_allclose(found, expected, equal_nan=True)
    assert counts.images.tolist() == np.asarray(images).tolist()
    assert np.isnan(counts.recall[5:]).all()
    assert counts.f1[3] == 0


def test_an_answer_of_nothing_is_wrong_and_names_no_class() -> None:
    counts = metrics.class_counts(np.array([0, 0, 1]), np.array([0, -1, -1]), 2)
    assert counts.recall.tolist() == [0.5, 0.0]
    assert counts.answered.tolist() == [1, 0]


def test_calibration_is_a_sum_over_bins_written_out() -> None:
    confidences = RANDOM.uniform(0.1, 1, 307)
    right = RANDOM.uniform(size=307) < confidences**2
    expected = 0.0
    for number in range(15):
        low, high = number / 15, (number + 1) / 15
        inside = [index for index, sure in enumerate(confidences) if low < sure <= high]
        if inside:
            gap = abs(float(np.mean(confidences[inside])) - float(np.mean(right[inside])))
            expected += len(inside) / 307 * gap
    found = metrics.calibration(confidences, right)
    assert found.error == pytest.approx(expected, abs=1e-12)
    assert found.error > 0.05
    assert len(found.bins) == 15
    assert sum(part.images for part in found.bins) == 307
    assert found.bins[0].confidence is None


def test_confidence_on_an_edge_is_of_the_bin_below_it_and_none_of_the_first() -> None:
    found = metrics.calibration(np.array([0.0, 0.5, 1.0, 0.51]), np.array([False, True, True, False]), bins=2)
    assert [part.images for part in found.bins] == [2, 2]
    assert [part.accuracy for part in found.bins] == [0.5, 0.5]
    assert metrics.calibration(np.array([1.0, 1.0]), np.array([True, True])).error == 0


def test_the_interval_of_a_share_is_where_wilsons_equation_holds() -> None:
    for right, images in ((0, 13), (3, 17), (50, 101), (997, 997)):
        low, high = metrics.wilson(right, images)
        for end in (low, high):  # the ends are the shares that are 1.96 deviations, of their own, away
            away = abs(right / images - end) / math.sqrt(max(end * (1 - end), 1e-300) / images)
            assert away == pytest.approx(1.959964, abs=1e-5) or end in (0.0, 1.0)
        assert 0 <= low <= right / images <= high <= 1
    assert metrics.wilson(0, 0) == (0, 1)
    assert metrics.wilson(8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-5)  # as published tables have it


def brute(one: int, other: int) -> float:
    """The chance of a split at least as uneven, side by side."""
    tosses = one + other
    chances = [math.comb(tosses, heads) * 0.5**tosses for heads in range(tosses + 1)]
    return min(1.0, sum(chance for chance in chances if chance <= chances[one] * (1 + 1e-9)))


@pytest.mark.parametrize(("one", "other"), [(0, 0), (0, 1), (1, 9), (5, 5), (13, 29), (40, 17), (0, 60), (211, 300)])
def test_mcnemars_p_is_the_binomial_sum(one: int, other: int) -> None:
    assert metrics.mcnemar(one, other) == pytest.approx(brute(one, other), rel=1e-9)
    assert metrics.mcnemar(one, other) == metrics.mcnemar(other, one)


def test_mcnemars_p_of_many_images_neither_overflows_nor_loses_digits() -> None:
    assert metrics.mcnemar(10_000, 10_400) == pytest.approx(math.erfc(399 / math.sqrt(20_400) / math.sqrt(2)), rel=1e-3)
    assert metrics.mcnemar(20_000, 20_000) == 1
    assert metrics.mcnemar(0, 40_000) == 0


def test_two_models_are_compared_image_by_image() -> None:
    first = np.array([True] * 50 + [True] * 7 + [False] * 20 + [False] * 23)
    second = np.array([True] * 50 + [False] * 7 + [True] * 20 + [False] * 23)
    found = metrics.compare(first, second)
    assert (found.both, found.only_first, found.only_second, found.neither) == (50, 7, 20, 23)
    assert found.difference == pytest.approx(second.mean() - first.mean())
    assert found.p == metrics.mcnemar(7, 20)
    # Half an image more in each cell: the plain paired interval of twice the images and one of each kind.
    gaps = np.repeat(second.astype(float) - first, 2)
    gaps = np.concatenate([gaps, [1, -1, 0, 0]])
    half = 1.959963984540054 * gaps.std() / math.sqrt(102)
    assert found.interval == pytest.approx((gaps.mean() - half, gaps.mean() + half))
    swapped = metrics.compare(second, first)
    assert swapped.difference == -found.difference
    assert swapped.interval == pytest.approx((-found.interval[1], -found.interval[0]))


def test_the_paired_interval_covers_what_it_says() -> None:
    random, covered = np.random.default_rng(0), 0
    for _ in range(400):
        both = random.uniform(size=83)
        first, second = both < 0.6, (both < 0.5) | (random.uniform(size=83) < 0.25)
        low, high = metrics.compare(first, second).interval
        covered += low <= (0.5 + 0.5 * 0.25) - 0.6 <= high
    assert 0.92 < covered / 400 < 0.985


def test_models_that_agree_on_everything_are_not_told_apart() -> None:
    same = np.array([True, False, True])
    found = metrics.compare(same, same)
    assert (found.difference, found.p) == (0, 1)
    assert found.interval[0] < 0 < found.interval[1]


def test_the_interval_of_a_mean_is_scipys() -> None:
    for count in (2, 3, 4, 12, 64, 1000):
        values = np.random.default_rng(count).normal(size=count)
        expected = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
        np.testing.assert_allclose(metrics.mean_interval(values), expected, rtol=3e-3 if count == 4 else 3e-4)
    assert np.isnan(metrics.mean_interval(np.array([1.0]))).all()
