"""Scenes of shapes: repeatable, balanced, and what they say of themselves is true."""

import pickle
from math import pi, sin
from typing import Any, get_args

import numpy as np
import pytest

from vitrail.data.sources import synthetic
from vitrail.data.sources.synthetic import CLASSES, COLORS, SHAPES, SyntheticSource, Task
from vitrail.errors import ConfigError

TASKS: tuple[Task, ...] = get_args(Task)


def test_a_scene_depends_on_seed_and_number_alone() -> None:
    few, many = SyntheticSource(20, 32, seed=3), SyntheticSource(500, 32, seed=3, task="cell")
    backwards = {index: many.scene(index) for index in reversed(range(20))}
    for index in range(20):
        scene = few.scene(index)
        assert np.array_equal(scene.pixels, backwards[index].pixels)
        assert np.array_equal(scene.masks, backwards[index].masks)
        assert np.array_equal(few.read(index), scene.pixels)
    grain = [np.diff(few.read(index)[:2, :, 0].astype(np.int64)).tolist() for index in range(20)]
    assert all(one != other for one in grain for other in grain if one is not other)
    assert not np.array_equal(few.read(0), SyntheticSource(20, 32, seed=4).read(0))


def test_the_first_scene_stays_what_it_is() -> None:
    scene = SyntheticSource(1, 48, seed=3).scene(0)
    known = (scene.shape, scene.color, scene.cell, scene.count, scene.orientation)
    assert known == ("ring", "magenta", 0, 6, 7)


@pytest.mark.parametrize("task", TASKS)
def test_labels_are_balanced_and_those_of_the_scenes(task: Task) -> None:
    classes = len(CLASSES[task])
    source = SyntheticSource(classes * 11 + 3, (16, 24), seed=7, task=task)
    counts = np.bincount(source.labels, minlength=classes)
    assert counts.sum() == len(source) == classes * 11 + 3
    assert set(counts.tolist()) == {11, 12}
    assert source.labels.dtype == np.int64
    assert source.class_names == CLASSES[task]
    for index in range(17):
        scene = source.scene(index)
        label = int(source.labels[index])
        assert scene.pixels.shape == (16, 24, 3)
        said = {
            "shape": scene.shape,
            "colour": scene.color,
            "cell": f"row {scene.cell // 4 + 1}, column {scene.cell % 4 + 1}",
            "count": str(scene.count),
            "orientation": f"{45 * scene.orientation} degrees",
        }
        assert source.class_names[label] == said[task]


def test_no_property_tells_another() -> None:
    labels = {task: SyntheticSource(4800, 16, seed=1, task=task).labels for task in TASKS}
    for one in TASKS:
        for other in TASKS:
            if one < other:
                table = np.zeros((len(CLASSES[one]), len(CLASSES[other])))
                np.add.at(table, (labels[one], labels[other]), 1)
                # Chi-squared has as many degrees of freedom as its mean; five deviations above never happen by chance.
                freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
                expected = 4800 / table.size
                assert ((table - expected) ** 2 / expected).sum() < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("size", [(16, 16), (17, 23), (50, 34), (64, 64)])
def test_masks_boxes_cells_and_pixels_agree(size: tuple[int, int]) -> None:
    source = SyntheticSource(60, size, seed=11)
    for index in range(len(source)):
        scene = source.scene(index)
        assert scene.masks.shape == (scene.count, *size)
        assert scene.boxes.shape == (scene.count, 4)
        assert scene.masks.sum(axis=0).max() == 1
        for mask, (top, left, height, width) in zip(scene.masks, scene.boxes, strict=True):
            inside = mask[top : top + height, left : left + width]
            assert inside.sum() == mask.sum() > 0
            assert all(edge.any() for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))
        rows, cols = np.nonzero(scene.masks[0])
        row, col = int((rows.mean() + 0.5) * 4 / size[0]), int((cols.mean() + 0.5) * 4 / size[1])
        assert row * 4 + col == scene.cell
        pixels = scene.pixels.astype(np.int64)
        colorful = pixels.max(axis=2) - pixels.min(axis=2)
        assert (colorful[scene.masks.any(axis=0)] > 15).all()
        assert (colorful[~_widened(scene.masks.max(axis=0))] == 0).all()
        if size == (64, 64):
            assert scene.masks[0].sum() > scene.masks[1:].sum(axis=(1, 2)).max(initial=0)


def _widened(mask: np.ndarray) -> np.ndarray:
    """Add two pixels on every side: where an edge or a thin tip may have touched."""
    padded = np.pad(mask, 2)
    return np.max([padded[i : i + mask.shape[0], j : j + mask.shape[1]] for i in range(5) for j in range(5)], axis=0)


