"""Labels from files: which entry is which image's, what is right by them, and every way a file can be wrong."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluating import NAMES, Pictures, guessing, logits_of, passing

from vitrail.errors import DataError
from vitrail.evaluation.answers import Classes, Given, answers, read_labels, read_mapping, score_given

IMAGES = 11
BIRDS = ("crane", "hen, chicken", "jay", "kite", "cock, rooster", "crane", "owl; night owl")


def write(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "given.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def numbered(order: Sequence[int]) -> Pictures:
    """Images as those of ImageNet are called, in folders of their classes."""
    return Pictures(
        len(order), names=[f"n0{place}/ILSVRC2012_val_{number:08d}.JPEG" for place, number in enumerate(order)]
    )


def lists(given: Given) -> list[list[int]]:
    return [sorted(allowed) for allowed in given.allowed]


def labels(tmp_path: Path, document: object, source: Pictures, names: Sequence[str] | None = NAMES) -> list[list[int]]:
    return lists(read_labels(write(tmp_path, document), source, Classes(7, names)))


def mapped(tmp_path: Path, document: object, source: Pictures, names: Sequence[str] | None = NAMES) -> list[list[int]]:
    found = lists(read_mapping(write(tmp_path, document), source, Classes(7, names)))
    return [found[source.labels.tolist().index(label)] for label in range(len(source.class_names))]


def test_the_number_in_an_images_name_is_the_place_of_its_labels(tmp_path: Path) -> None:
    entries = [[0], [1, 2], [], [3], [4], [5, 6]]
    assert labels(tmp_path, entries, numbered([4, 2, 6, 3])) == [[3], [1, 2], [5, 6], []]


def test_images_without_such_numbers_are_taken_in_the_order_of_their_names(tmp_path: Path) -> None:
    source = Pictures(4, names=["x/d.png", "y/a.png", "x/c.png", "b.png"])
    assert labels(tmp_path, [[0], [1], [2], ["g", 3]], source) == [[3, 6], [0], [2], [1]]


def test_labels_by_name_need_not_be_in_order_nor_all_of_this_data(tmp_path: Path) -> None:
    source = Pictures(3, names=["x/d.png", "y/a.png", "x/a.png"])
    document = {"d.png": ["b"], "y/a.png": [0, 5], "x/a.png": [], "more.png": [2]}
    assert labels(tmp_path, document, source) == [[1], [0, 5], []]


def test_an_answer_is_right_if_it_is_among_an_images_labels(tmp_path: Path) -> None:
    model, source = guessing(), Pictures(IMAGES)
    first = logits_of(model, source).argmax(axis=1).tolist()
    entries: list[list[int]] = [[answer, (answer + 1) % 7] for answer in first]
    entries[2], entries[5], entries[8] = [(first[2] + 1) % 7], [], [(first[8] + 3) % 7, (first[8] + 2) % 7]
    given = read_labels(
        write(tmp_path, {f"image {index}": entry for index, entry in enumerate(entries)}), source, Classes(7, None)
    )
    scored = score_given(answers(model, source, passing()), given)
    assert np.flatnonzero(~scored.counted).tolist() == [5]
    assert np.flatnonzero(scored.correct).tolist() == [index for index in range(IMAGES) if index not in (2, 5, 8)]
    assert scored.top5 is None


def test_images_that_are_left_out_keep_the_others_labels_in_place(tmp_path: Path) -> None:
    model, source = guessing(), Pictures(IMAGES).spoil(0, 4)
    first = logits_of(model, source).argmax(axis=1).tolist()
    given = read_labels(write(tmp_path, {f"image {i}": [one] for i, one in enumerate(first)}), source, Classes(7, None))
    scored = score_given(answers(model, source, passing()), given)
    assert scored.correct.tolist() == [True] * 9


def test_a_mapping_takes_numbers_names_lists_and_texts_with_semicolons(tmp_path: Path) -> None:
    source = Pictures(60, ("alarm_clock", "Band Aid", "chair", "desk", "eel"))
    document = {"Alarm clock": "a; c", "band_aid": ["b", 6], "chair": 4, "desk": [], "other": "nothing of this model"}
    assert mapped(tmp_path, document, source) == [[0, 2], [1, 6], [4], [], []]


def test_classes_are_known_by_any_of_their_names_that_is_theirs_alone(tmp_path: Path) -> None:
    source = Pictures(30, ("x", "y", "z"))
    document = {"x": "hen; rooster", "y": "owl; night owl", "z": "hen, chicken; jay"}
    assert mapped(tmp_path, document, source, BIRDS) == [[1, 4], [6], [1, 2]]
    with pytest.raises(DataError, match=r"class x: classes \[0, 5\] are all called 'crane'. Give the number of one"):
        mapped(tmp_path, {"x": "crane"}, source, BIRDS)


def test_an_answer_is_right_if_it_maps_to_the_images_class_first_or_among_five(tmp_path: Path) -> None:
    model, source = guessing(), Pictures(23, ("x", "y", "z"))
    table = {"x": ["a", "d"], "y": [6]}
    given = read_mapping(write(tmp_path, table), source, Classes(7, NAMES))
    found = answers(model, source, passing(), labeled=False)
    scored = score_given(found, given)
    order = np.argsort(-logits_of(model, source), axis=1)
    sets = ({0, 3}, {6}, set[int]())
    wanted = [sets[label] for label in source.labels]
    assert scored.counted.tolist() == [bool(classes) for classes in wanted]
    assert scored.correct.tolist() == [order[row, 0] in classes for row, classes in enumerate(wanted)]
    assert scored.top5 is not None
    assert scored.top5.tolist() == [bool(classes & {*order[row, :5]}) for row, classes in enumerate(wanted)]
    assert scored.correct.any()
    assert 0 < scored.top5.sum() < scored.counted.sum()


WRONG_LABELS: list[tuple[Any, str]] = [
    ("{", "is no JSON"),
    ("3", "expected a JSON list of lists of labels, or an object; got 3"),
    ([[0]] * 5, "has 5 entries, the data 4 images"),
    ([[0], [1], [2], 3], "image x/d.png: expected a list of labels; got 3"),
    ([[0], [1], [2], [7]], "there is no class 7. The model's classes are 0 to 6"),
    ([[0], [1], [2], [-1]], "there is no class -1"),
    ([[0], [1], [2], [True]], "expected the number or the name of a class; got True"),
    ([[0], [1], [2], [1.5]], "expected the number or the name of a class; got 1.5"),
    ([[0], [1], [2], ["cat"]], "the model has no class 'cat'. Check the name"),
    ([[], [], [], []], "leaves no image to count"),
    ({"a.png": [0]}, "has no labels for 3 of 4 images, such as y/b.png"),
]


@pytest.mark.parametrize(("document", "message"), WRONG_LABELS)
def test_wrong_labels_are_refused(document: Any, message: str, tmp_path: Path) -> None:
    source = Pictures(4, names=["x/a.png", "y/b.png", "c.png", "x/d.png"])
    with pytest.raises(DataError) as caught:
        labels(tmp_path, document, source)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_names_that_do_not_tell_images_apart_are_refused(tmp_path: Path) -> None:
    source = Pictures(3, names=["x/a.png", "y/a.png", "z/b.png"])
    with pytest.raises(DataError, match=r"several images are called a\.png"):
        labels(tmp_path, [[0]] * 3, source)
    with pytest.raises(DataError, match=r"several images are called a\.png. Expected their whole names"):
        labels(tmp_path, {"a.png": [0], "b.png": [1]}, source)
    with pytest.raises(DataError, match=r"has 2 entries, and none for n02/ILSVRC2012_val_00000003"):
        labels(tmp_path, [[0]] * 2, numbered([1, 2, 3]))


def test_names_of_classes_need_a_model_that_knows_its_own(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not know the names of its classes: give numbers"):
        labels(tmp_path, [["a"]], Pictures(1), None)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([[0]], "expected a JSON object from the data's classes to the model's"),
        ({"no": 1}, "names none of the data's classes, such as 'x'; it names 'no'"),
        ({}, "it names nothing"),
        ({"x": 9}, "class x: there is no class 9"),
        ({"x": "a; cat"}, "class x: the model has no class 'cat'"),
        ({"x": None}, "class x: expected the number or the name of a class; got None"),
        ({"x": []}, "leaves no image to count"),
    ],
)
def test_wrong_mappings_are_refused(document: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        mapped(tmp_path, document, Pictures(9, ("x", "y")))
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*none\.json: No such file.*Check the path"):
        read_labels(tmp_path / "none.json", Pictures(2), Classes(7, None))
