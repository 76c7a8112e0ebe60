"""Several labels, numbers and ordered classes: metrics against scikit-learn and scipy, losses against formulas."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as theirs

from vitrail.config.outputs import LabelOutputs, NumberOutputs, OrderedOutputs
from vitrail.ops.label_metrics import average_precision, best_threshold
from vitrail.ops.number_metrics import weighted_kappa
from vitrail.ops.task_losses import label_loss, median_class, number_loss, order_loss
from vitrail.ops.task_metrics import answers_of, choose_thresholds, measure

NAMES = ("cat", "dog", "bird", "fish", "ant")


@pytest.mark.parametrize("steps", [3, 1000])  # few steps: many scores that are equal
def test_mean_average_precision_is_scikit_learns_with_equal_scores_too(steps: int) -> None:
    rng = np.random.default_rng(steps)
    truths = rng.random((61, 5)) < np.array([0.5, 0.2, 0.9, 0.05, 0.3])
    truths[0] = True
    raw = torch.tensor(np.round(rng.normal(size=(61, 5)) * steps) / steps + truths, dtype=torch.float32)
    outputs = LabelOutputs(thresholds=(0.5, 0.6, 0.7, 0.4, 0.5))
    found, rows = measure(outputs, raw, torch.from_numpy(truths).float(), NAMES)
    shares = raw.double().sigmoid().numpy()
    assert found["mean_average_precision"] == pytest.approx(
        theirs.average_precision_score(truths, shares, average="macro")
    )
    said = shares >= np.array(outputs.thresholds)
    assert found["macro_f1"] == pytest.approx(theirs.f1_score(truths, said, average="macro"))
    assert found["exact_match"] == pytest.approx(theirs.accuracy_score(truths, said))
    for number, row in enumerate(rows):
        one = theirs.average_precision_score(truths[:, number], shares[:, number])
        assert row["average_precision"] == pytest.approx(one)
        assert row["images"] == truths[:, number].sum()


def test_a_label_that_no_image_has_is_left_out_of_the_mean() -> None:
    truths = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    found, rows = measure(
        LabelOutputs(thresholds=(0.5, 0.5)), torch.tensor([[2.0, 1.0], [3.0, 0.0]]), truths, ("a", "b")
    )
    assert found["mean_average_precision"] == 0.5
    assert rows[1]["average_precision"] is None
    assert np.isnan(average_precision(np.zeros(3, bool), np.arange(3.0)))


@pytest.mark.parametrize("seed", range(5))
def test_a_threshold_has_the_highest_f1_of_all_that_there_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truths, scores = rng.random(37) < 0.4, np.round(rng.random(37), 1 + seed % 2)
    chosen = best_threshold(truths, scores)
    every = [theirs.f1_score(truths, scores >= each) for each in np.unique(scores)]
    assert theirs.f1_score(truths, scores >= chosen) == pytest.approx(max(every))
    assert best_threshold(np.zeros(3, bool), scores[:3]) == 0.5
    raw, targets = torch.logit(torch.from_numpy(scores), eps=1e-6)[:, None], torch.from_numpy(truths)[:, None].float()
    assert choose_thresholds(raw.float(), targets)[0] == pytest.approx(chosen, abs=1e-5)


def test_the_metrics_of_numbers_are_scikit_learns_and_scipys() -> None:
    rng = np.random.default_rng(0)
    truths = rng.normal(size=(41, 2)) * [3, 100] + [7, -1000]
    truths[:5, 0] = 2.0  # equal ranks
    guessed = truths + rng.normal(size=(41, 2)) * [2, 50]
    mean, deviation = truths.mean(axis=0), truths.std(axis=0)
    outputs = NumberOutputs(mean=tuple(mean.tolist()), deviation=tuple(deviation.tolist()))
    raw, targets = torch.from_numpy((guessed - mean) / deviation), torch.from_numpy(truths)
    np.testing.assert_allclose(answers_of(outputs, raw).numpy(), guessed, rtol=1e-5)
    found, rows = measure(outputs, raw, targets, ("age", "height"))
    exact = answers_of(outputs, raw).double().numpy()
    assert found["mean_absolute_error"] == pytest.approx(theirs.mean_absolute_error(truths, exact))
    assert found["r2"] == pytest.approx(theirs.r2_score(truths, exact))
    roots = np.sqrt(theirs.mean_squared_error(truths, exact, multioutput="raw_values"))
    assert found["root_mean_squared_error"] == pytest.approx(roots.mean())
    for number, row in enumerate(rows):
        pearson = stats.pearsonr(truths[:, number], exact[:, number])[0]
        spearman = stats.spearmanr(truths[:, number], exact[:, number])[0]
        assert row["correlation"] == pytest.approx(pearson)
        assert row["rank_correlation"] == pytest.approx(spearman)


def test_a_number_that_is_always_the_same_has_no_r2_and_leaves_the_rest_as_it_is() -> None:
    targets = torch.tensor([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    outputs = NumberOutputs(mean=(0.0, 0.0), deviation=(1.0, 1.0))
    found, rows = measure(outputs, targets + 0.5, targets, ("a", "b"))
    assert rows[1]["r2"] is None
    assert rows[1]["correlation"] is None
    assert found["r2"] == rows[0]["r2"]


def test_the_kappa_of_ordered_classes_is_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    labels, answers = rng.integers(0, 4, 53), rng.integers(0, 4, 53)
    wanted = theirs.cohen_kappa_score(labels, answers, weights="quadratic", labels=range(4))
    assert weighted_kappa(theirs.confusion_matrix(labels, answers, labels=range(4))) == pytest.approx(wanted)
    raw = torch.eye(4)[answers] * 20
    found, _ = measure(OrderedOutputs(size=4), raw, torch.eye(4)[labels], "abcd")
    assert found["quadratic_kappa"] == pytest.approx(wanted)
    assert found["mean_absolute_error"] == pytest.approx(np.abs(labels - answers).mean())
    assert found["within_one"] == pytest.approx((np.abs(labels - answers) < 2).mean())
    assert found["accuracy"] == pytest.approx((labels == answers).mean())


def test_the_losses_are_those_of_formulas_in_double_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 4, generator=generator) * 3
    hot = (torch.rand(7, 4, generator=generator) < 0.4).float()
    shares = logits.double().sigmoid()
    plain = -(hot * shares.log() + (1 - hot) * (1 - shares).log())
    torch.testing.assert_close(label_loss(logits, hot).double(), plain.mean(dim=1), rtol=1e-5, atol=1e-6)
    unsure = torch.where(hot > 0, 1 - shares, shares) ** 2
    torch.testing.assert_close(
        label_loss(logits, hot, 2.0).double(), (unsure * plain).mean(dim=1), rtol=1e-4, atol=1e-6
    )
    wanted = torch.randn(7, 4, generator=generator)
    off = (logits - wanted).abs().double()
    torch.testing.assert_close(
        number_loss(logits, wanted, "squared", 1.0).double(), (off**2 / 2).mean(dim=1), rtol=1e-5, atol=0
    )
    huber = torch.where(off < 1.5, off**2 / 2, 1.5 * (off - 0.75)).mean(dim=1)
    torch.testing.assert_close(number_loss(logits, wanted, "huber", 1.5).double(), huber, rtol=1e-5, atol=0)
    labels = torch.tensor([0, 3, 1, 2, 3, 0, 1])
    below = logits.double().softmax(dim=1).cumsum(dim=1)[:, :3]
    at_most = (labels[:, None] <= torch.arange(3)).double()
    ordered = -(at_most * below.log() + (1 - at_most) * (1 - below).log()).sum(dim=1)
    torch.testing.assert_close(order_loss(logits, torch.eye(4)[labels]).double(), ordered, rtol=1e-4, atol=1e-5)
    assert order_loss(torch.tensor([[200.0, 0.0, -200.0]]), torch.eye(3)[2:]).isfinite().all()
    assert not order_loss(logits, torch.zeros(7, 4)).any()


def test_the_loss_of_ordered_classes_is_larger_the_farther_off_and_its_answer_is_the_median() -> None:
    logits = torch.tensor([[4.0, 0.0, 0.0, 0.0]]).expand(4, 4)
    assert order_loss(logits, torch.eye(4)).diff().min() > 0
    assert median_class(torch.tensor([[0.4, 0.2, 0.1, 0.3], [0.5, 0.0, 0.0, 0.5]])).tolist() == [1, 0]
