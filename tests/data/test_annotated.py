"""Images with masks and boxes: read from every kind of data, moved together, and checked."""

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import vitrail
from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation
from vitrail.data.annotated.coco import mask_of
from vitrail.data.annotated.feed import annotated_feed, annotated_train_feed
from vitrail.data.annotated.open import kind_of, open_annotated
from vitrail.data.annotation import VOID, boxes_of
from vitrail.data.mask_files import decode_mask, encode_mask, fill_polygons
from vitrail.data.overlays import palette
from vitrail.data.source import Source, Subset
from vitrail.errors import DataError
from vitrail.ops.shapes import unpacked

STILL = Augmentation(crop="squash", flip=False)


def save(path: Path, array: NDArray[Any], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)


def scene(number: int, height: int = 20, width: int = 28) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """An image whose colors say the class of each pixel: red is 70 x the class."""
    mask = np.random.default_rng(number).integers(0, 3, (4, 7)).astype(np.uint8).repeat(5, axis=0).repeat(4, axis=1)
    mask = mask[:height, :width]
    return np.stack([mask * 70, np.full_like(mask, number), np.full_like(mask, 50)], axis=2), mask


def folder_of_masks(root: Path, count: int = 4, splits: tuple[str, ...] = ("train", "test")) -> Path:
    for split in splits:
        for number in range(count):
            image, mask = scene(number + 100 * (split == "test"))
            save(root / split / "images" / f"i{number}.png", image)
            save(root / split / "masks" / f"i{number}.png", mask)
    return root


def mask_in(source: Source, index: int) -> NDArray[np.uint8]:
    mask = source.annotation(index).mask
    assert mask is not None
    return mask


def test_a_folder_of_masks_is_read_pixel_for_pixel(tmp_path: Path) -> None:
    splits = open_annotated(folder_of_masks(tmp_path), "segment")
    assert list(splits) == ["train", "test"]
    source = splits["train"]
    assert source.class_names == ("0", "1", "2")
    for index in range(len(source)):
        assert np.array_equal(mask_in(source, index), scene(index)[1])
    part = Subset(source, [2])
    assert np.array_equal(mask_in(part, 0), scene(2)[1])
    assert kind_of(tmp_path) == "segment"


def test_classes_are_named_by_a_file_and_numbers_without_a_class_are_refused(tmp_path: Path) -> None:
    folder_of_masks(tmp_path)
    (tmp_path / "classes.json").write_text('{"0": "sky", "2": "void", "1": "sea"}')
    source = open_annotated(tmp_path, "segment")["train"]
    assert source.class_names == ("sky", "sea")
    mask = scene(0)[1]
    assert np.array_equal(mask_in(source, 0), np.where(mask == 2, VOID, mask))
    (tmp_path / "classes.json").write_text('{"0": "sky", "1": "sea"}')
    with pytest.raises(DataError, match="mask has 2, which is no class; the classes are 0, 1"):
        open_annotated(tmp_path, "segment")["train"].annotation(0)
    (tmp_path / "classes.json").write_text('{"a": 3}')
    with pytest.raises(DataError, match="must name the numbers of the masks"):
        open_annotated(tmp_path, "segment")


def test_masks_of_0_and_255_alone_have_one_class_beside_the_background(tmp_path: Path) -> None:
    for number in range(2):
        image, mask = scene(number)
        save(tmp_path / "images" / f"{number}.jpg", image)
        save(tmp_path / "masks" / f"{number}.png", ((mask > 0) * 255).astype(np.uint8))
    source = open_annotated(tmp_path, "segment")["all"]
    assert source.class_names == ("background", "foreground")
    assert np.array_equal(mask_in(source, 1), scene(1)[1] > 0)


@pytest.mark.parametrize("below", [True, False])
def test_splits_may_stand_below_images_and_masks(tmp_path: Path, *, below: bool) -> None:
    for split in ("train", "val"):
        image, mask = scene(1)
        places = [tmp_path / "images" / split, tmp_path / "masks" / split]
        places = places if below else [tmp_path / split / "images", tmp_path / split / "masks"]
        save(places[0] / "a.png", image)
        save(places[1] / "a.png", mask)
    assert {name: len(part) for name, part in open_annotated(tmp_path, "segment").items()} == {"train": 1, "val": 1}


def test_images_without_their_mask_are_named(tmp_path: Path) -> None:
    folder_of_masks(tmp_path)
    (tmp_path / "train" / "masks" / "i2.png").unlink()
    with pytest.raises(DataError, match=r"1 of 4 images of .* have no file of their name in masks/: i2"):
        open_annotated(tmp_path, "segment")
    with pytest.raises(DataError, match="has no instances/"):
        open_annotated(tmp_path, "detect")
    with pytest.raises(DataError, match="found no masks and no boxes"):
        open_annotated(tmp_path / "train" / "masks", "segment")


