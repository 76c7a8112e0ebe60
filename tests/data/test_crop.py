"""Boxes from uniform numbers: their distribution, and that they stay inside."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from vitrail.data.decode import Box
from vitrail.data.transforms.geometry import SLOTS, inception_box
from vitrail.errors import ShapeError
from vitrail.ops.random import draws

ASPECT = (3 / 4, 4 / 3)


def inception_boxes(
    heights: np.ndarray, widths: np.ndarray, u: np.ndarray, area: tuple[float, float], aspect: tuple[float, float]
) -> np.ndarray:
    """All tries of all images at once: boxes (top, left, height, width), one row of numbers each."""
    count = len(heights)
    tries = u.reshape(count, u.shape[1] // 4, 4)
    rows, cols = heights[:, None], widths[:, None]
    target = (area[0] + tries[:, :, 0] * (area[1] - area[0])) * rows * cols
    low, high = np.log(aspect[0]), np.log(aspect[1])
    ratio = np.exp(low + tries[:, :, 1] * (high - low))
    tall = np.rint(np.sqrt(target / ratio)).astype(np.int64)
    wide = np.rint(np.sqrt(target * ratio)).astype(np.int64)
    fits = (tall >= 1) & (tall <= rows) & (wide >= 1) & (wide <= cols)
    each, first = np.arange(count), fits.argmax(axis=1)
    tall, wide = tall[each, first], wide[each, first]
    top = np.floor(tries[each, first, 2] * (heights - tall + 1)).astype(np.int64)
    left = np.floor(tries[each, first, 3] * (widths - wide + 1)).astype(np.int64)
    found = np.stack([top, left, tall, wide], axis=1)
    tall = np.clip(np.rint(widths / aspect[0]).astype(np.int64), 1, heights)
    wide = np.clip(np.rint(heights * aspect[1]).astype(np.int64), 1, widths)
    largest = np.stack([(heights - tall) // 2, (widths - wide) // 2, tall, wide], axis=1)
    return np.where(fits.any(axis=1)[:, None], found, largest)


def many(height: int, width: int, count: int = 20_000, area: tuple[float, float] = (0.05, 1.0)) -> np.ndarray:
    return np.array([inception_box(height, width, u, area, ASPECT) for u in draws(np.arange(count), SLOTS, 5, 2, 1)])


def test_areas_are_uniform_and_aspects_log_uniform_where_every_try_fits() -> None:
    boxes = many(2003, 2011, area=(0.1, 0.5))
    share = boxes[:, 2] * boxes[:, 3] / (2003 * 2011)
    assert np.quantile(share, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5], abs=0.008)
    place = np.log(boxes[:, 3] / boxes[:, 2]) / np.log(4 / 3)
    assert np.quantile(place, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx([-1, -0.5, 0, 0.5, 1], abs=0.025)


def test_a_box_is_anywhere_it_fits() -> None:
    boxes = many(503, 701, area=(0.1, 0.3))
    for axis, side in ((0, 503), (1, 701)):
        room = boxes[:, axis] / (side - boxes[:, axis + 2])
        assert np.quantile(room, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.015)
        assert boxes[:, axis].min() == 0
        assert (boxes[:, axis] + boxes[:, axis + 2]).max() == side


@given(
    height=st.integers(1, 400),
    width=st.integers(1, 400),
    seed=st.integers(0, 2**32),
    low=st.floats(0.01, 1),
)
def test_a_box_is_always_inside(height: int, width: int, seed: int, low: float) -> None:
    u = draws(np.array([3]), SLOTS, seed, 0, 1)[0]
    box = inception_box(height, width, u, (low, 1.0), ASPECT)
    assert min(box.top, box.left) >= 0
    assert min(box.height, box.width) >= 1
    assert box.top + box.height <= height
    assert box.left + box.width <= width


def test_where_no_try_fits_the_largest_central_box_is_taken() -> None:
    u = draws(np.array([7]), SLOTS, 0, 0, 1)[0]
    assert inception_box(1, 999, u, (0.5, 1.0), ASPECT) == Box(0, 499, 1, 1)
    assert inception_box(999, 1, u, (0.5, 1.0), ASPECT) == Box(499, 0, 1, 1)
    assert inception_box(30, 999, u, (0.9, 1.0), ASPECT) == Box(0, 479, 30, 40)
    assert inception_box(1, 1, u, (0.05, 1.0), ASPECT) == Box(0, 0, 1, 1)


def test_each_try_has_its_own_numbers() -> None:
    fits = np.array([0.5, 0.5, 0.0, 0.0])
    fails = np.array([1.0, 0.0, 0.0, 0.0])  # all of the area, upright, in a square
    found = inception_box(100, 100, np.concatenate([fails, fits]), (0.02, 1.0), ASPECT)
    assert found == inception_box(100, 100, fits, (0.02, 1.0), ASPECT)
    assert found == Box(0, 0, 71, 71)


def test_one_image_and_a_batch_agree() -> None:
    u = draws(np.arange(50), SLOTS, 1, 0, 1)
    heights, widths = np.arange(20, 70), np.arange(170, 120, -1)
    boxes = inception_boxes(heights, widths, u, (0.05, 1.0), ASPECT)
    for row, height, width, box in zip(u, heights, widths, boxes, strict=True):
        assert inception_box(int(height), int(width), row, (0.05, 1.0), ASPECT) == tuple(box)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ShapeError, match="takes 4 numbers"):
        inception_box(5, 5, np.zeros(6), (0.1, 1.0), ASPECT)
    with pytest.raises(ShapeError, match="at least one pixel"):
        inception_box(0, 5, np.zeros(4), (0.1, 1.0), ASPECT)


def test_one_box_alone_is_that_of_many() -> None:
    u = draws(np.arange(3000), SLOTS, 3, 1, 1)
    sides = draws(np.arange(3000), 2, 3, 1, 2)
    heights, widths = (1 + (sides.T**3 * 700)).astype(np.int64)
    many = inception_boxes(heights, widths, u, (0.05, 1.0), (3 / 4, 4 / 3))
    for height, width, row, box in zip(heights.tolist(), widths.tolist(), u, many.tolist(), strict=True):
        assert list(inception_box(height, width, row, (0.05, 1.0), (3 / 4, 4 / 3))) == box
