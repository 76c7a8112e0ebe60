"""Accuracy against a loop over images, one at a time; what counts as right, and what is counted at all."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, recall_score
from torch import Tensor

from vitrail.data.decode import ImageError, Pixels
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import DataError
from vitrail.models import Model, create
from vitrail.runtime.inference import InferenceOptions
from vitrail.runtime.machine import Group
from vitrail.train.measuring import count_correct, measure_accuracy

NAMES = tuple("abcdefg")
CPU = Group(device=torch.device("cpu"))


class Partly(MemorySource):
    """Some images have no label, and some cannot be decoded."""

    spoilt: frozenset[int] = frozenset()

    def forget(self, *samples: int) -> "Partly":
        self._labels = np.where(np.isin(np.arange(len(self)), samples), -1, self._labels)
        return self

    def read(self, index: int) -> Pixels:
        if index in self.spoilt:
            raise ImageError("spoilt")
        return super().read(index)


def images_of(number: int, classes: int = 7) -> Partly:
    generator = np.random.default_rng(4)
    pixels = generator.integers(0, 256, (number, 8, 12, 3), dtype=np.uint8)
    return Partly(pixels, generator.integers(0, classes, number), NAMES[:classes])


def small(classes: int = 7, **changes: Any) -> Model:
    """A classifier that guesses: every weight random, the head large enough for a loss worth comparing."""
    fields: dict[str, Any] = {"depth": 2, "width": 24, "heads": 3, "mlp_width": 40, **changes}
    model = create("ViT-Ti/4", image_size=(8, 12), classes=classes, **fields)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.normal_()
    return model


def one_by_one(model: Model, source: MemorySource, samples: list[int]) -> dict[str, float]:
    """The same, image by image, in plain Python."""
    losses, right, five, true, said = [], 0, 0, [], []
    for sample in samples:
        pixels = MemorySource.read(source, sample).astype(np.float32)
        image = torch.from_numpy((pixels - 127.5) / 127.5).permute(2, 0, 1)[None]
        logits = model.eval()(image)[0].detach().double().tolist()
        own = int(source.labels[sample])
        losses.append(float(np.logaddexp.reduce(logits)) - logits[own])
        places = sorted(range(len(logits)), key=lambda label: -logits[label])
        true, said = [*true, own], [*said, places[0]]
        right, five = right + (places[0] == own), five + (own in places[:5])
    found = {"accuracy": right / len(samples), "top5": five / len(samples), "loss": float(np.mean(losses))}
    found |= {"balanced_accuracy": recall_score(true, said, average="macro", labels=sorted({*true}))}
    found |= {"macro_f1": f1_score(true, said, average="macro")}
    return found | {"images": len(samples), "left_out": 0}


def assert_equal(found: Mapping[str, float], expected: Mapping[str, float]) -> None:
    assert dict(found) == pytest.approx(dict(expected), rel=1e-5)


@pytest.mark.parametrize("batch", [1, 4, 23, 64])
def test_accuracy_is_that_of_a_loop_over_images_whatever_the_batch(batch: int) -> None:
    model, source = small(), images_of(23)
    found = measure_accuracy(model, source, InferenceOptions(group=CPU, batch_size=batch))
    expected = one_by_one(model, source, list(range(23)))
    assert 0 < expected["accuracy"] < expected["top5"] < 1
    assert_equal(found, expected)


def test_images_without_a_label_are_not_counted() -> None:
    model, source = small(), images_of(23).forget(0, 5, 6, 22)
    known = [sample for sample in range(23) if source.labels[sample] >= 0]
    assert len(known) == 19
    assert_equal(
        measure_accuracy(model, source, InferenceOptions(group=CPU, batch_size=4)), one_by_one(model, source, known)
    )


def test_images_that_cannot_be_read_are_left_out_and_counted_up_to_a_limit() -> None:
    model, source = small(), images_of(23)
    source.spoilt = frozenset([0, 1, 2, 3, 9])  # the whole first batch among them
    expected = one_by_one(model, source, [sample for sample in range(23) if sample not in source.spoilt])
    found = measure_accuracy(model, source, InferenceOptions(group=CPU, batch_size=4, bad_image_limit=0.25))
    assert_equal(found, expected | {"left_out": 5})
    with pytest.raises(DataError, match=r"of 23 images cannot be read, over the limit of 10\.0%"):
        measure_accuracy(model, source, InferenceOptions(group=CPU, batch_size=4, bad_image_limit=0.1))


def test_a_set_without_any_label_has_an_accuracy_of_nothing() -> None:
    found = measure_accuracy(small(), images_of(3).forget(0, 1, 2), InferenceOptions(group=CPU))
    nothing = dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1", "loss", "images", "left_out", "top5"), 0)
    assert found == nothing


def test_few_classes_have_no_top_five() -> None:
    assert "top5" not in measure_accuracy(small(5), images_of(6, 5), InferenceOptions(group=CPU))
    assert "top5" in measure_accuracy(small(6), images_of(6, 6), InferenceOptions(group=CPU))


def test_a_model_that_trains_is_measured_without_its_dropout_and_trains_on() -> None:
    model, source = small(dropout=0.5), images_of(11)
    expected = one_by_one(model, source, list(range(11)))
    model.train()
    assert_equal(measure_accuracy(model, source, InferenceOptions(group=CPU, batch_size=4)), expected)
    assert model.training
    model.eval()
    measure_accuracy(model, source, InferenceOptions(group=CPU))
    assert not model.training


def test_another_forward_and_autocast_are_used_where_they_are_given() -> None:
    model, source, seen = small(), images_of(7), []

    def forward(images: Tensor) -> Tensor:
        seen.append((len(images), torch.is_autocast_enabled("cpu")))
        return torch.nn.functional.one_hot(torch.full((len(images),), 3), 7).float()

    found = measure_accuracy(
        model,
        source,
        InferenceOptions(group=CPU, batch_size=4),
        forward=forward,
        autocast=lambda: torch.autocast("cpu", torch.bfloat16),
    )
    assert seen == [(4, True), (4, True)]  # filled up
    assert found["accuracy"] == pytest.approx((source.labels == 3).mean())


def counted(logits: list[list[float]], labels: list[int]) -> list[float]:
    """Right, right among five, images."""
    target = torch.tensor(labels)
    targets = torch.nn.functional.one_hot(target.clamp(min=0), len(logits[0])).float() * (target >= 0)[:, None]
    return count_correct(torch.tensor(logits), target, targets)[1:].tolist()


def test_of_equals_the_first_class_wins() -> None:
    same = [[2.0] * 7] * 7
    assert counted(same, list(range(7))) == [1, 5, 7]
    assert counted([[1.0, 3.0, 3.0, 0.0]] * 4, [0, 1, 2, 3]) == [1, 4, 4]


def test_the_fifth_counts_and_the_sixth_does_not() -> None:
    falling = [[6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0]]
    assert [counted(falling, [label]) for label in (0, 4, 5)] == [[1, 1, 1], [0, 1, 1], [0, 0, 1]]


def test_an_image_with_a_logit_that_is_no_number_is_counted_and_never_right() -> None:
    nan, infinite = float("nan"), float("inf")
    for logits in ([nan] * 7, [9.0, nan, 0.0, 0.0, 0.0, 0.0, 0.0], [nan, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0]):
        assert counted([logits], [0]) == [0, 0, 1]
    assert counted([[infinite, 0.0, -infinite, 0.0, 0.0, 0.0, 0.0]] * 2, [0, 2]) == [1, 1, 2]


def test_no_label_is_never_right() -> None:
    assert counted([[5.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]] * 2, [-1, 0]) == [1, 1, 1]
