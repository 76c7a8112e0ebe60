"""Features that are probed while a model learns: the images drawn, and accuracies beside other code's."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluating import CPU, Pictures, guessing
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from vitrail.data.source import Subset
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import DataError
from vitrail.evaluation import features as module, fewshot
from vitrail.evaluation.features import draw_sets, probe_features
from vitrail.evaluation.shots import LOGISTIC_L2
from vitrail.models import Model
from vitrail.runtime.inference import InferenceOptions


def represent(model: Model, source: MemorySource) -> NDArray[np.float32]:
    levels = np.stack([MemorySource.read(source, index) for index in range(len(source))])
    with torch.inference_mode():
        return model.represent(torch.from_numpy(levels).permute(0, 3, 1, 2).float() / 127.5 - 1).numpy()


def test_the_numbers_are_those_of_other_code_and_nothing_is_kept(cache: Path) -> None:
    model, train, test = guessing(None), Pictures(290, seed=1).forget([3, 77]), Pictures(130, seed=2).forget([5])
    for source in (train, test):  # so that there is something to find
        for index, label in enumerate(source.labels):
            source._images[index, label : label + 2] //= 4
    sets = draw_sets((train, test))
    assert [len(source) for source in sets] == [288, 129]
    options = InferenceOptions(group=CPU, batch_size=7, bad_image_limit=0.0, cache=False)
    found = probe_features(sets, model.train(), options)
    assert model.training
    assert found["images"] == 129
    assert not list(cache.rglob("*.npz"))
    rows, answers = represent(model.eval(), train), train.labels
    others, wanted = represent(model, test), test.labels
    known, asked = answers >= 0, wanted >= 0
    few = [
        fewshot(rows[known], answers[known], others[asked], wanted[asked], classes=7, shots=10, seed=seed)
        for seed in (0, 1, 2)
    ]
    assert len({*few}) == 3
    assert found["fewshot_10"] == pytest.approx(np.mean(few))
    assert 1 / 7 < found["fewshot_10"] < 1
    table = rows[known].astype(np.float64)
    mean, deviation = table.mean(axis=0), table.std(axis=0) + 1e-5
    fitted = LogisticRegression(C=1 / (LOGISTIC_L2 * len(table)), max_iter=5000, tol=1e-8)
    fitted.fit((table - mean) / deviation, answers[known])
    expected = fitted.score((others[asked] - mean) / deviation, wanted[asked])
    assert found["linear"] == pytest.approx(expected, abs=1 / 129)


def test_of_many_images_as_many_of_every_class_are_drawn_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 90)
    monkeypatch.setattr(module, "MOST_TESTED", 20)
    train, test = Pictures(300, seed=1).forget(range(20)), Pictures(50, seed=2).forget([0])
    one, two = draw_sets((train, test)), draw_sets((train, test))
    for some, same in zip(one, two, strict=True):
        assert isinstance(some, Subset)
        assert isinstance(same, Subset)
        assert (some.labels >= 0).all()
        assert (np.diff(some.indices) > 0).all()
        np.testing.assert_array_equal(some.indices, same.indices)
    assert set(Counter(one[0].labels.tolist()).values()) == {90 // 7}
    assert len(one[1]) == 20
    monkeypatch.setattr(module, "MOST", 21)
    assert set(Counter(draw_sets((train, test))[0].labels.tolist()).values()) == {10}


def test_images_that_say_nothing_are_refused() -> None:
    train, test = Pictures(9), Pictures(4)
    with pytest.raises(DataError, match=r"the training images have no labels\. Expected a folder"):
        draw_sets((Pictures(9).forget(range(9)), test))
    with pytest.raises(DataError, match=r"one class alone: nothing to tell apart\. Give images of two"):
        draw_sets((Pictures(9, ("a",)), test))
    with pytest.raises(DataError, match=r"the images to test on have no labels\. Expected a folder"):
        draw_sets((train, Pictures(4).forget(range(4))))