def test_instances_have_the_boxes_of_their_pixels_and_the_class_of_most(tmp_path: Path) -> None:
    image, _ = scene(1)
    mask, objects = np.zeros((20, 28), np.uint8), np.zeros((20, 28), np.uint16)
    mask[2:6, 3:9], objects[2:6, 3:9] = 2, 300
    mask[2, 3] = 1  # one pixel of another class
    mask[10:19, 20:28], objects[10:19, 20:28] = 1, 7
    save(tmp_path / "images" / "a.png", image)
    save(tmp_path / "masks" / "a.png", mask)
    save(tmp_path / "instances" / "a.png", objects)
    source = open_annotated(tmp_path, "detect")["all"]
    found = source.annotation(0)
    assert source.class_names == ("1", "2")
    assert dict(zip(map(tuple, found.boxes.tolist()), found.classes.tolist(), strict=True)) == {
        (3.0, 2.0, 9.0, 6.0): 1,
        (20.0, 10.0, 28.0, 19.0): 0,
    }
    assert sorted(found.areas.tolist()) == [24, 72]
    numbers, boxes, areas = boxes_of(objects)
    assert (numbers.tolist(), boxes[1].tolist(), areas.tolist()) == ([7, 300], [3, 2, 9, 6], [72, 24])


def coco(folder: Path, **more: Any) -> Path:
    save(folder / "images" / "b.png", scene(1)[0])
    save(folder / "images" / "a.png", scene(0)[0])
    rows = [
        {"id": 1, "image_id": 5, "category_id": 9, "bbox": [3, 2, 6, 4], "iscrowd": 0, "area": 20.0},
        {"id": 2, "image_id": 5, "category_id": 4, "bbox": [10, 10, 5, 5], "iscrowd": 1},
    ]
    document = {
        "images": [
            {"id": number, "file_name": f"{name}.png", "height": 20, "width": 28}
            for number, name in ((5, "a"), (3, "b"))
        ],
        "categories": [{"id": 9, "name": "cat"}, {"id": 4, "name": "dog"}],
        "annotations": [{**row, **more} for row in rows],
    }
    (folder / "annotations").mkdir(exist_ok=True)
    path = folder / "annotations" / "instances_train.json"
    path.write_text(json.dumps(document))
    return path


def test_coco_boxes_have_their_corners_classes_and_crowds(tmp_path: Path) -> None:
    path = coco(tmp_path)
    for given in (tmp_path, path):
        source = open_annotated(given, "detect")["train"]
        assert source.class_names == ("dog", "cat")
        found = source.annotation(0)
        assert found.boxes.tolist() == [[3, 2, 9, 6], [10, 10, 15, 15]]
        assert (found.classes.tolist(), found.crowd.tolist(), found.areas.tolist()) == ([1, 0], [False, True], [20, 25])
        assert len(source.annotation(1).boxes) == 0
        assert kind_of(given) == "detect"


def test_coco_polygons_and_runs_become_classes_of_pixels(tmp_path: Path) -> None:
    coco(tmp_path, segmentation=[[3, 2, 9, 2, 9, 6, 3, 6]])
    found = open_annotated(tmp_path, "segment")["train"]
    assert found.class_names == ("background", "dog", "cat")
    expected = np.zeros((20, 28), np.uint8)
    expected[2:6, 3:9] = 1  # of two that cover the same the last one painted
    assert np.array_equal(mask_in(found, 0), expected)


@pytest.mark.filterwarnings("ignore:__array__ implementation")
def test_runs_equal_the_field_s_own_library() -> None:
    library = pytest.importorskip("pycocotools.mask")
    mask = np.asarray(np.random.default_rng(0).random((37, 23)) < 0.3)
    packed = library.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert np.array_equal(mask_of({"counts": packed["counts"].decode(), "size": [37, 23]}, (37, 23)), mask)
    plain = {"counts": unpacked(packed["counts"]), "size": [37, 23]}
    assert np.array_equal(mask_of(plain, (37, 23)), mask)
    corners = [4.3, 3.1, 20.2, 8.8, 15.5, 30.7, 6.6, 22.2]
    theirs = library.decode(library.frPyObjects([corners], 37, 23))[:, :, 0].astype(bool)
    ours = fill_polygons((37, 23), [corners])
    assert (ours & theirs).sum() / (ours | theirs).sum() > 0.85


