"""Outputs of images: each once, in order, used again only where nothing has changed."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluating import Pictures, guessing, logits_of, passing
from torch import Tensor

from vitrail.config import Card, Preprocessing
from vitrail.errors import DataError
from vitrail.evaluation import cached as module
from vitrail.evaluation.answers import read_answers
from vitrail.evaluation.cached import cached_outputs
from vitrail.models import Model
from vitrail.runtime.cpu import has_bfloat16, has_int8
from vitrail.runtime.fast import make_fast
from vitrail.runtime.inference import InferenceOptions, Outputs


@pytest.fixture
def some_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


one_thread, three_threads = (pytest.mark.parametrize("some_threads", [count], indirect=True) for count in (1, 3))


class Asking:
    """Reads logits, and counts the images that a model was asked about; may be stopped."""

    def __init__(self, stop: int | None = None) -> None:
        self.images, self.stop = 0, stop

    def __call__(self, model: Model, images: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        if self.stop is not None and self.images >= self.stop:
            raise KeyboardInterrupt
        self.images += len(images)
        return {"logits": model(images), "own": labels}


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 11)
    monkeypatch.setattr(module, "FEW", 11)


def rows(model: Model, source: Pictures, how: InferenceOptions | None = None, **asked: Any) -> tuple[Outputs, int]:
    """Give rows, and how many images the model was asked about."""
    asking = Asking()
    return cached_outputs(model, source, "logits", asking, passing() if how is None else how, **asked), asking.images


@pytest.mark.parametrize("batch", [1, 4, 11, 64])
def test_every_image_has_one_row_in_order_whatever_the_batch(batch: int) -> None:
    model, source = guessing(), Pictures(29)
    found, asked = rows(model, source, passing(batch_size=batch))
    assert found.samples.tolist() == list(range(29))
    assert found.labels.tolist() == found.values["own"].tolist() == source.labels.tolist()
    np.testing.assert_allclose(found.values["logits"], logits_of(model, source), atol=1e-5)
    assert (asked, found.reused) == (29, 0)


def test_rows_are_used_again_and_are_the_same(cache: Path) -> None:
    model, source = guessing(), Pictures(29)
    first, _ = rows(model, source)
    again, asked = rows(model, Pictures(29))
    assert (asked, again.reused) == (0, 29)
    assert (again.values["logits"] == first.values["logits"]).all()
    assert (again.labels == source.labels).all()
    assert list(cache.rglob("*.npz"))
    fresh, asked = rows(model, source, passing(cache=False))
    assert (asked, fresh.reused) == (29, 0)


def test_rows_of_what_computes_otherwise_are_never_mixed(cache: Path) -> None:
    plain, source = guessing(), Pictures(29)
    models = [plain, make_fast(plain)]
    models += [make_fast(plain, precision="bfloat16")] if has_bfloat16() else []
    images = plain.preprocess([source.read(number) for number in range(8)])
    models += [make_fast(plain, precision="int8", images=images[:count]) for count in (4, 8) if has_int8()]
    for _ in range(2):
        for number, model in enumerate(models):
            found, asked = rows(model, source)
            assert (asked, found.reused) == ((29, 0) if _ == 0 else (0, 29)), number
    assert len({found.name for found in (cache / "rows" / "logits").iterdir()}) == len(models)


def test_without_keeping_nothing_is_written(cache: Path) -> None:
    rows(guessing(), Pictures(7), passing(cache=False))
    assert not cache.exists()


def test_a_pass_that_was_stopped_goes_on_where_it_was() -> None:
    model, source = guessing(), Pictures(29)
    with pytest.raises(KeyboardInterrupt):
        cached_outputs(model, source, "logits", Asking(stop=24), passing())  # after two parts and some of the third
    found, asked = rows(model, source)
    assert (asked, found.reused) == (29 - 22, 22)
    np.testing.assert_allclose(found.values["logits"], logits_of(model, source), atol=1e-5)


def test_what_another_process_keeps_meanwhile_stays() -> None:
    model, source, asking = guessing(), Pictures(11), Asking()

    def compute(model: Model, images: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
        if not asking.images:
            cached_outputs(model, Pictures(11), "logits", Asking(), passing(), np.arange(5))
        return asking(model, images, labels)

    cached_outputs(model, source, "logits", compute, passing(), np.arange(5, 11))
    assert (rows(model, source)[1], asking.images) == (0, 6)


def other_weights(model: Model) -> None:
    with torch.no_grad():
        next(model.head.parameters())[0, 0] += 0.5


def other_preprocessing(model: Model) -> None:
    model.card = Card(preprocessing=Preprocessing(mean=(0.4,)))


@pytest.mark.parametrize("change", [other_weights, other_preprocessing])
def test_another_model_or_preprocessing_has_rows_of_its_own(change: Any) -> None:
    model, source = guessing(), Pictures(13)
    before, _ = rows(model, source)
    change(model)
    after, asked = rows(model, source)
    assert (asked, after.reused) == (13, 0)
    assert not np.allclose(before.values["logits"], after.values["logits"])


def test_precision_and_kind_have_rows_of_their_own() -> None:
    model, source = guessing(), Pictures(13)
    rows(model, source)
    assert rows(model, source, passing(precision="bfloat16"))[1] == 13
    asking = Asking()
    cached_outputs(model, source, "others", asking, passing())
    assert asking.images == 13


class Named(Pictures):
    """A source whose fingerprint is of its names alone, as that of a folder is."""

    @property
    def fingerprint(self) -> str:
        return "the same"


def test_an_image_or_label_that_has_changed_is_read_again_and_no_other() -> None:
    model, source = guessing(), Named(29)
    rows(model, source)
    source._images[13] = 255 - source._images[13]
    source._labels = np.where(np.arange(29) == 25, (source.labels + 1) % 7, source.labels)
    found, asked = rows(model, source)
    assert (asked, found.reused) == (2, 27)
    assert (found.values["own"] == source.labels).all()
    np.testing.assert_allclose(found.values["logits"], logits_of(model, source), atol=1e-5)
    assert rows(model, source)[1] == 0


@pytest.mark.parametrize("damage", [b"", b"PK nonsense", b"\x93NUMPY", "half", "other", "types", "shapes", "values"])
def test_files_that_are_damaged_are_not_used(damage: bytes | str, cache: Path) -> None:
    model, source = guessing(), Pictures(7)
    first, _ = rows(model, source)
    file = next(cache.rglob("*.npz"))
    if damage == "half":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif damage == "other":
        np.savez(file, samples=np.arange(7))
    elif isinstance(damage, bytes):
        file.write_bytes(damage)
    else:
        ways = {"types": lambda array: array.astype("S4"), "shapes": lambda array: array[None], "values": np.zeros_like}
        np.savez(file, **{name: ways[damage](array) for name, array in np.load(file).items()})
    found, asked = rows(model, source)
    assert asked == 7
    assert (found.values["logits"] == first.values["logits"]).all()
    assert rows(model, source)[1] == 0


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "file"))
    model, source = guessing(), Pictures(13)
    assert rows(model, source)[1] == 13
    assert rows(model, source)[1] == 13


def test_images_that_cannot_be_read_are_left_out_named_and_tried_again() -> None:
    model, source = guessing(), Named(29).spoil(3, *range(11, 22), 28)  # a whole part among them
    for asked in (16, 0):  # the second time nothing but those is left to ask for
        found, images = rows(model, source)
        assert images == asked
        assert [skip.sample for skip in found.skipped] == [3, *range(11, 22), 28]
        assert {skip.reason for skip in found.skipped} == {"spoilt"}
        assert found.skipped[1].name == "image 11"
        assert len(found.samples) == 16
    np.testing.assert_allclose(found.values["logits"], logits_of(model, source)[found.samples], atol=1e-5)
    found, images = rows(model, source.spoil())
    assert (images, found.skipped, found.reused) == (13, (), 16)
    np.testing.assert_allclose(found.values["logits"], logits_of(model, source), atol=1e-5)


def test_too_many_that_cannot_be_read_stop_the_pass_with_the_way_out() -> None:
    source = Pictures(29).spoil(3, 5)
    assert len(rows(guessing(), source, passing(bad_image_limit=0.07))[0].samples) == 27
    with pytest.raises(DataError, match=r"2 of 29 images cannot be read, over the limit of 5\.0%.*bad_image_limit"):
        rows(guessing(), source, passing(bad_image_limit=0.05))
    with pytest.raises(DataError, match="none of the images can be decoded"):
        rows(guessing(), Pictures(3).spoil(0, 1, 2), replace(passing(), bad_image_limit=1.0))


def test_some_samples_alone_are_asked_for_and_kept_for_all() -> None:
    model, source = guessing(), Pictures(29)
    found, asked = rows(model, source, samples=np.array([27, 2, 13, 2]))
    assert (asked, found.samples.tolist()) == (3, [2, 13, 27])
    assert rows(model, source)[1] == 26


@one_thread
@pytest.mark.usefixtures("some_threads")
def test_progress_is_told_of_every_batch_and_ends_at_all() -> None:
    told: list[tuple[int, int]] = []
    rows(guessing(), Pictures(29), passing(progress=lambda done, total: told.append((done, total))))
    assert told[:4] == [(4, 29), (8, 29), (11, 29), (11, 29)]
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (29, 29)


def test_a_model_that_trains_is_asked_without_its_dropout_and_trains_on() -> None:
    model, source = guessing(dropout=0.5).train(), Pictures(7)
    found, _ = rows(model, source)
    assert model.training
    np.testing.assert_allclose(found.values["logits"], logits_of(model.eval(), source), atol=1e-5)


def test_rows_of_other_samples_stay_where_some_are_added() -> None:
    model, source = guessing(), Pictures(9)
    asked = np.array([0, 1, 2]), np.array([2, 3, 4]), np.array([0, 1, 3])
    assert [rows(model, source, samples=some)[0].reused for some in asked] == [0, 1, 3]


@three_threads
@pytest.mark.usefixtures("some_threads")
def test_cores_that_go_each_their_way_give_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 1000)
    model, source = guessing(), Pictures(47).spoil(5, 20)
    told: list[int] = []
    how = passing(cache=False, progress=lambda done, total: told.append(done))
    found = cached_outputs(model, source, "answers", read_answers, how)
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)
    alone = cached_outputs(model, source, "answers", read_answers, passing(cache=False))
    np.testing.assert_array_equal(found.samples, [index for index in range(47) if index not in (5, 20)])
    assert found.skipped == alone.skipped
    for name, values in alone.values.items():
        np.testing.assert_allclose(found.values[name], values, rtol=1e-4, atol=1e-6)
    assert told == sorted(told)
    assert told[-1] == 47


@three_threads
@pytest.mark.usefixtures("some_threads")
def test_one_core_that_fails_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 1000)
    source, asked = Pictures(400), 0

    def read(model: Model, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        nonlocal asked
        asked += 1
        if asked == 7:
            raise RuntimeError("broken")
        if asked > 7:  # the others would be done before they are told, on a machine that is busy
            time.sleep(0.05)
        return {"labels": labels}

    with pytest.raises(RuntimeError, match="broken"):
        cached_outputs(guessing(), source, "labels", read, passing(cache=False))
    assert asked < 30  # of 100 batches
    assert torch.get_num_threads() == 3
