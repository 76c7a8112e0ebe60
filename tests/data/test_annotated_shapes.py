"""The pixels of objects: read from every kind of data, and moved with images and boxes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation
from vitrail.data.annotated.feed import annotated_feed, annotated_train_feed
from vitrail.data.annotated.open import open_annotated
from vitrail.data.annotation import Annotation, of_boxes, with_shapes
from vitrail.data.decode import Box, ImageError
from vitrail.data.source import Source, Subset
from vitrail.data.transforms.annotated import cut_shapes
from vitrail.ops.shapes import shape_of

STILL = Augmentation(crop="squash", flip=False)
PLAIN = Preprocessing(mean=(0.0,), deviation=(1.0,))


def rings() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """An image of two objects, neither of them a box, whose red says the number of each: 100 and 200."""
    numbers = np.zeros((40, 60), np.uint8)
    numbers[4:30, 5:28] = 1
    numbers[10:30, 12:28] = 0  # which leaves a corner
    numbers[8:36, 31:57] = 2
    numbers[14:30, 37:51] = 0  # which leaves a ring
    return np.stack([numbers * 100, numbers * 0, numbers * 0], axis=2), numbers


def folder(root: Path, count: int = 6) -> Path:
    image, numbers = rings()
    for kind, array in (("images", image), ("instances", numbers), ("masks", numbers)):
        (root / kind).mkdir(parents=True)
        for place in range(count):
            Image.fromarray(array).save(root / kind / f"{place}.png")
    return root


def shapes_in(source: Source, index: int) -> list[NDArray[np.bool_]]:
    shapes = source.annotation(index).shapes
    assert shapes is not None
    return [each.pixels() for each in shapes]


def train(source: Source, size: tuple[int, int] = (40, 60), how: Augmentation = STILL, **more: Any) -> Any:
    batch = len(source)
    feed = annotated_train_feed(source, size, augmentation=how, preprocessing=PLAIN, batch=batch, shapes=True, **more)
    (found,) = feed.epoch(1)
    return found


def test_numbered_objects_drawn_ones_and_cocos_have_the_pixels_that_their_files_say(tmp_path: Path) -> None:
    source = open_annotated(folder(tmp_path / "numbers", 1), "detect")["all"]
    for number, pixels in enumerate(shapes_in(source, 0), start=1):
        assert np.array_equal(pixels, rings()[1] == number)
    scenes = open_annotated("synthetic", "detect")["train"]
    known = scenes.annotation(3)
    for pixels, (left, top, right, bottom), area in zip(shapes_in(scenes, 3), known.boxes, known.areas, strict=True):
        assert pixels.sum() == area
        rows, cols = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
        assert [cols[0], rows[0], cols[-1] + 1, rows[-1] + 1] == [left, top, right, bottom]
    coco = tmp_path / "coco"
    (coco / "images").mkdir(parents=True)
    Image.fromarray(rings()[0]).save(coco / "images" / "a.png")
    second = shape_of(rings()[1] == 2)
    drawn = [[[5, 4, 28, 4, 28, 10, 5, 10]], {"size": [40, 60], "counts": second.runs}, second.document(), None]
    for kept in (3, 4):  # the fourth has a box alone
        rows = [
            {"id": place, "image_id": 1, "category_id": 7, "bbox": [1, 1, 9, 9], "segmentation": said}
            for place, said in enumerate(drawn[:kept])
        ]
        document = {"images": [{"id": 1, "file_name": "a.png", "height": 40, "width": 60}], "annotations": rows}
        (coco / "all.json").write_text(json.dumps({**document, "categories": [{"id": 7, "name": "cat"}]}))
        known = open_annotated(coco / "all.json", "detect")["all"]
        if kept == 3:
            corner, *others = shapes_in(known, 0)
            assert (corner.sum(), corner[4:10, 5:28].all()) == (6 * 23, True)
            assert all(np.array_equal(each, rings()[1] == 2) for each in others)
    assert known.annotation(0).shapes is None
    with pytest.raises(ImageError, match=r"a box without the pixels of the object.*head\.masks=false"):
        with_shapes(known.annotation(0), 40, 60)


def test_objects_drawn_on_another_size_or_not_as_coco_does_are_refused() -> None:
    known = of_boxes([[0, 0, 4, 4]], [0], shapes=[shape_of(np.ones((5, 6), np.bool_))])
    with pytest.raises(ImageError, match="an object is drawn on 5x6 pixels; the image is 7x6"):
        with_shapes(known, 7, 6)


def test_image_and_shapes_are_cropped_flipped_and_scaled_alike_and_stay_in_their_boxes(tmp_path: Path) -> None:
    source = open_annotated(folder(tmp_path), "detect")["all"]
    batch = train(source, (80, 96), replace(STILL, crop="inception", crop_area=(0.2, 1.0), flip=True), seed=5)
    assert batch.shapes.shape == (6, 2, 80, 96)
    red = (batch.images[:, 0] * 255 / 100).round()
    seen = 0
    for image, objects, shapes in zip(red, batch.objects, batch.shapes, strict=True):
        for row, shape in zip(objects[objects[:, 0] > 0], shapes, strict=False):
            assert ((image == row[0]) == shape).float().mean() > 0.93  # but at edges
            rows, cols = (torch.nonzero(shape.any(dim=axis))[:, 0] for axis in (1, 0))
            left, top, right, bottom = (row[1:] * torch.tensor([96, 80, 96, 80])).tolist()
            found = [cols[0].item(), rows[0].item(), cols[-1].item() + 1, rows[-1].item() + 1]
            assert found == pytest.approx([left, top, right, bottom], abs=2.5)
            seen += 1
        assert not shapes[int((objects[:, 0] > 0).sum()) :].any()
    assert seen > 6


def test_flipped_images_have_flipped_shapes() -> None:
    source = Subset(open_annotated("synthetic", "detect")["train"], range(12))
    still, moved = (train(source, (64, 64), replace(STILL, flip=flip)) for flip in (False, True))
    turned = (still.images != moved.images).flatten(1).any(dim=1)
    assert 0 < turned.sum() < 12
    assert still.shapes.flatten(2).sum(dim=2).tolist() == moved.shapes.flatten(2).sum(dim=2).tolist()
    assert torch.equal(moved.shapes[turned], still.shapes[turned].flip(3))
    assert torch.equal(moved.shapes[~turned], still.shapes[~turned])


def test_a_box_that_a_crop_cuts_ends_where_its_shape_does() -> None:
    corner = np.zeros((20, 30), np.bool_)
    corner[2:18, 4:6] = corner[2:4, 4:24] = True
    known: Annotation = of_boxes([[4, 2, 24, 18]] * 2, [0, 3], shapes=[shape_of(corner), shape_of(~corner)])
    rows, shapes = cut_shapes(known, Box(3, 2, 17, 20), (17, 20))  # its topmost row is out of the part
    assert rows.tolist() == [
        pytest.approx([1, 2 / 20, 0, 1, 15 / 17]),  # to the right edge: the arm goes on in the next row
        pytest.approx([4, 2 / 20, 0, 1, 15 / 17]),
    ]
    assert np.array_equal(shapes[0].numpy(), corner[3:, 2:22])
    rows, shapes = cut_shapes(known, Box(4, 0, 14, 16), (7, 8))
    assert rows.tolist() == [pytest.approx([1, 4 / 16, 0, 6 / 16, 1]), pytest.approx([4, 4 / 16, 0, 1, 1])]
    assert np.array_equal(shapes[0].numpy(), corner[5:18:2, 1:16:2])


def test_evaluation_knows_shapes_at_the_size_of_the_file_and_only_where_they_are_asked_for(tmp_path: Path) -> None:
    source = open_annotated(folder(tmp_path, 2), "detect")["all"]
    for asked in (True, False):
        (batch,) = annotated_feed(source, (10, 14), preprocessing=PLAIN, batch=2, shapes=asked).epoch(0)
        assert batch.shapes is None
        truth = (batch.truths or [])[1]
        assert (truth.shapes is not None) == asked
        for number, shape in enumerate(truth.shapes or (), start=1):
            assert np.array_equal(shape.pixels(), rings()[1] == number)
