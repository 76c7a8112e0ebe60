"""What is asked of labelled images: read from words, kept in documents, unknown words answered."""

import pytest

from vitrail.config import decode, encode
from vitrail.config.given import read_fields
from vitrail.config.recipe import Training
from vitrail.config.recipes import adjust, recipe
from vitrail.config.task import Classify, ImageTask, MultiLabel, Ordinal, Regression
from vitrail.errors import ConfigError


def trained(*settings: str) -> Training:
    ours, _ = read_fields(None, None, settings, {})
    return adjust(recipe("finetune/imagenet").training, ours)


def test_a_task_is_read_from_its_word_and_from_other_libraries_words() -> None:
    assert trained().task == Classify()
    assert trained("task=multilabel").task == trained("problem_type=multi_label_classification").task == MultiLabel()
    assert trained("task=regression", "delta=2", "columns=age,height").task == Regression(
        delta=2.0, columns=("age", "height")
    )
    assert trained("task=ordinal", "order=low,high").task == Ordinal(order=("low", "high"))


def test_an_unknown_task_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="task must be one of classify, multilabel, regression, ordinal, segment"):
        trained("task=caption")


def test_a_task_goes_to_a_document_and_back_and_older_documents_classify() -> None:
    training = trained("task=multilabel", "columns=cat,dog")
    document = encode(training)
    assert decode(document["task"], ImageTask, "task") == training.task
    assert decode(document, Training, "training") == training
    del document["task"]
    assert decode(document, Training, "training").task == Classify()


def test_the_loss_is_the_tasks_own_and_what_is_of_one_class_is_refused_beside_another_task() -> None:
    assert trained("task=multilabel").loss == "sigmoid"
    assert trained("task=regression").loss == "squared"
    assert trained("task=regression", "loss=huber").loss == "huber"
    for settings, message in (
        (("task=multilabel", "loss=huber"), "loss=huber is not of task=multilabel. Set loss=sigmoid"),
        (("loss=squared",), "loss=squared is not of task=classify. Set loss=softmax or sigmoid"),
        (("task=regression", "label_smoothing=0.1"), "label_smoothing is of one class .* Set label_smoothing=0.0"),
        (("task=multilabel", "logit_adjustment=1"), "Set logit_adjustment=0.0"),
        (("task=ordinal", "margin=0.5"), "Set margin=none"),
        (("task=multilabel", "objective=mae"), "multilabel is of labels, and the objective learns without"),
    ):
        with pytest.raises(ConfigError, match=message):
            trained(*settings)
