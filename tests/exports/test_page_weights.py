"""The weights of a page: fewer bits where they cost nothing, and what that changes, measured."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from drawn_vit import vit

from vitrail.config import Preprocessing
from vitrail.data.open import open_images
from vitrail.errors import ConfigError
from vitrail.exports.page_weights import choose_weights
from vitrail.runtime.reporter import SILENT


def test_int8_has_more_bits_where_it_costs_most_and_says_what_it_changes() -> None:
    model = vit(Preprocessing(), classes=10)
    with torch.no_grad():
        model.get_parameter("blocks.1.mlp.expand.weight")[::2, 3] *= 100  # beside which the others of a group vanish
    vague = choose_weights(model, "int8", None, 100, SILENT)
    assert vague.wider == ()
    assert vague.same < vague.images == 512
    some = choose_weights(model, "int8", None, vague.loss / 2, SILENT)
    assert some.wider[0] == "blocks.1.mlp.expand.weight"
    assert some.loss <= vague.loss / 2
    assert some.farthest < vague.farthest
    assert "of 10 matrices, else in 12 bits; compared with the model on 512 images: the same first class on " in str(
        some
    )
    with pytest.raises(
        ConfigError, match=r"12 bits in every matrix still lose .* of -1 that are allowed\. Take precision"
    ):
        choose_weights(model, "int8", None, -1, SILENT)


def test_the_loss_is_of_accuracy_where_labels_are_of_the_models_classes() -> None:
    unlabeled = choose_weights(vit(Preprocessing()), "int8", None, 100, SILENT)
    assert unlabeled.accuracy is None
    assert unlabeled.loss == pytest.approx(100 * (1 - unlabeled.same / unlabeled.images))
    model = vit(Preprocessing(), classes=10)
    model.card = replace(model.card, class_names=None)
    test = open_images("sample")["test"]
    some = np.linspace(0, len(test) - 1, 32).round().astype(int)
    right = [int(model(model.preprocess(test.read(int(at)))).argmax()) == int(test.labels[at]) for at in some]
    found = choose_weights(model, "float16", None, None, SILENT)
    assert found.accuracy == pytest.approx((np.mean(right), np.mean(right)))
    assert found.loss == 0