VOC = """<annotation><size><width>28</width><height>20</height></size>
<object><name>{name}</name><difficult>{hard}</difficult>
<bndbox><xmin>4</xmin><ymin>3</ymin><xmax>9</xmax><ymax>6</ymax></bndbox></object></annotation>"""


def test_voc_counts_pixels_from_one(tmp_path: Path) -> None:
    for name, hard in (("a", 0), ("b", 1)):
        save(tmp_path / "JPEGImages" / f"{name}.jpg", scene(0)[0])
        (tmp_path / "Annotations").mkdir(exist_ok=True)
        (tmp_path / "Annotations" / f"{name}.xml").write_text(VOC.format(name=f"cell {name}", hard=hard))
    lists = tmp_path / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("a\n")
    (lists / "test.txt").write_text("b\n")
    splits = open_annotated(tmp_path, "detect")
    assert splits["train"].class_names == splits["test"].class_names == ("cell a",)
    assert splits["train"].annotation(0).boxes.tolist() == [[3, 2, 9, 6]]
    assert splits["test"].annotation(0).classes.tolist() == [-1]  # a class that training does not have
    assert "classes without a name" in vitrail.check_data(tmp_path).splits["test"].problems
    with pytest.raises(DataError, match="has boxes and no masks"):
        open_annotated(tmp_path, "segment")
    (tmp_path / "Annotations" / "a.xml").write_text('<!DOCTYPE a [<!ENTITY b "c">]><annotation/>')
    with pytest.raises(DataError, match="declares entities"):
        open_annotated(tmp_path, "detect")


