"""What is measured of pixels and boxes equals scikit-learn and pycocotools."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from coco_judge import judge
from sklearn.metrics import jaccard_score, recall_score

from vitrail.ops.average_precision import FoundBoxes, TrueBoxes, average_precision
from vitrail.ops.pixel_metrics import PixelCounts, count_pixels

VOID = 255
EACH: Any = None  # of the average: every class by itself; the stubs of scikit-learn know none


def test_iou_equals_scikit_learns_and_void_pixels_count_nowhere() -> None:
    random = np.random.default_rng(5)
    truth = random.integers(0, 4, (3, 11, 13)).astype(np.uint8)
    answers = np.where(random.random(truth.shape) < 0.6, truth, random.integers(0, 4, truth.shape)).astype(np.uint8)
    truth[1, :7] = VOID
    counts = count_pixels(torch.from_numpy(truth), torch.from_numpy(answers), 6, VOID)  # two classes that nobody has
    found, known = PixelCounts(confusion=counts.numpy()), truth != VOID
    expected = jaccard_score(truth[known], answers[known], average=EACH)
    assert found.iou[:4] == pytest.approx(expected)
    assert np.isnan(found.iou[4:]).all()
    assert found.mean_iou == pytest.approx(float(np.mean(expected)))
    assert found.recall[:4] == pytest.approx(recall_score(truth[known], answers[known], average=EACH))
    assert found.accuracy == pytest.approx(float((truth == answers)[known].mean()))
    assert PixelCounts(confusion=np.zeros((2, 2), np.int64)).metrics() == {"mean_iou": 0.0, "pixel_accuracy": 0.0}


def scenes(seed: int, images: int, classes: int) -> tuple[list[TrueBoxes], list[FoundBoxes]]:
    """Objects of all sizes, some crowds; two boxes near each, some of another class, some of nothing."""
    random = np.random.default_rng(seed)
    truths, found = [], []
    for _ in range(images):
        count = int(random.integers(0, 9))
        corner, sides = random.uniform(0, 300, (count, 2)), np.exp(random.uniform(2, 5.5, (count, 2)))
        boxes = np.concatenate([corner, corner + sides], axis=1)
        areas = sides.prod(axis=1) * random.uniform(0.5, 1, count)
        truth = TrueBoxes(boxes, random.integers(0, classes, count), random.random(count) < 0.15, areas)
        near = (
            np.repeat(boxes, 2, axis=0)
            + random.normal(size=(2 * count, 4)) * np.repeat(sides, 2, axis=0)[:, [0] * 4] * 0.05
        )
        moved = np.concatenate([near, random.uniform(0, 50, (3, 4)) + np.array([0, 0, 60, 60])])
        classes_of = np.append(np.repeat(truth.classes, 2), random.integers(0, classes, 3))
        other = random.random(len(moved)) < 0.2
        classes_of = np.where(other, random.integers(0, classes, len(moved)), classes_of)
        kept = (moved[:, 2:] - moved[:, :2]).min(axis=1) > 0
        scores = random.integers(0, 30, len(moved)) / 30  # many of them equal
        truths.append(truth)
        found.append(FoundBoxes(moved[kept], classes_of[kept], scores[kept]))
    return truths, found


def by_pycocotools(truths: list[TrueBoxes], found: list[FoundBoxes], classes: int) -> Any:
    rows = [
        {"image_id": image, "category_id": int(number) + 1, "area": float(area), "iscrowd": int(crowd)}
        | {"bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]]}
        for image, truth in enumerate(truths)
        for box, number, crowd, area in zip(*truth, strict=True)
    ]
    answers = [
        {"image_id": image, "category_id": int(number) + 1, "score": float(score)}
        | {"bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]]}
        for image, boxes in enumerate(found)
        for box, number, score in zip(*boxes, strict=True)
    ]
    truth = {
        "images": [{"id": image} for image in range(len(truths))],
        "categories": [{"id": number + 1} for number in range(classes)],
        "annotations": [{"id": place + 1, **row} for place, row in enumerate(rows)],
    }
    return judge(truth, answers, "bbox")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_average_precision_equals_pycocotools(seed: int) -> None:
    truths, found = scenes(seed, 40, 3)
    ours, theirs = average_precision(truths, found, 4), by_pycocotools(truths, found, 4)  # of one class there is none
    names = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
    assert [ours.metrics()[name] for name in names] == pytest.approx(theirs.stats[:6].tolist(), abs=1e-6)
    assert 0.2 < ours.metrics()["ap"] < 0.8
    table = theirs.eval["precision"][..., 2].mean(axis=1)  # T K A, of 100 boxes
    assert np.isnan(ours.table[:, 3]).all()
    assert ours.table[:, :3] == pytest.approx(table[:, :3].transpose(2, 1, 0), abs=1e-6)
    assert math.isnan(ours.of_classes()[3])


def test_only_the_hundred_surest_boxes_of_a_class_count() -> None:
    truth = TrueBoxes(np.array([[0.0, 0, 10, 10]]), np.array([0]), np.array([False]), np.array([100.0]))
    boxes = np.concatenate([np.tile([[50.0, 50, 60, 60]], (100, 1)), truth.boxes])
    found = FoundBoxes(boxes, np.zeros(101, np.int64), np.append(np.full(100, 0.9), 0.8))
    assert average_precision([truth], [found], 1).metrics()["ap"] == 0
    found = found._replace(scores=np.append(np.full(100, 0.7), 0.8))
    assert average_precision([truth], [found], 1).metrics()["ap"] == pytest.approx(1)


def test_nothing_found_is_zero_and_nothing_to_find_is_no_number() -> None:
    nothing = FoundBoxes(np.zeros((0, 4)), np.zeros(0, np.int64), np.zeros(0))
    truth = TrueBoxes(np.array([[0.0, 0, 50, 50]]), np.array([1]), np.array([False]), np.array([2500.0]))
    found = average_precision([truth], [nothing], 2)
    assert found.metrics() == {"ap": 0.0, "ap50": 0.0, "ap75": 0.0, "ap_medium": 0.0}
    assert np.isnan(found.of_classes()).tolist() == [True, False]
    assert found.objects.tolist() == [0, 1]
