"""Pixels of objects: run lengths, overlaps and average precision equal pycocotools'."""

from typing import Any

import numpy as np
import pytest
from coco_judge import judge
from numpy.typing import NDArray

from vitrail.ops.average_precision import FoundBoxes, Overlaps, TrueBoxes, average_precision
from vitrail.ops.shapes import Shape, shape_of, shape_overlaps

SIZE = (210, 250)
Masks = list[NDArray[np.bool_]]


def ellipse(random: np.random.Generator) -> NDArray[np.float64]:
    """A middle and two radii, of objects of all sizes."""
    return np.concatenate([random.uniform(0, SIZE), np.exp(random.uniform(1.2, 5.0, 2))])


def fill(shape: NDArray[np.float64]) -> NDArray[np.bool_]:
    y, x = np.indices(SIZE)
    return ((y - shape[0]) / shape[2]) ** 2 + ((x - shape[1]) / shape[3]) ** 2 <= 1


def scenes(seed: int, images: int, classes: int) -> list[tuple[TrueBoxes, Masks, FoundBoxes, Masks]]:
    """Ellipses, some of them crowds; two near each, some of another class, some of nothing, one without any pixel."""
    random, made = np.random.default_rng(seed), []
    for _ in range(images):
        known = [ellipse(random) for _ in range(int(random.integers(0, 6)))]
        near = [each * (1 + random.normal(size=4) * 0.06) for each in known for _ in range(2)]
        near += [ellipse(random), np.array([-50.0, -50, 1, 1])]
        there, said = [fill(each) for each in known], [fill(each) for each in near]
        kinds = random.integers(0, classes, len(known))
        crowd = random.random(len(known)) < 0.2
        truth = TrueBoxes(
            np.zeros((len(known), 4)), kinds, crowd, np.array([mask.sum() for mask in there], dtype=float)
        )
        answers = np.append(np.repeat(kinds, 2), random.integers(0, classes, 2))
        answers = np.where(random.random(len(near)) < 0.2, random.integers(0, classes, len(near)), answers)
        scores = random.integers(0, 20, len(near)) / 20  # many of them equal
        made.append((truth, there, FoundBoxes(np.zeros((len(near), 4)), answers, scores), said))
    return made


def overlaps_of(truth: TrueBoxes, there: Masks, said: Masks) -> Overlaps:
    mine, theirs = ([shape_of(mask) for mask in masks] for masks in (said, there))
    return Overlaps(shape_overlaps(mine, theirs, truth.crowd), np.array([shape.area for shape in mine], dtype=float))


def by_pycocotools(rows: list[tuple[TrueBoxes, Masks, FoundBoxes, Masks]], classes: int) -> Any:
    encode = pytest.importorskip("pycocotools.mask").encode
    truths: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    for image, (truth, there, found, said) in enumerate(rows):
        for mask, number, crowd, area in zip(there, truth.classes, truth.crowd, truth.areas, strict=True):
            drawn = {"segmentation": encode(np.asfortranarray(mask.astype(np.uint8))), "iscrowd": int(crowd)}
            row = {"image_id": image, "category_id": int(number) + 1, "area": float(area), "id": len(truths) + 1}
            truths.append({**row, **drawn, "bbox": [0, 0, 1, 1]})
        for mask, number, score in zip(said, found.classes, found.scores, strict=True):
            drawn = {"segmentation": encode(np.asfortranarray(mask.astype(np.uint8))), "score": float(score)}
            answers.append({"image_id": image, "category_id": int(number) + 1, **drawn})
    images = [{"id": image, "height": SIZE[0], "width": SIZE[1]} for image in range(len(rows))]
    categories = [{"id": number + 1} for number in range(classes)]
    return judge({"images": images, "categories": categories, "annotations": truths}, answers, "segm")


def test_average_precision_of_masks_equals_pycocotools() -> None:
    rows = scenes(1, 12, 3)
    overlaps = [overlaps_of(truth, there, said) for truth, there, _, said in rows]
    ours = average_precision([row[0] for row in rows], [row[2] for row in rows], 3, overlaps)
    theirs = by_pycocotools(rows, 3)
    names = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
    assert [ours.metrics()[name] for name in names] == pytest.approx(theirs.stats[:6].tolist(), abs=1e-6)
    assert 0.2 < ours.metrics()["ap"] < 0.9
    assert np.nan_to_num(ours.table, nan=-1) == pytest.approx(
        theirs.eval["precision"][..., 2].mean(axis=1).transpose(2, 1, 0), abs=1e-6
    )


def test_overlaps_are_those_of_pixels_counted_one_by_one() -> None:
    random = np.random.default_rng(3)
    masks = [random.random((7, 5)) < share for share in (0.0, 0.3, 0.6, 1.0)]
    crowd = np.array([False, True, False, False])
    found = shape_overlaps([shape_of(mask) for mask in masks], [shape_of(mask) for mask in masks], crowd)
    for row, mine in enumerate(masks):
        for col, theirs in enumerate(masks):
            either = mine.sum() if crowd[col] else (mine | theirs).sum()
            assert found[row, col] == pytest.approx((mine & theirs).sum() / either if either else 0.0)
    assert shape_overlaps([], [shape_of(masks[1])], crowd[:1]).shape == (0, 1)


def test_a_shape_is_its_pixels_again() -> None:
    for share in (0.0, 0.4, 1.0):
        mask = np.random.default_rng(1).random((6, 9)) < share
        shape = shape_of(mask)
        assert np.array_equal(shape.pixels(), mask)
        assert shape.area == mask.sum()
    assert Shape((2, 2), [1, 2, 1]).document() == {"size": [2, 2], "counts": "121"}
