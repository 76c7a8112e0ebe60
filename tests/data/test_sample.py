"""The sample in the box is the first part of Fashion-MNIST, pixel for pixel."""

import pickle
from importlib.resources import files

import numpy as np
import pytest

from vitrail.data.sources.memory import MemorySource, sample_splits

# Of the original files: the sum of all pixels, images of each class, the first labels, pixels 10 to 14 of row 14 of
# image 7, the sum of the last image.
KNOWN = {
    "train": (
        113_529_887,
        [194, 216, 202, 195, 186, 200, 194, 215, 198, 200],
        [9, 0, 0, 3, 0, 2, 7, 2, 5],
        [223, 231, 229, 231, 229],
        49_119,
    ),
    "test": (
        58_034_149,
        [107, 105, 111, 93, 115, 87, 97, 95, 95, 95],
        [9, 2, 1, 1, 6, 1, 4, 6, 5],
        [112, 109, 224, 114, 154],
        28_316,
    ),
}


@pytest.fixture(scope="module")
def splits() -> dict[str, MemorySource]:
    return sample_splits()


def test_the_sample_has_two_thousand_images_to_train_on_and_a_thousand_to_test(
    splits: dict[str, MemorySource],
) -> None:
    assert {split: len(source) for split, source in splits.items()} == {"train": 2000, "test": 1000}
    for source in splits.values():
        assert source.class_names[0] == "T-shirt/top"
        assert source.class_names[5:] == ("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
        assert source.read(3).shape == (28, 28, 1)
    assert splits["train"].name(7) == "Fashion-MNIST train 7"
    assert splits["train"].fingerprint != splits["test"].fingerprint


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_pixels_and_labels_are_the_original_ones(splits: dict[str, MemorySource], split: str) -> None:
    source = splits[split]
    total, histogram, first, pixels, last = KNOWN[split]
    assert sum(int(source.read(i).sum(dtype=np.int64)) for i in range(len(source))) == total
    assert np.bincount(source.labels).tolist() == histogram
    assert source.labels[:9].tolist() == first
    assert source.read(7)[14, 10:15, 0].tolist() == pixels
    assert int(source.read(len(source) - 1).sum(dtype=np.int64)) == last


def test_the_sample_survives_pickling(splits: dict[str, MemorySource]) -> None:
    copy = pickle.loads(pickle.dumps(splits["test"]))
    assert np.array_equal(copy.read(99), splits["test"].read(99))
    assert copy.fingerprint == splits["test"].fingerprint


def test_the_licence_lies_beside_the_sample_and_the_file_is_small() -> None:
    folder = files("vitrail.data") / "sample"
    assert "Copyright (c) 2017 Zalando SE" in (folder / "NOTICE").read_text()
    assert len((folder / "fashion.npz").read_bytes()) < 1_500_000
