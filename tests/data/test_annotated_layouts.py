"""Folders as others lay them out: Pascal VOC's lists for pixels, other words for splits, masks in colors."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.data.annotated.open import open_annotated
from vitrail.data.mask_files import decode_mask
from vitrail.errors import DataError


def save(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


def test_pascal_vocs_lists_for_pixels_share_out_its_images(tmp_path: Path) -> None:
    for number in range(5):
        save(tmp_path / "JPEGImages" / f"{number}.jpg", np.full((7, 9, 3), 40 * number, np.uint8))
        if number != 3:
            mask = np.full((7, 9), number, np.uint8)
            mask[0, 0] = 255
            save(tmp_path / "SegmentationClass" / f"{number}.png", mask)
    unlisted = open_annotated(tmp_path, "segment")
    assert {split: len(part) for split, part in unlisted.items()} == {"all": 4}
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("4\n0\n1\n")
    (lists / "val.txt").write_text("2\n")
    (lists / "test.txt").write_text("7\n")  # without masks, as the challenge's own
    with pytest.raises(DataError, match="no class") as caught:
        open_annotated(tmp_path, "segment")["val"].annotation(0)  # of which no training mask has a pixel
    assert "the mask has 2" in str(caught.value)
    (tmp_path / "classes.txt").write_text("ground\none\ntwo\nthree\nfour\n")
    found = open_annotated(tmp_path, "segment")
    assert {split: [part.name(n) for n in range(len(part))] for split, part in found.items()} == {
        "train": ["JPEGImages/4.jpg", "JPEGImages/0.jpg", "JPEGImages/1.jpg"],
        "val": ["JPEGImages/2.jpg"],
    }
    assert found["train"].annotation(0).mask.tolist()[0][:2] == [255, 4]  # pyright: ignore[reportOptionalMemberAccess]


def test_splits_of_other_words_are_all_taken(tmp_path: Path) -> None:
    for split, count in (("training", 3), ("validation", 2), ("testing", 1)):
        for number in range(count):
            save(tmp_path / split / "images" / f"{number}.png", np.zeros((5, 4), np.uint8))
            save(tmp_path / split / "masks" / f"{number}.png", np.arange(20, dtype=np.uint8).reshape(5, 4) % 3)
    found = open_annotated(tmp_path, "segment")
    assert {split: len(part) for split, part in found.items()} == {"train": 3, "val": 2, "test": 1}


def test_where_no_mask_can_be_read_the_first_says_why(tmp_path: Path) -> None:
    colors = np.random.default_rng(0).integers(0, 255, (5, 4, 3), dtype=np.uint8)
    save(tmp_path / "images" / "a.png", colors)
    save(tmp_path / "masks" / "a.png", colors)
    with pytest.raises(DataError, match=r"has a class in it\. The first that cannot be: a mask in colors \(RGB\)"):
        open_annotated(tmp_path, "segment")


def test_data_check_says_how_many_objects_there_are_and_what_shares_of_the_pixels(tmp_path: Path) -> None:
    for number, numbers in enumerate(([[0, 0, 1, 255]], [[0, 2, 2, 2]], [[0, 0, 0, 0]])):
        save(tmp_path / "masks" / f"{number}.png", np.array(numbers, np.uint8).repeat(5, 0))
        save(tmp_path / "instances" / f"{number}.png", np.array(numbers, np.uint8).repeat(5, 0) % 255)
        save(tmp_path / "images" / f"{number}.png", np.full((5, 4, 3), 9 * number, np.uint8))
    said = vitrail.check_data(tmp_path).splits["all"]
    assert said.known == ["pixels that count: 0 63.6%, 1 9.1%, 2 27.3%; 8.3% of all is void"]
    assert said.uneven is None
    said = vitrail.check_data(tmp_path, task="detect").splits["all"]
    assert said.known == ["2 objects, at most 1 in an image, none in 1 images: 1 1, 2 1"]


def document(folder: Path, **changed: object) -> Path:
    """Two images of an object each; the second's is changed."""
    rows: list[dict[str, object]] = []
    for number in range(2):
        save(folder / f"{number}.png", np.full((6, 8, 3), 90 * number, np.uint8))
        row: dict[str, object] = {"id": number, "image_id": number, "category_id": 3, "bbox": [1, 2, 4, 3]}
        rows.append(row | {"segmentation": [[1, 2, 5, 2, 5, 5, 1, 5]]})
    rows[1] = {name: value for name, value in (rows[1] | changed).items() if value is not None}
    images = [{"id": number, "file_name": f"{number}.png", "height": 6, "width": 8} for number in range(2)]
    found = {"images": images, "annotations": rows, "categories": [{"id": 3, "name": "cell"}]}
    (folder / "all.json").write_text(json.dumps(found))
    return folder / "all.json"


WRONG = [
    ("detect", {"bbox": [1, 2, float("nan"), 3]}, "boxes", "not all finite"),
    ("detect", {"bbox": ["1", "2", "4", "3"]}, "boxes", r"expected \[left, top, width, height\]"),
    ("detect", {"bbox": None}, "boxes", "has the bbox None"),
    ("detect", {"category_id": 9}, "classes without a name", "1 objects of classes"),
    ("segment", {"category_id": 9}, "mask", "of category 9, which"),
    ("segment", {"segmentation": []}, "mask", "a box and no segmentation"),
    ("segment", {"segmentation": [[1, 2, 3, 4]]}, "mask", "less than three corners"),
]


@pytest.mark.parametrize(
    ("task", "changed", "kind", "words"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (place % 3 > 0)) for place, case in enumerate(WRONG)],
)
def test_what_is_wrong_with_an_object_of_a_document_is_said(
    task: str, changed: dict[str, object], kind: str, words: str, tmp_path: Path
) -> None:
    found = vitrail.check_data(document(tmp_path, **changed), task=task)
    assert not found.is_clean
    (said,) = found.splits["all"].problems[kind].examples
    assert re.search(words, said)
    assert "1.png" in said


def test_images_of_one_number_and_masks_that_lost_their_numbers_are_refused(tmp_path: Path) -> None:
    path = document(tmp_path)
    assert open_annotated(path, "segment")["all"].annotation(1).mask is not None
    said = json.loads(path.read_text())
    said["images"][1]["id"] = 0
    path.write_text(json.dumps(said))
    with pytest.raises(DataError, match=r"1 numbers of images come twice, such as 0\. Give each its own"):
        open_annotated(path, "detect")
    save(tmp_path / "mask.jpg", np.zeros((6, 8), np.uint8))
    with pytest.raises(DataError, match="does not keep the numbers of a mask"):
        decode_mask((tmp_path / "mask.jpg").read_bytes())
