"""Images with a near-copy among the training images: which they are, and the accuracy without them, by hand."""

from pathlib import Path

import numpy as np
import pytest
from copies import copies, encoded, picture
from evaluating import guessing
from PIL import Image

import vitrail
from vitrail.data.open import open_data
from vitrail.data.source import Subset
from vitrail.data.sources.memory import MemorySource
from vitrail.evaluation.copies import have_copies, training_images
from vitrail.evaluation.page import measured_of
from vitrail.evaluation.results import text_of

NAMES = ("ant", "bee", "cow")
COPIED = (0, 3, 4, 8)  # test images of which a near-copy is in train; the first is there as it is


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty images to train on and twelve to test on, four of which are copies."""
    root = tmp_path_factory.mktemp("photos")
    kinds: dict[int, str] = dict(zip(COPIED, ("itself", "quality 30", "cropped", "twice"), strict=True))
    for number in range(42):
        split = "train" if number < 30 else "test"
        folder = root / split / NAMES[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        copied = kinds.get(number - 30)
        shown = picture(number if copied is None else number - 30)
        plain = encoded(Image.fromarray(shown))
        data = plain if copied in (None, "itself") else copies(shown)[copied]
        (folder / f"{number:02d}.jpg").write_bytes(data)
    return root


def test_images_with_a_copy_or_near_copy_are_found(photos: Path) -> None:
    splits = open_data(photos)
    names = [
        splits["test"].name(index) for index in np.flatnonzero(have_copies(splits["test"], splits["train"])).tolist()
    ]
    assert sorted(int(Path(name).stem) - 30 for name in names) == list(COPIED)
    assert not have_copies(splits["test"], Subset(splits["train"], range(12, 20))).any()


def test_an_image_of_one_color_is_a_copy_of_its_equal_alone() -> None:
    levels = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 9, 7, 3), np.uint8)
    train, test = (MemorySource(each, np.zeros(len(each), np.int64), ("a",)) for each in (levels[:4], levels[3:]))
    assert have_copies(test, train).tolist() == [True, False, False]


def test_the_accuracy_without_them_is_that_of_the_others(photos: Path) -> None:
    model = guessing(3, names=NAMES)
    found = vitrail.evaluate(model, photos)
    lines = [line.split(",") for line in found.predictions.decode().splitlines()[1:]]
    correct = {int(Path(line[0]).stem) - 30: line[-1] == "true" for line in lines}
    apart = found.document()["near_copies"]
    left = [right for number, right in correct.items() if number not in COPIED]
    seen = [right for number, right in correct.items() if number in COPIED]
    assert (apart["images"], apart["training_images"], apart["without"]["images"]) == (4, 30, 8)
    assert apart["without"]["accuracy"] == sum(left) / 8
    assert apart["copies"]["accuracy"] == sum(seen) / 4
    assert found.accuracy == sum(correct.values()) / 12
    assert apart["without"]["interval"][0] < sum(left) / 8 < apart["without"]["interval"][1] or sum(left) in (0, 8)
    assert f"without near-copies {sum(left) / 8:.2%} of 8, 95% interval" in text_of(found.document())
    rows = measured_of(found.document()).tables[0]["rows"]
    assert rows[1][:2] == ["accuracy without 4 near-copies of training images", f"{100 * sum(left) / 8:.1f} %"]
    row = next(row for row in found.document()["results"] if row["metric"] == "accuracy_without_near_copies")
    assert (row["value"], row["images"]) == (sum(left) / 8, 8)


def test_it_is_said_where_none_has_a_copy_and_nothing_where_training_images_are_not_known(photos: Path) -> None:
    splits = open_data(photos)
    model = guessing(3, names=NAMES)
    few = {"train": Subset(splits["train"], range(12, 20)), "test": splits["test"]}
    assert "no image has a near-copy among the 8 training images" in repr(vitrail.evaluate(model, few))
    assert "near_copies" not in vitrail.evaluate(model, {"test": splits["test"]}).document()
    assert training_images(splits, "train", None) is None
    assert training_images({"test": splits["test"]}, "test", None) is None
