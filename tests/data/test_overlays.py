"""Masks and boxes over images: colors that differ, lines where boxes are, names that can be read, and none too many."""

import numpy as np
import pytest

from vitrail.data.decode import Pixels
from vitrail.data.overlays import colors_of, draw_boxes, lay_over, lay_shapes_over, nearest, palette, scaled
from vitrail.ops.shapes import shape_of

GRAY: Pixels = np.full((300, 400, 3), 90, dtype=np.uint8)
NAMES = ("cat", "dog", "bird")


def test_near_classes_have_colors_far_apart_and_a_background_has_none() -> None:
    colors = palette()[1:13].astype(int)
    apart = np.abs(colors[:, None] - colors[None]).sum(axis=2) + 999 * np.eye(12, dtype=int)
    assert apart.min() > 60
    assert (colors.max(axis=1) > 190).all()
    assert len({tuple(row) for row in palette()[:100].tolist()}) == 100
    assert not colors_of(("Background", "cat"))[0].any()
    assert colors_of(("background", "cat"))[1].tolist() == colors_of(NAMES)[0].tolist() == palette()[1].tolist()
    assert colors_of(("pet", "background", "edge"))[:3].tolist() == palette()[[1, 0, 2]].tolist()
    assert colors_of(NAMES)[255].tolist() == palette()[255].tolist()


def test_a_mask_tints_its_pixels_alone_and_follows_the_size_that_is_shown() -> None:
    mask = np.zeros((30, 40), np.uint8)
    mask[6:18, 8:24] = 1
    drawn = lay_over(GRAY, mask, colors_of(("background", "cat")))
    tint = (GRAY[0, 0] * 0.45 + palette()[1] * 0.55).round()
    assert (drawn[70:170, 90:230] == tint).all()
    assert (drawn[:58] == 90).all()
    assert (drawn[60, 85:235] == 255).all()
    assert np.array_equal(nearest(mask, (15, 20)), mask[1::2, 1::2])


def test_boxes_have_lines_at_their_edges_and_names_above_them() -> None:
    colors = colors_of(NAMES)
    drawn = draw_boxes(
        GRAY, np.array([[50.0, 100, 150, 200], [200, 3, 260, 60]]), np.array([1, 2]), colors, ("dog", "b")
    )
    for row, col in ((150, 50), (150, 149), (199, 100), (100, 140)):
        assert drawn[row, col].tolist() == colors[1].tolist()
    assert (drawn[120:180, 70:130] == 90).all()
    assert drawn[95, 51].tolist() == colors[1].tolist()  # the name's ground, above the box
    assert drawn[10, 202].tolist() == colors[2].tolist()  # or in it, where there is no room above
    bare = draw_boxes(GRAY, np.array([[50.0, 100, 150, 200]] * 300), np.array([1] * 300), colors, ["a dog 0.99"] * 300)
    assert bare[95, 51].tolist() == [90, 90, 90]  # where names would cover the image, there are none


def test_names_that_the_font_lacks_are_numbers() -> None:
    one, two = (
        draw_boxes(GRAY, np.array([[50.0, 100, 150, 200]]), np.array([1]), colors_of(NAMES), (text,))
        for text in ("\uac15\uc544\uc9c0 0.50", "#1 0.50")
    )
    assert np.array_equal(one, two)


def test_pictures_are_shown_neither_tiny_nor_huge() -> None:
    assert scaled(GRAY[:10, :20], 64, 320).shape == (70, 140, 3)
    assert scaled(GRAY[:10, :200], 64, 320).shape == (10, 200, 3)
    assert scaled(GRAY, 64, 100).shape == (75, 100, 3)
    assert scaled(GRAY, 64, 400) is GRAY


def test_more_objects_than_a_map_numbers_are_drawn_and_the_first_lie_on_top() -> None:
    pixels, count = np.zeros((40, 40, 3), dtype=np.uint8), 300
    first = np.zeros((40, 40), dtype=np.bool_)
    first[10:20, 10:20] = True
    shapes = [shape_of(first), *(shape_of(np.ones((40, 40), dtype=np.bool_)) for _ in range(count - 1))]
    colors = colors_of(["cell"] * 2)
    drawn = lay_shapes_over(pixels, shapes, np.array([1] + [0] * (count - 1)), colors)
    assert drawn[15, 15] == pytest.approx(0.55 * colors[1], abs=1)
    assert drawn[30, 30] == pytest.approx(0.55 * colors[0], abs=1)
