"""Tables of images: every way to write one, and the line that is wrong."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.decode import ImageError
from vitrail.data.sources.table import TableSource, table_splits
from vitrail.errors import DataError


def listed(source: TableSource) -> list[tuple[str, str]]:
    return [(source.name(i), source.class_names[label]) for i, label in enumerate(source.labels)]


def write(folder: Path, text: str | bytes, name: str = "table.csv") -> Path:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


PLAIN = [("a/1.png", "dog"), ("2.png", "cat"), ("a/3.png", "dog")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "path,label\na/1.png,dog\n2.png,cat\na/3.png,dog\n"),
        ("t.CSV", "\ufeffpath,label\r\na/1.png,dog\r\n\r\n2.png,cat\r\na/3.png,dog"),
        ("t.csv", '\n"Label";Note;"Image"\n"dog";"one; two";a/1.png\ncat;;2.png\n;;\ndog;x,y,z;"a/3.png"\n'),
        ("t.tsv", "filename\ttarget\na/1.png\tdog\n2.png\tcat\nfilename\ttarget\na/3.png\tdog\n"),
        ("t.txt", "note,note,file,category\n,,a/1.png,dog\n,,2.png,cat\n,,a/3.png,dog\n"),
        ("t.csv", "image,class,path,label\nx,0,a/1.png,dog\nx,1,2.png,cat\nx,2, a/3.png , dog \n"),
        ("t.jsonl", '\ufeff{"path": "a/1.png", "label": "dog"}\n\n{"image": "2.png", "class": "cat", "more": [1]}\r\n'
         '{"file": "a/3.png", "category": "dog"}'),
    ],
)  # fmt: skip
def test_tables_of_every_kind_give_the_same(tmp_path: Path, name: str, text: str) -> None:
    source = TableSource(write(tmp_path, text, name))
    assert listed(source) == PLAIN
    assert source.class_names == ("cat", "dog")
    assert source.labels.tolist() == [1, 0, 1]
    assert source.labels.dtype == np.int64
    assert (
        source.fingerprint
        == TableSource(write(tmp_path, "path,label\na/1.png,dog\n2.png,cat\na/3.png,dog")).fingerprint
    )


def test_labels_that_are_numbers_are_sorted_as_numbers(tmp_path: Path) -> None:
    source = TableSource(write(tmp_path, "path,label\n1.png,10\n2.png,9\n3.png,100\n4.png,9\n"))
    assert source.class_names == ("9", "10", "100")
    assert source.labels.tolist() == [1, 0, 2, 0]
    rows = "\n".join(json.dumps({"path": f"{label}.png", "label": label}) for label in (11, 2, "3"))
    assert TableSource(write(tmp_path, rows, "t.jsonl")).class_names == ("2", "3", "11")
    mixed = TableSource(write(tmp_path, "path,label\n1.png,10\n2.png,9\n3.png,x\n"))
    assert mixed.class_names == ("10", "9", "x")


def test_files_are_read_beside_the_table_or_where_the_path_says(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "in.png").write_bytes(b"inside")
    (tmp_path / "out.png").write_bytes(b"outside")
    source = TableSource(
        write(tmp_path / "tables", f"path,label\nx/../in.png,a\n{tmp_path / 'out.png'},b\nnone.png,a\n")
    )
    assert source.read(0) == b"inside"
    assert source.read(1) == b"outside"
    with pytest.raises(ImageError, match="cannot be read: No such file"):
        source.read(2)
    with pytest.raises(IndexError):
        source.read(3)


def test_splits_share_their_classes(tmp_path: Path) -> None:
    text = "path,split,label\n1.png,train,b\n2.png,Validation,c\n3.png,train,a\n4.png,test,b\n5.png,val,a\n"
    splits = table_splits(write(tmp_path, text))
    assert list(splits) == ["train", "val", "test"]
    assert {source.class_names for source in splits.values()} == {("a", "b", "c")}
    assert listed(splits["train"]) == [("1.png", "b"), ("3.png", "a")]
    assert listed(splits["val"]) == [("2.png", "c"), ("5.png", "a")]
    assert listed(splits["test"]) == [("4.png", "b")]
    assert len({source.fingerprint for source in splits.values()}) == 3
    rows = '{"path": "1.png", "label": 5, "split": "test"}\n{"path": "2.png", "label": 7, "split": "train"}'
    assert {split: listed(source) for split, source in table_splits(write(tmp_path, rows, "t.jsonl")).items()} == {
        "train": [("2.png", "7")],
        "test": [("1.png", "5")],
    }
    assert list(table_splits(write(tmp_path, "path,label\n1.png,a\n"))) == ["all"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", "path,split,label\n1.png,,b\n2.png, ,a\n"),
        ("t.jsonl", '{"path": "1.png", "label": "b", "split": ""}\n{"path": "2.png", "label": "a", "split": null}'),
    ],
)
def test_splits_that_are_empty_in_every_row_are_none(tmp_path: Path, name: str, text: str) -> None:
    splits = table_splits(write(tmp_path, text, name))
    assert {split: listed(source) for split, source in splits.items()} == {"all": [("1.png", "b"), ("2.png", "a")]}


@pytest.mark.parametrize("empty", ["", ', "split": ""', ', "split": " "', ', "split": null'])
def test_a_line_without_a_split_among_others_is_named(tmp_path: Path, empty: str) -> None:
    text = f'{{"path": "1.png", "label": "a", "split": "val"}}\n\n{{"path": "2.png", "label": "a"{empty}}}'
    with pytest.raises(DataError, match=r"t\.jsonl, line 3: the split is empty, in 1 of 2 rows"):
        TableSource(write(tmp_path, text, "t.jsonl"))


def test_a_source_survives_pickling(tmp_path: Path) -> None:
    (tmp_path / "2.png").write_bytes(b"two")
    source = TableSource(write(tmp_path, "path,label\n1.png,a\n2.png,b\n"))
    copy = pickle.loads(pickle.dumps(source))
    assert listed(copy) == listed(source)
    assert (copy.read(1), copy.fingerprint) == (b"two", source.fingerprint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a header with the columns path and label"),
        ("path,label\n", "names no image; expected a row for each"),
        (
            "name,label\n1.png,a\n",
            r"a column for the path, one of path, file, filename, image, file_name; it has 'name', 'label'",
        ),
        (
            "path,kind\n1.png,a\n",
            r"for the label, one of label, class, target, category; it has 'path', 'kind'\. Rename",
        ),
        ("path,label,Label\n1.png,a,b\n", "the header must have the column 'label' once; it has it 2 times"),
        ("path,label\n1.png,a\n\n2.png,a,b\n", r"line 4: expected 2 cells as in the header, got 3\. Put texts"),
        ("path,label\n1.png,a\n2.png\n", "line 3: expected 2 cells as in the header, got 1"),
        ("path,label\n1.png,a\n,b\n", r"line 3: expected a path and a label; got '' and 'b'\. Fill in both"),
        ("path,label\n1.png,\n", "line 2: expected a path and a label; got '1.png' and ''"),
        ("path,label\n../1.png,a\n", r"line 2: '\.\./1\.png' leaves the folder of the table\. Move the table up, or"),
        ("path,label\nx/../../1.png,a\n", "line 2: 'x/../../1.png' leaves the folder"),
        ("path,label,split\n1.png,a,train\n2.png,a,dev\n", "line 3: the split must be one of train, val, .*got 'dev'"),
        (
            "path,label,split\n1.png,a,test\n2.png,a, \n3.png,a,\n",
            r"line 3: the split is empty, in 2 of 3 rows; expected one of train, .* Fill it in, or delete the row",
        ),
        ('path,label\n1.png,a\n"2.png,b\n3.png,c\n', r"line \d: unexpected end of data\. Check the quotes"),
        ("path,label\n1\0.png,a\n", "line 2: "),
        (b"path,label\n\xff.png,a\n", "must be text in UTF-8; invalid start byte"),
    ],
)
def test_what_is_wrong_in_a_csv_is_named_with_its_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        TableSource(write(tmp_path, text))


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "7", '{"path": "1.png"}', '{"label": "a"}', '{"path": 1, "label": "a"}', '{"path": "1", "label": 1.5}',
     '{"path": "1", "label": true}', '{"path": "1", "label": null}', '{"path": "1", "label": "a", "split": 3}',
     '{"path": "", "label": "a"}', '{"path": "../1", "label": "a"}', '{"path": "\\u0000", "label": "a"}', "[" * 99_999],
)  # fmt: skip
def test_what_is_wrong_in_a_jsonl_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(DataError, match=r"t\.jsonl, line 3: "):
        TableSource(write(tmp_path, f'{{"path": "0.png", "label": "a"}}\n\n{line}\n', "t.jsonl"))


def test_files_that_are_no_table_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a table that ends in \.jsonl, .*; got t\.xlsx\. Rename or convert"):
        TableSource(write(tmp_path, "", "t.xlsx"))
    with pytest.raises(DataError, match=r"cannot read the table .*none\.csv: No such file .* Check the path"):
        TableSource(tmp_path / "none.csv")
