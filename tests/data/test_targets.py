"""Several labels or numbers of each image: from tables, parquet files and what a program holds, or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.config.task import MultiLabel, Ordinal, Regression
from vitrail.data.joined import Joined
from vitrail.data.source import Subset
from vitrail.data.targets import TargetSource, open_targets, open_task
from vitrail.data.transforms.mixing import between
from vitrail.errors import DataError
from vitrail.files.tables import write_table

ROWS = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 1]], dtype=np.float32)
IMAGES = np.zeros((3, 8, 8, 3), dtype=np.uint8)


def table(folder: Path, name: str, text: str) -> Path:
    for number in range(3):
        Image.new("RGB", (8, 8)).save(folder / f"{number}.png")
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [
        ("a.csv", "path,labels\n0.png,cat|red fox\n1.png,dog\n2.png,cat|red fox|dog\n", ("cat", "dog", "red fox")),
        ("a.csv", "path;tags\n0.png;a,c\n1.png;b\n2.png;a,b,c\n", ("a", "b", "c")),
        ("a.tsv", "path\tx\ty\tz\n0.png\t1\t0\t1\n1.png\t0\t1\t0\n2.png\tTrue\t1.0\tyes\n", ("x", "y", "z")),
        (
            "a.jsonl",
            '{"path": "0.png", "labels": [2, 10]}\n'
            '{"path": "1.png", "labels": [3]}\n{"path": "2.png", "labels": [2, 3, 10]}\n',
            ("2", "3", "10"),
        ),
    ],
)
def test_labels_are_read_from_lists_in_a_cell_and_from_columns(
    tmp_path: Path, name: str, text: str, names: tuple[str, ...]
) -> None:
    (source,) = open_targets(table(tmp_path, name, text), MultiLabel()).values()
    assert source.class_names == names
    assert source.targets is not None
    np.testing.assert_array_equal(source.targets, ROWS)
    assert source.name(1) == "1.png"
    assert source.labels.tolist() == [-1, -1, -1]
    assert isinstance(source.read(0), bytes)


def test_the_splits_of_a_table_have_the_same_labels(tmp_path: Path) -> None:
    text = "path,labels,split\n0.png,a,train\n1.png,b,val\n2.png,a|b,train\n"
    splits = open_targets(table(tmp_path, "a.csv", text), MultiLabel())
    assert {name: source.class_names for name, source in splits.items()} == {"train": ("a", "b"), "val": ("a", "b")}
    assert splits["train"].targets is not None
    assert splits["train"].targets.tolist() == [[1, 0], [1, 1]]


def test_numbers_are_read_from_the_columns_that_are_named(tmp_path: Path) -> None:
    path = table(tmp_path, "a.csv", "path,age,height,id\n0.png,3,1.5,x\n1.png,4,-2e3,y\n2.png,5,0,z\n")
    (source,) = open_targets(path, Regression(columns=("age", "height"))).values()
    assert source.class_names == ("age", "height")
    assert source.targets is not None
    assert source.targets.tolist() == [[3, 1.5], [4, -2000], [5, 0]]
    with pytest.raises(
        DataError, match=r"which columns are the numbers\? .*'age', 'height', 'id'. Set columns=age,height"
    ):
        open_targets(path, Regression())
    with pytest.raises(DataError, match=r"line 2: id must be a finite number; got 'x'"):
        open_targets(path, Regression(columns=("id",)))
    lists = table(tmp_path, "b.jsonl", "".join(f'{{"path": "{n}.png", "target": [{n}, 2.5]}}\n' for n in range(3)))
    (source,) = open_targets(lists, Regression()).values()
    assert source.class_names == ("target 1", "target 2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "path,labels\n0.png,a\n1.png,\n2.png,b\n",
            r"line 3: the image has no label at all, as 1 of 3.*set allow_empty=true",
        ),
        ("path,a,b\n0.png,1,0\n1.png,0,0\n2.png,0,1\n", r"line 3: the image has no label at all"),
        ("path,a,b\n0.png,1,0\n1.png,2,0\n2.png,0,1\n", r"line 3: a must be 0 or 1, .*got '2'.*columns=first,second"),
        ("path,a,b\n0.png,1\n", r"line 2: expected 3 cells as in the header, got 2"),
        ("path,split\n0.png,train\n", r"has no labels: expected a column labels"),
        ("name,labels\n0.png,a\n", r"expected a column for the path"),
        ("path,labels\n../0.png,a\n", r"leaves the folder of the table"),
        ("path,labels,split\n0.png,a,train\n1.png,a,\n", r"line 3: the split is empty"),
        ("path,labels,split\n0.png,a,other\n", r"the split must be one of"),
    ],
)
def test_what_is_wrong_in_a_table_of_labels_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_targets(table(tmp_path, "a.csv", text), MultiLabel())


def test_images_without_any_label_are_taken_where_that_is_said(tmp_path: Path) -> None:
    path = table(tmp_path, "a.csv", "path,labels\n0.png,a\n1.png,\n2.png,b\n")
    (source,) = open_targets(path, MultiLabel(allow_empty=True)).values()
    assert source.targets is not None
    assert source.targets.tolist() == [[1, 0], [0, 0], [0, 1]]


def test_labels_of_a_model_are_numbered_as_it_has_them_and_others_are_out_of_range(tmp_path: Path) -> None:
    path = table(tmp_path, "a.csv", "path,labels\n0.png,b\n1.png,a\n2.png,b\n")
    (source,) = open_targets(path, MultiLabel(), names=("c", "b", "a")).values()
    assert source.class_names == ("c", "b", "a")
    assert source.targets is not None
    assert source.targets.tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 0]]
    with pytest.raises(DataError, match=r"line 3: the label 'a' is out of range: there are 2"):
        open_targets(path, MultiLabel(), names=("c", "b"))


def test_what_a_program_holds_is_read_from_arrays_lists_and_datasets() -> None:
    for held in ((IMAGES, ROWS), (IMAGES, torch.from_numpy(ROWS).bool()), (IMAGES, ROWS.astype(int).tolist())):
        (source,) = open_targets(held, MultiLabel()).values()
        assert source.class_names == ("0", "1", "2")
        assert source.targets is not None
        np.testing.assert_array_equal(source.targets, ROWS)
    (source,) = open_targets((IMAGES, [[0, 2], [1], [0, 1, 2]]), MultiLabel()).values()
    assert source.targets is not None
    np.testing.assert_array_equal(source.targets, ROWS)
    splits = open_targets({"train": (IMAGES, [1.5, 2, 3]), "val": (IMAGES, [4, 5, 6])}, Regression())
    assert [source.class_names for source in splits.values()] == [("value",), ("value",)]
    dataset = [(IMAGES[0], torch.tensor([1.0, 2.0])), (IMAGES[1], torch.tensor([3.0, 4.0]))]
    (source,) = open_targets(dataset, Regression()).values()
    assert source.targets is not None
    assert source.targets.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("targets", "task", "message"),
    [
        (np.array([[1.0, 0], [0.5, 0], [1, 1]]), MultiLabel(), r"item 1: expected 0 or 1 for each label; got 0.5"),
        (np.array([[1, 0], [0, 0], [1, 1]]), MultiLabel(), r"item 1: the image has no label at all"),
        (
            np.array([[1, 0, 1], [0, 1, 0], [0, 2, 0]]),
            MultiLabel(),
            r"item 2: expected 0 or 1 for each label; got 2 at 1",
        ),
        (np.array([[1.0], [np.nan], [2]]), Regression(), r"item 1: value must be a finite number"),
        ([[1.0, 2.0], [3.0], [4.0, 5.0]], Regression(), r"expected"),
        (np.ones((2, 2)), MultiLabel(), r"3 images and 2 targets"),
    ],
)
def test_targets_that_make_none_are_refused_by_the_number_of_the_image(targets: Any, task: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_targets((IMAGES, targets), task)


def test_parquet_files_have_lists_of_labels_and_columns_of_numbers(tmp_path: Path) -> None:
    png = tmp_path / "0.png"
    Image.new("RGB", (8, 8)).save(png)
    columns = {"image": [png.read_bytes()] * 3, "labels": [["a", "c"], ["b"], ["a", "b", "c"]], "age": [1.5, 2, 3]}
    write_table(tmp_path / "train.parquet", columns)
    (source,) = open_targets(tmp_path / "train.parquet", MultiLabel()).values()
    assert source.targets is not None
    np.testing.assert_array_equal(source.targets, ROWS)
    (source,) = open_targets(tmp_path, Regression(columns=("age",))).values()
    assert source.targets is not None
    assert source.targets.tolist() == [[1.5], [2], [3]]
    with pytest.raises(DataError, match="has no column 'weight'"):
        open_targets(tmp_path, Regression(columns=("weight",)))


def test_parts_and_joins_of_a_source_keep_its_targets_and_a_digest_changes_with_them() -> None:
    (source,) = open_targets((IMAGES, ROWS), MultiLabel()).values()
    part = Subset(Subset(source, [2, 0]), [1])
    assert part.targets is not None
    assert part.targets.tolist() == [ROWS[0].tolist()]
    assert part.targets_of(np.array([0])).tolist() == [ROWS[0].tolist()]  # pyright: ignore[reportOptionalMemberAccess]
    joined = Joined([source, source])
    assert joined.targets is not None
    assert len(joined.targets) == 6
    other = TargetSource(source, 1 - ROWS, source.class_names)
    assert other.fingerprint != source.fingerprint


def test_ordered_classes_are_ordered_by_their_numbers_or_as_it_is_said() -> None:
    labels = np.array([0, 1, 2])
    (source,) = open_task((IMAGES, labels), Ordinal()).values()
    assert source.class_names == ("0", "1", "2")

    class Named:
        classes = ("high", "low", "mid")

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return IMAGES[index], index

    (source,) = open_task(Named(), Ordinal(order=("low", "mid", "high"))).values()
    assert source.class_names == ("low", "mid", "high")
    assert source.labels.tolist() == [2, 0, 1]
    with pytest.raises(DataError, match=r"what is the order of the classes high, low, mid\? .*order=high,low,mid"):
        open_task(Named(), Ordinal())
    with pytest.raises(DataError, match="order must name every class of the data once"):
        open_task(Named(), Ordinal(order=("low", "high")))


def test_mixed_targets_are_between_both_and_what_both_have_stays() -> None:
    mixed = between(torch.tensor([[1.0, 0.0, 0.1]]), torch.tensor([[1.0, 1.0, 0.1]]), torch.tensor([0.7]))
    assert mixed[0, 0] == 1.0
    assert mixed[0, 2] == torch.tensor(0.1)
    assert float(mixed[0, 1]) == pytest.approx(0.3)


def test_folders_of_classes_say_no_several_labels(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match=r"has no table\. Folders of classes say one class an image"):
        open_targets(tmp_path, MultiLabel())
    path = table(
        tmp_path,
        "metadata.jsonl",
        "".join(json.dumps({"file_name": f"{n}.png", "labels": ["a"]}) + "\n" for n in range(3)),
    )
    (source,) = open_targets(path.parent, MultiLabel()).values()
    assert len(source) == 3


def test_numbers_of_labels_have_the_names_that_a_parquet_file_declares(tmp_path: Path) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    png = tmp_path / "0.png"
    Image.new("RGB", (8, 8)).save(png)
    feature = {"feature": {"names": ["cat", "dog", "fox"], "_type": "ClassLabel"}, "_type": "Sequence"}
    said = {"huggingface": json.dumps({"info": {"features": {"labels": feature}}})}
    held = arrow.table({"image": [png.read_bytes()] * 2, "labels": [[0, 2], [1]]}).replace_schema_metadata(said)
    parquet.write_table(held, tmp_path / "train.parquet")
    (source,) = open_targets(tmp_path, MultiLabel()).values()
    assert source.class_names == ("cat", "dog", "fox")
    assert source.targets is not None
    assert source.targets.tolist() == [[1, 0, 1], [0, 1, 0]]
    wrong = arrow.table({"image": [png.read_bytes()] * 2, "labels": [[0, 3], [1]]}).replace_schema_metadata(said)
    parquet.write_table(wrong, tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"row 0: the label '3' is out of range: there are 3, 0 to 2 or cat, dog, fox"):
        open_targets(tmp_path, MultiLabel())


def test_data_check_says_how_often_each_label_comes() -> None:
    some = [["dog"], ["dog", "cat"], ["dog", "cat", "bird"]]
    said = str(vitrail.check_data((np.zeros((3, 8, 8, 3), dtype=np.uint8), some), task="multilabel"))
    assert "2.00 labels an image, 1 to 3" in said
    assert "how often each comes: dog 3, cat 2, bird 1" in said
