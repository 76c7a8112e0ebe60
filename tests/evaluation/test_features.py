"""The few-shot table of a model, against the same steps by hand; what it reads, and what it keeps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitrail.data.decode import ImageError, Pixels
from vitrail.data.sources.memory import MemorySource
from vitrail.errors import DataError
from vitrail.evaluation import fewshot
from vitrail.evaluation.features import features_of, few_shot_table, results_of
from vitrail.evaluation.shots import Settings
from vitrail.models import Model, create
from vitrail.runtime.inference import InferenceOptions
from vitrail.runtime.machine import Group

HOW = InferenceOptions(group=Group(device=torch.device("cpu")), batch_size=4)


class Counting(MemorySource):
    """Says which images were read; some cannot be."""

    spoilt: frozenset[int] = frozenset()
    seen: set[int] = set()  # noqa: RUF012

    def read(self, index: int) -> Pixels:
        self.seen.add(index)
        if index in self.spoilt:
            raise ImageError("spoilt")
        return super().read(index)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


def scenes(count: int, seed: int) -> Counting:
    """Images whose mean colour says their class, nearly."""
    generator = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(3), generator.integers(0, 3, count - 3)])
    pixels = generator.integers(0, 120, (count, 8, 12, 3)) + 60 * np.eye(3, dtype=np.int64)[labels][:, None, None]
    source = Counting(pixels.astype(np.uint8), labels, ("a", "b", "c"))
    source.seen = set()
    return source


def small() -> Model:
    fields: dict[str, Any] = {"depth": 1, "width": 24, "heads": 3, "mlp_width": 40}
    return create("ViT-Ti/4", image_size=(8, 12), classes=None, **fields)


def by_hand(model: Model, source: MemorySource, samples: list[int]) -> torch.Tensor:
    pixels = np.stack([MemorySource.read(source, sample) for sample in samples]).astype(np.float32)
    with torch.no_grad():
        return model.eval().represent(torch.from_numpy((pixels - 127.5) / 127.5).permute(0, 3, 1, 2))


def test_the_table_is_that_of_features_made_by_hand() -> None:
    model, train, test = small(), scenes(50, 0), scenes(17, 1)
    settings = Settings(shots=(2, 5), seeds=(0, 4), l2=16.0, probes=("ridge",))
    table = few_shot_table(model, (train, test), HOW, settings)
    features = by_hand(model, train, list(range(50))), by_hand(model, test, list(range(17)))
    for cell in table.cells:
        assert cell.shots is not None
        for l2, values in cell.sweep.items():
            expected = [
                fewshot(
                    features[0], train.labels, features[1], test.labels, classes=3, shots=cell.shots, seed=seed, l2=l2
                )
                for seed in (0, 4)
            ]
            assert values == pytest.approx(expected)
        assert cell.accuracy["ridge"] == cell.sweep[16.0]
    assert (table.classes, table.test_images, table.left_out) == (3, 17, 0)


def test_no_more_training_images_are_read_than_the_shots_need() -> None:
    train, test = scenes(50, 0), scenes(17, 1)
    settings = Settings(shots=(1, 2), seeds=(0, 1))
    table = few_shot_table(small(), (train, test), HOW, settings)
    assert len(train.seen) <= 2 * 2 * 3
    assert table.computed == len(train.seen) + 17
    assert [cell.images for cell in table.cells] == [(3, 3), (6, 6)]


def test_other_shots_and_seeds_reuse_the_features_that_are_there() -> None:
    model, train, test = small(), scenes(50, 0), scenes(17, 1)
    first = few_shot_table(model, (train, test), HOW, Settings(shots=(5,), seeds=(0,)))
    again = few_shot_table(model, (train, test), HOW, Settings(shots=(2, 5), seeds=(0,)))
    assert (again.computed, again.reused) == (0, first.computed)
    assert again.cells[1] == first.cells[0]
    more = few_shot_table(model, (train, test), HOW, Settings(shots=(5, None), seeds=(0,)))
    assert (more.computed, more.reused) == (50 - 15, 15 + 17)
    assert more.cells[0] == first.cells[0]


def test_every_seed_draws_images_of_its_own() -> None:
    train, test = scenes(90, 0), scenes(40, 1)
    train._labels = np.roll(train.labels, 1)  # nothing to learn: each draw guesses otherwise
    table = few_shot_table(small(), (train, test), HOW, Settings(shots=(1,), seeds=(0, 1, 2, 3)))
    assert len(set(table.cells[0].accuracy["logistic"])) > 1


def test_features_that_are_not_finite_and_one_class_alone_are_refused() -> None:
    model, train, test = small(), scenes(50, 0), scenes(17, 1)
    with torch.no_grad():
        model.get_parameter("norm.weight").fill_(3e38)
    with pytest.raises(DataError, match="some features are not finite"):
        few_shot_table(model, (train, test), HOW, Settings(shots=(1,), seeds=(0,)))
    alone = MemorySource(np.zeros((3, 8, 12, 3), np.uint8), [0, 0, 0], ("a",))
    with pytest.raises(DataError, match="one class alone"):
        few_shot_table(small(), (alone, alone), HOW, Settings(shots=(1,), seeds=(0,)))


def test_all_images_are_one_draw_whatever_the_seeds() -> None:
    table = few_shot_table(small(), (scenes(50, 0), scenes(17, 1)), HOW, Settings(shots=(None,), seeds=(0, 1, 2)))
    (cell,) = table.cells
    assert cell.images == (50,)
    assert {len(values) for values in cell.accuracy.values()} == {1}


def test_images_that_cannot_be_read_are_left_out_and_said() -> None:
    model, train, test = small(), scenes(50, 0), scenes(17, 1)
    train.spoilt = frozenset([1, 7])
    how = InferenceOptions(group=HOW.group, batch_size=4, bad_image_limit=0.1)
    table = few_shot_table(model, (train, test), how, Settings(shots=(None,), seeds=(0,)))
    assert (table.left_out, table.cells[0].images) == (2, (48,))
    with pytest.raises(DataError, match=r"over the limit of 1\.0%"):
        few_shot_table(model, (train, test), HOW, Settings(shots=(None,), seeds=(0,)))


def test_classes_with_too_few_images_are_counted() -> None:
    table = few_shot_table(small(), (scenes(12, 0), scenes(7, 1)), HOW, Settings(shots=(25,), seeds=(0,)))
    assert table.short == 3
    assert table.cells[0].images == (12,)


def test_results_have_a_row_for_every_number_of_the_table() -> None:
    settings = Settings(shots=(1, None), seeds=(0, 1))
    table = few_shot_table(small(), (scenes(50, 0), scenes(17, 1)), HOW, settings)
    rows = results_of(table, "m", "d", settings)
    assert len(rows) == sum(len(cell.sweep) + 2 for cell in table.cells)
    (found,) = [row for row in rows if row.setting == {"shots": 1, "probe": "ridge", "l2": 1024.0}]
    assert found.value == pytest.approx(np.mean(table.cells[0].accuracy["ridge"]))
    assert found.spread == pytest.approx(np.std(table.cells[0].accuracy["ridge"], ddof=1))
    assert (found.seeds, found.images) == ((0, 1), 17)


def test_features_are_what_the_classifier_reads_in_the_order_of_the_source() -> None:
    model, source = small(), scenes(23, 2)
    rows = features_of(model, source, HOW, np.array([20, 3, 3, 11]))
    np.testing.assert_array_equal(rows.samples, [3, 11, 20])
    torch.testing.assert_close(torch.from_numpy(rows.values["features"]), by_hand(model, source, [3, 11, 20]))