def test_shapes_have_their_areas() -> None:
    fine = (np.arange(600) + 0.5) / 300 - 1
    x, y = np.meshgrid(fine, fine)
    areas = {shape: 4 * synthetic._inside(shape, x, y).mean() for shape in SHAPES}
    known = {
        "circle": pi,
        "ring": 0.7 * pi,
        "square": 1.4**2,
        "triangle": 3 * 3**0.5 / 4,
        "star": 5 * 0.45 * sin(pi / 5),
    }
    assert {shape: areas[shape] for shape in known} == pytest.approx(known, rel=0.01)
    assert areas["cross"] == pytest.approx(4 * 0.56 * 0.95 - 0.56**2, rel=0.01)


def test_a_scene_is_brightest_where_it_points_to() -> None:
    source = SyntheticSource(200, 64, seed=2)
    for index in range(len(source)):
        scene = source.scene(index)
        rows, cols = np.nonzero(scene.masks[0])
        light = scene.pixels[rows, cols].max(axis=1).astype(np.float64)
        slopes = np.linalg.lstsq(np.stack([cols, -rows, np.ones(len(rows))], axis=1), light, rcond=None)[0]
        turn = np.arctan2(slopes[1], slopes[0]) / (pi / 4)
        assert abs((turn - scene.orientation + 4) % 8 - 4) < 0.6


def test_edges_are_smooth() -> None:
    source = SyntheticSource(100, 64, seed=5)
    index = next(i for i in range(100) if source.scene(i).shape == "circle" and source.scene(i).color == "red")
    scene = source.scene(index)
    colorful = scene.pixels[..., 0].astype(np.int64) - scene.pixels[..., 1]
    assert len(np.unique(colorful[~scene.masks.any(axis=0)])) > 10


def probe(features: np.ndarray, labels: np.ndarray) -> float:
    """Fit a line to the first two thirds by least squares; give the accuracy on the rest."""
    features = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    cut = len(features) * 2 // 3
    weights = np.linalg.lstsq(features[:cut], np.eye(labels.max() + 1)[labels[:cut]], rcond=None)[0]
    return float(((features[cut:] @ weights).argmax(axis=1) == labels[cut:]).mean())


def test_the_mean_color_tells_the_color_and_nothing_of_the_shape() -> None:
    sources = {task: SyntheticSource(900, 32, seed=5, task=task) for task in TASKS}
    means = np.stack([sources["shape"].read(i).mean(axis=(0, 1)) for i in range(900)])
    assert probe(means, sources["colour"].labels) > 0.9
    for task in ("shape", "cell", "orientation"):
        assert probe(means, sources[task].labels) < 1 / len(CLASSES[task]) + 0.08


def test_a_source_survives_pickling_and_its_fingerprint_follows_what_it_is() -> None:
    source = SyntheticSource(9, 20, seed=1)
    copy = pickle.loads(pickle.dumps(source))
    assert np.array_equal(copy.read(8), source.read(8))
    assert copy.fingerprint == source.fingerprint
    others = [
        SyntheticSource(8, 20, seed=1),
        SyntheticSource(9, 21, seed=1),
        SyntheticSource(9, 20, seed=2),
        SyntheticSource(9, 20, seed=1, task="colour"),
    ]
    assert len({source.fingerprint, *(other.fingerprint for other in others)}) == 5
    assert source.name(8) == "scene 8 of seed 1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "count must be a whole number, at least 1; got 0"),
        ({"image_size": 15}, "image_size must be 16 pixels a side or more; got 15"),
        ({"image_size": (32, 8)}, r"16 pixels a side or more; got \(32, 8\)"),
        ({"seed": -1}, "seed must be a whole number, at least 0; got -1"),
        ({"task": "size"}, "task must be one of 'shape', 'colour', 'cell', 'count', 'orientation'; got 'size'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(changes: dict[str, Any], message: str, untyped: None) -> None:
    arguments: dict[str, Any] = {"count": 5, "image_size": 16, "seed": 0, "task": "shape"} | changes
    with pytest.raises(ConfigError, match=message):
        SyntheticSource(**arguments)


def test_numbers_outside_are_refused() -> None:
    source = SyntheticSource(5, 16, seed=0)
    for index in (-1, 5):
        with pytest.raises(IndexError):
            source.scene(index)
    assert len(COLORS) == len(SHAPES) == 6


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_that_covers_no_pixel_by_half_still_has_a_mask(shape: str) -> None:
    canvas, mask = np.zeros((16, 16, 3)), np.zeros((16, 16), dtype=np.bool_)
    synthetic._draw(canvas, mask, shape, np.full(3, 200.0), 6, 0.08, 0.3, np.random.default_rng(0))
    assert 1 <= mask.sum() <= 4
    assert (canvas[mask] > 0).all()
