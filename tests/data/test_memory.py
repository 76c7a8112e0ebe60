"""Images in memory: both orders of axes, and what is refused."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from vitrail.data.sources.memory import MemorySource
from vitrail.errors import DataError
from vitrail.files import fingerprint_of

NAMES = ("ant", "bee", "cat", "dog")
IMAGES = np.random.default_rng(0).integers(0, 256, (7, 5, 6, 3), dtype=np.uint8)
LABELS = [0, 3, 2, 1, 1, 0, 2]


def test_arrays_and_tensors_give_the_same_images() -> None:
    array = MemorySource(IMAGES, LABELS, NAMES)
    tensor = MemorySource(torch.from_numpy(IMAGES).permute(0, 3, 1, 2), torch.tensor(LABELS), list(NAMES))
    for source in (array, tensor):
        assert len(source) == 7
        assert source.labels.dtype == np.int64
        assert source.labels.tolist() == LABELS
        assert source.class_names == NAMES
        assert all(np.array_equal(source.read(i), IMAGES[i]) for i in range(7))
    assert array.fingerprint == tensor.fingerprint
    assert array.name(4) == "image 4"
    assert MemorySource(IMAGES, LABELS, NAMES, title="scan").name(4) == "scan 4"


def test_what_is_read_may_be_changed_without_changing_the_source() -> None:
    source = MemorySource(IMAGES.copy(), LABELS, NAMES)
    source.read(2)[:] = 0
    assert np.array_equal(source.read(2), IMAGES[2])


def test_the_fingerprint_follows_pixels_labels_classes_and_shape() -> None:
    other = IMAGES.copy()
    other[6, 4, 5, 2] ^= 1
    found = {
        MemorySource(IMAGES, LABELS, NAMES).fingerprint,
        MemorySource(other, LABELS, NAMES).fingerprint,
        MemorySource(IMAGES, LABELS[::-1], NAMES).fingerprint,
        MemorySource(IMAGES, LABELS, (*NAMES, "eel")).fingerprint,
        MemorySource(IMAGES.reshape(7, 6, 5, 3), LABELS, NAMES).fingerprint,
    }
    assert len(found) == 5
    assert fingerprint_of("ab", "c") != fingerprint_of("a", "bc")


def test_a_source_survives_pickling() -> None:
    source = MemorySource(IMAGES, LABELS, NAMES)
    copy = pickle.loads(pickle.dumps(source))
    assert np.array_equal(copy.read(3), IMAGES[3])
    assert copy.fingerprint == source.fingerprint


@pytest.mark.parametrize(
    ("images", "labels", "names", "message"),
    [
        (IMAGES / 255, LABELS, NAMES, r"an array N H W C of uint8 with 1 or 3 channels.*float64 of shape \(7, 5, 6, 3"),
        (IMAGES[..., 0], LABELS, NAMES, r"shape \(7, 5, 6\)\. Scale to 0..255 and add the axis of channels"),
        (torch.from_numpy(IMAGES), LABELS, NAMES, r"a tensor N C H W of uint8 .*shape \(7, 5, 6, 3\)"),
        (IMAGES[:0], [], NAMES, "and not empty"),
        (IMAGES, LABELS[:6], NAMES, "as many as the images, 7; got 6"),
        (IMAGES, [0.5] * 7, NAMES, r"a row of whole numbers, one for each image; got float64 of shape \(7,\)"),
        (IMAGES, [True] * 7, NAMES, "a row of whole numbers"),
        (IMAGES, np.zeros((7, 1), dtype=np.int32), NAMES, r"got int32 of shape \(7, 1\)"),
        (IMAGES, [*LABELS[:6], 4], NAMES, r"from 0 to 3 for 4 class names; got 0 to 4\. Name every class"),
        (IMAGES, [*LABELS[:6], -1], NAMES, "got -1 to 3"),
        (IMAGES, LABELS, ("ant", "bee", "ant", "dog"), "one or more texts, each once"),
        (IMAGES, LABELS, "abcd", "one or more texts, each once; got 'abcd'"),
        (IMAGES, LABELS, (), "one or more texts"),
    ],
)
def test_what_does_not_fit_is_refused(images: Any, labels: Any, names: Any, message: str, untyped: None) -> None:
    with pytest.raises(DataError, match=message):
        MemorySource(images, labels, names)


def test_numbers_outside_are_refused() -> None:
    source = MemorySource(IMAGES, LABELS, NAMES)
    for index in (-1, 7):
        with pytest.raises(IndexError):
            source.read(index)
        with pytest.raises(IndexError):
            source.name(index)
