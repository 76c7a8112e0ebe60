"""Answers of a model against sorting and a softmax by hand."""

import numpy as np
import pytest
import torch
from evaluating import Pictures, guessing, logits_of, passing
from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score

from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.answers import answers, score
from vitrail.evaluation.cached import cached_outputs


def test_answers_are_the_first_five_classes_with_their_probabilities() -> None:
    model, source = guessing(), Pictures(23)
    found = answers(model, source, passing())
    logits = logits_of(model, source)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    order = np.argsort(-logits, axis=1, kind="stable")
    assert (found.classes == order[:, :5]).all()
    np.testing.assert_allclose(found.probabilities, np.take_along_axis(shares, order[:, :5], axis=1), atol=1e-5)
    np.testing.assert_allclose(found.true_probability, shares[np.arange(23), source.labels], atol=1e-5)
    assert found.ranks.tolist() == [order[row].tolist().index(source.labels[row]) for row in range(23)]
    assert found.losses.mean() == pytest.approx(log_loss(source.labels, shares, labels=range(7)), rel=1e-4)


def test_the_score_is_scikit_learns() -> None:
    model, source = guessing(), Pictures(23)
    logits, scored = logits_of(model, source), score(answers(model, source, passing()))
    assert scored.correct.mean() == pytest.approx(accuracy_score(source.labels, logits.argmax(axis=1)))
    assert scored.top5 is not None
    assert scored.top5.mean() == pytest.approx(top_k_accuracy_score(source.labels, logits, k=5, labels=range(7)))


def test_fewer_classes_than_five_are_all_given() -> None:
    found = answers(guessing(3), Pictures(5, tuple("abc")), passing())
    assert np.sort(found.classes, axis=1).tolist() == [[0, 1, 2]] * 5
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, atol=1e-6)
    assert score(found).top5 is None
    assert score(answers(guessing(6), Pictures(5, tuple("abcdef")), passing())).top5 is not None


def test_answers_are_kept() -> None:
    model, source = guessing(), Pictures(23)
    answers(model, source, passing())
    assert answers(model, source, passing()).reused == 23


def test_images_without_a_label_are_answered_and_do_not_count() -> None:
    found = answers(guessing(), Pictures(11).forget([2, 7]), passing())
    assert np.flatnonzero(~score(found).counted).tolist() == [2, 7]
    assert np.flatnonzero(np.isnan(found.losses)).tolist() == np.flatnonzero(found.ranks < 0).tolist() == [2, 7]
    assert found.has_answer.all()


def test_labels_that_are_not_the_models_classes_are_not_taken_for_them() -> None:
    model, source = guessing(), Pictures(11, tuple("abcdefghij"))
    with pytest.raises(DataError, match="the model has 7 classes, the data 10"):
        answers(model, source, passing())
    found = answers(model, source, passing(), labeled=False)
    assert (found.ranks == -1).all()
    assert np.isnan(found.true_probability).all()
    assert (found.labels == source.labels).all()
    assert (found.answer == logits_of(model, source).argmax(axis=1)).all()


def test_no_number_is_no_answer_and_never_right() -> None:
    model, source = guessing(), Pictures(11)
    with torch.no_grad():
        next(model.head.parameters())[2] = torch.nan
    found = answers(model, source, passing())
    assert not found.has_answer.any()
    assert (found.classes == -1).all()
    scored = score(found)
    assert scored.top5 is not None
    assert not scored.correct.any()
    assert not scored.top5.any()
    assert scored.counted.all()


def test_a_model_without_classes_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match=r"no classifier.*vitrail finetune.*vitrail fewshot"):
        answers(guessing(None), Pictures(3), passing())


def test_answers_go_through_rows() -> None:
    model, source = guessing(), Pictures(3)
    answers(model, source, passing())
    assert cached_outputs(model, source, "predictions", lambda *_: pytest.fail("is kept"), passing()).reused == 3