def test_parquet_with_a_column_of_masks(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows: dict[str, list[bytes]] = {"image": [], "mask": []}
    for number in range(3):
        for name, array in zip(rows, scene(number), strict=True):
            save(tmp_path / "x.png", array)
            rows[name].append((tmp_path / "x.png").read_bytes())
    for split in ("train", "validation"):
        parquet.write_table(arrow.table(rows), tmp_path / f"{split}.parquet")
    assert kind_of(tmp_path) == kind_of(tmp_path / "train.parquet") == "segment"
    assert list(open_annotated(tmp_path, "segment")) == ["train", "val"]
    source = open_annotated(tmp_path / "train.parquet", "segment")["train"]
    assert np.array_equal(mask_in(source, 2), scene(2)[1])
    with pytest.raises(DataError, match="for task=segment"):
        open_annotated(tmp_path / "train.parquet", "detect")


def test_synthetic_scenes_know_their_pixels_and_boxes() -> None:
    masks, boxes = (open_annotated("synthetic", task)["train"] for task in ("segment", "detect"))
    assert masks.class_names == ("background", *boxes.class_names)
    mask, found = mask_in(masks, 3), boxes.annotation(3)
    covered = np.zeros((64, 64), bool)
    for left, top, right, bottom in found.boxes.astype(int).tolist():
        covered[top:bottom, left:right] = True
    assert not mask[~covered].any()
    assert {*mask[mask > 0].tolist()} == {int(found.classes[0]) + 1}


def test_numbers_of_masks_are_kept_in_every_kind_of_file(tmp_path: Path) -> None:
    values = np.array([[0, 1, 200], [255, 7, 3]], np.uint8)
    assert np.array_equal(decode_mask(encode_mask(values, palette())), values)
    save(tmp_path / "gray.png", values)
    save(tmp_path / "deep.png", values.astype(np.uint16) * 200)
    save(tmp_path / "colors.png", np.repeat(values[:, :, None], 3, axis=2))
    assert np.array_equal(decode_mask((tmp_path / "gray.png").read_bytes()), values)
    assert np.array_equal(decode_mask((tmp_path / "deep.png").read_bytes()), values.astype(int) * 200)
    assert np.array_equal(decode_mask((tmp_path / "colors.png").read_bytes()), values)
    save(tmp_path / "red.png", np.stack([values, values * 0, values], axis=2))
    with pytest.raises(DataError, match="a mask in colors"):
        decode_mask((tmp_path / "red.png").read_bytes())
    packed = zlib.compress(b"\0" + bytes([1, 2]))  # a file cut short
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", 13, b"IHDR")
    with pytest.raises(DataError):
        decode_mask(head + packed)


def test_image_mask_and_boxes_are_cropped_flipped_and_scaled_alike(tmp_path: Path) -> None:
    """The red of a pixel says its class: after any geometric transform it still does, the borders of cells aside."""
    source = open_annotated(folder_of_masks(tmp_path, count=6, splits=("train",)), "segment")["train"]
    how = Augmentation(crop_area=(0.2, 1.0))
    plain = Preprocessing(mean=(0.0,), deviation=(1.0,))
    feed = annotated_train_feed(source, (40, 56), augmentation=how, preprocessing=plain, seed=3, batch=6)
    for epoch in range(3):
        (batch,) = feed.epoch(epoch)
        assert batch.masks is not None
        said = (batch.images[:, 0] * 255 / 70).round()
        assert (said == batch.masks).float().mean() > 0.85
        assert {*batch.masks.unique().tolist()} <= {0, 1, 2}


def test_the_masks_of_flipped_images_are_flipped_and_so_are_the_boxes() -> None:
    for task in ("segment", "detect"):
        source = open_annotated("synthetic", task)["train"]
        feeds = [
            annotated_train_feed(
                Subset(source, range(12)),
                (64, 64),
                augmentation=replace(STILL, flip=flip),
                preprocessing=Preprocessing(),
                batch=12,
            )
            for flip in (False, True)
        ]
        (still,), (moved,) = (feed.epoch(1) for feed in feeds)
        turned = torch.tensor([not torch.equal(one, two) for one, two in zip(still.images, moved.images, strict=True)])
        assert 0 < turned.sum() < 12
        assert torch.equal(moved.images[turned], still.images[turned].flip(3))
        if task == "segment":
            assert still.masks is not None
            assert moved.masks is not None
            assert torch.equal(moved.masks[turned], still.masks[turned].flip(2))
            assert torch.equal(moved.masks[~turned], still.masks[~turned])
        else:
            assert still.objects is not None
            assert moved.objects is not None
            for one, two, other in zip(still.objects, moved.objects, turned, strict=True):
                kept = one[one[:, 0] > 0]
                left, right = (1 - kept[:, 3], 1 - kept[:, 1]) if other else (kept[:, 1], kept[:, 3])
                expected = torch.stack([kept[:, 0], left, kept[:, 2], right, kept[:, 4]], dim=1)
                assert torch.allclose(two[: len(kept)], expected)
                assert not two[len(kept) :].any()


def test_batches_do_not_depend_on_workers() -> None:
    source = Subset(open_annotated("synthetic", "segment")["train"], range(8))
    feeds = [
        annotated_train_feed(
            source, (32, 32), augmentation=Augmentation(), preprocessing=Preprocessing(), batch=4, workers=workers
        )
        for workers in (0, 1)
    ]
    for one, two in zip(*(feed.epoch(2) for feed in feeds), strict=True):
        assert one.masks is not None
        assert two.masks is not None
        assert torch.equal(one.masks, two.masks)
        assert torch.equal(one.images, two.images)


def test_evaluation_sees_the_whole_image_and_the_truth_at_its_size(tmp_path: Path) -> None:
    source = open_annotated(folder_of_masks(tmp_path), "segment")["test"]
    cropping = Preprocessing(resize="crop", crop_share=0.8)
    (batch,) = annotated_feed(source, (10, 14), preprocessing=cropping, batch=4).epoch(0)
    assert batch.truths is not None
    assert [truth.size for truth in batch.truths] == [(20, 28)] * 4
    assert (batch.truths[1].mask == scene(101)[1]).all()
    assert batch.masks is not None
    assert np.array_equal(batch.masks[0].numpy(), scene(100)[1][1::2, 1::2])


def test_data_check_finds_what_is_wrong_with_masks_and_boxes_and_draws_them(tmp_path: Path) -> None:
    masks = folder_of_masks(tmp_path / "masks", splits=("train",))
    save(masks / "train" / "masks" / "i1.png", scene(1)[1][:10])
    save(masks / "train" / "masks" / "i2.png", np.stack([scene(1)[1]] * 2 + [scene(1)[1] * 0], axis=2))
    found = vitrail.check_data(masks, sheet=tmp_path / "sheet.png")
    assert found.splits["train"].problems["mask"].count == 2
    assert not found.is_clean
    assert found.splits["train"].class_counts == {"0": 3, "1": 3, "2": 3}
    assert np.asarray(Image.open(tmp_path / "sheet.png")).shape[0] > 100
    (tmp_path / "boxes").mkdir()
    coco(tmp_path / "boxes", bbox=[25, 2, 0, 4])
    report = vitrail.check_data(tmp_path / "boxes").splits["train"]
    assert report.problems["empty boxes"].count == 2
    coco(tmp_path / "boxes", bbox=[25, 2, 9, 4])
    report = vitrail.check_data(tmp_path / "boxes")
    assert report.splits["train"].problems["boxes outside"].count == 2
    assert "boxes outside" in str(report)
    coco(tmp_path / "boxes")
    assert vitrail.check_data(tmp_path / "boxes").is_clean
