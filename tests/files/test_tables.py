"""Images of parquet files by row, against the library reading the whole table."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.errors import DataError
from vitrail.files import tables
from vitrail.files.tables import ImageTable

arrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")
PAIR = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
NAMES = ["cat", "dog", "eel"]


def blob(number: int, size: int = 40) -> bytes:
    return np.random.default_rng(number).bytes(size + number % 7)


def write(
    path: Path, columns: dict[str, Any], *, rows: int = 4, names: list[str] | None = None, **options: Any
) -> Path:
    table = arrow.table(columns)
    if names is not None:
        info = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    parquet.write_table(table, path, row_group_size=rows, **options)
    return path


def pairs(count: int, first: int = 0, size: int = 40) -> Any:
    return arrow.array([{"bytes": blob(first + i, size), "path": f"{first + i}.jpg"} for i in range(count)], PAIR)


def labels(count: int, first: int = 0) -> Any:
    return arrow.array([(first + i) % 3 for i in range(count)], arrow.int64())


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    counts = ((11, 0), (7, 11))
    return [
        write(tmp_path / f"{first}.parquet", {"image": pairs(n, first), "label": labels(n, first)}, names=NAMES)
        for n, first in counts
    ]


def test_rows_of_several_files_are_those_of_the_whole_tables_in_any_order(shards: list[Path]) -> None:
    table = ImageTable(shards)
    whole = [row for path in shards for row in parquet.read_table(path).column("image").to_pylist()]
    assert len(table) == len(whole) == 18
    for index in np.random.default_rng(0).permutation(18).tolist():
        assert table.row(index) == (whole[index]["bytes"], whole[index]["path"])
    assert table.starts.tolist() == [0, 4, 8, 11, 15, 18]
    assert table.place(10) == (shards[0], 10)
    assert table.place(12) == (shards[1], 1)
    for outside in (-1, 18):
        with pytest.raises(IndexError):
            table.row(outside)


def test_labels_have_the_names_of_the_metadata(shards: list[Path]) -> None:
    numbers, names = ImageTable(shards).labels()
    assert names == tuple(NAMES)
    assert numbers.tolist() == [i % 3 for i in range(18)]


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_texts_are_numbered_in_their_order_or_by_the_names_given(tmp_path: Path, kind: str) -> None:
    texts = ["pug", "cat", "pug", "ant", "cat"]
    column = arrow.array(texts)
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(kind)
    table = ImageTable([write(tmp_path / "a.parquet", {"img": pairs(5), "class": column}, rows=2)])
    numbers, names = table.labels()
    assert [names[number] for number in numbers] == texts
    assert names == ("ant", "cat", "pug")
    numbers, names = table.labels(("pug", "yak", "cat", "ant"))
    assert numbers.tolist() == [0, 2, 0, 3, 2]
    with pytest.raises(DataError, match="'pug' is none of the 2 classes"):
        table.labels(("ant", "cat"))


@pytest.mark.parametrize("kind", ["binary", "large_binary"])
def test_plain_bytes_are_images_and_numbers_name_themselves(tmp_path: Path, kind: str) -> None:
    images = arrow.array([blob(i) for i in range(5)], getattr(arrow, kind)())
    label = arrow.array([3, 0, 1, 1, 0], arrow.uint8())
    table = ImageTable([write(tmp_path / "a.parquet", {"label": label, "pixels": images})])
    assert (table.image, table.label) == ("pixels", "label")
    assert table.row(4) == (blob(4), None)
    assert table.labels()[1] == ("0", "1", "2", "3")


def test_columns_can_be_chosen_and_a_wrong_choice_lists_the_others(tmp_path: Path) -> None:
    columns = {"left": pairs(3), "right": pairs(3, 5), "breed": labels(3), "label": labels(3, 1)}
    path = write(tmp_path / "a.parquet", columns)
    table = ImageTable([path], image="right", label="breed")
    assert table.row(1).data == blob(6)
    assert table.labels()[0].tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"'left', 'right', of .*Name the column"):
        ImageTable([path])
    with pytest.raises(DataError, match="could hold them: 'left', 'right'"):
        ImageTable([path], image="breed")
    with pytest.raises(DataError, match="numbers or texts: 'breed', 'label'"):
        ImageTable([path], image="left", label="left")


def test_labels_that_are_missing_are_refused_unless_that_is_allowed(tmp_path: Path) -> None:
    bare = write(tmp_path / "bare.parquet", {"image": pairs(3)})
    with pytest.raises(DataError, match=r"no column of labels.*say that the images are unlabeled"):
        ImageTable([bare])
    assert ImageTable([bare], unlabeled=True).labels()[0].tolist() == [-1, -1, -1]
    for number, missing in enumerate(([0, None, 2], [0, -1, 2])):
        holed = write(tmp_path / f"{number}.parquet", {"image": pairs(3), "label": arrow.array(missing, arrow.int64())})
        with pytest.raises(DataError, match="row 1 has no label"):
            ImageTable([holed]).labels()
        assert ImageTable([holed], unlabeled=True).labels()[0].tolist() == [0, -1, 2]


def test_a_label_beyond_the_classes_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": pairs(5), "label": labels(5)}, names=NAMES[:2])
    with pytest.raises(DataError, match="expected 2 classes; row 2 has the label 2"):
        ImageTable([path]).labels()
    large = write(tmp_path / "b.parquet", {"image": pairs(1), "label": arrow.array([1 << 40])})
    with pytest.raises(DataError, match="fewer than 1,000,000 classes"):
        ImageTable([large]).labels()


def test_files_that_differ_are_not_one_table(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", {"image": pairs(2), "label": labels(2)}, names=NAMES)
    other = write(tmp_path / "b.parquet", {"image": pairs(2), "label": labels(2)}, names=["x", "y", "z"])
    with pytest.raises(DataError, match="other columns or class names"):
        ImageTable([first, other])
    with pytest.raises(DataError, match="got none"):
        ImageTable([])


def test_only_the_last_row_groups_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size, count = 10_000, 60
    path = write(tmp_path / "a.parquet", {"image": pairs(count, 0, size), "label": labels(count)}, rows=5)
    monkeypatch.setattr(tables, "KEPT", 160_000)  # three groups of 50,000 bytes
    table = ImageTable([path])
    reads: list[int] = []
    real = table._read
    monkeypatch.setattr(table, "_read", lambda group: reads.append(group) or real(group))
    for index in range(count):
        assert table.row(index).data == blob(index, size)
        assert table._kept.size <= 160_000
    assert reads == list(range(12))  # each once
    for index in (46, 51, 47):
        table.row(index)
    assert reads == list(range(12))  # all three are still there
    table.row(0)
    assert reads[-1] == 0


def test_a_group_larger_than_all_that_is_kept_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "KEPT", 10)
    table = ImageTable([write(tmp_path / "a.parquet", {"image": pairs(9), "label": labels(9)}, rows=9)])
    reads: list[int] = []
    real = table._read
    monkeypatch.setattr(table, "_read", lambda group: reads.append(group) or real(group))
    assert [table.row(i).data for i in range(9)] == [blob(i) for i in range(9)]
    assert reads == [0]


def test_a_huge_row_group_is_refused_also_where_its_size_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LARGEST_GROUP", 100_000)
    plain = write(tmp_path / "a.parquet", {"image": pairs(20, 0, 10_000), "label": labels(20)}, rows=20)
    with pytest.raises(DataError, match="Write the file again with smaller row groups"):
        ImageTable([plain])
    # One image many times over is one entry of a dictionary: small in the file, large when decoded.
    same = arrow.array([{"bytes": blob(0, 10_000), "path": None}] * 300, PAIR)
    bomb = write(tmp_path / "b.parquet", {"image": same, "label": labels(300)}, rows=300)
    table = ImageTable([bomb])
    with pytest.raises(DataError, match="smaller row groups"):
        table.row(299)


def test_pickling_carries_no_rows_and_reads_the_same(shards: list[Path]) -> None:
    table = ImageTable(shards)
    table.row(3)
    small = pickle.dumps(table)
    assert blob(3) not in small
    copy = pickle.loads(small)
    assert copy.row(3) == table.row(3)
    assert copy.digest == table.digest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_uses_nothing_of_its_parents(shards: list[Path]) -> None:
    table = ImageTable(shards)
    table.row(3)
    with table._kept.lock:  # as another thread of the parent might hold it
        child = os.fork()
        if not child:
            os._exit(0 if table.row(3).data == blob(3) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_no_whole_parquet_file_is_refused_with_the_reason(tmp_path: Path, shards: list[Path]) -> None:
    cut, text, empty = (tmp_path / name for name in ("cut.parquet", "text.parquet", "empty.parquet"))
    cut.write_bytes(shards[0].read_bytes()[:-100])
    text.write_bytes(b"hello, world; nothing of a table")
    empty.write_bytes(b"")
    for path, reason in (
        (cut, "whose end is missing. Copy or download the file again"),
        (text, "is no parquet file. Check the path"),
        (empty, "is no parquet file"),
        (tmp_path / "none.parquet", "No such file"),
        (tmp_path, "cannot read"),
    ):
        with pytest.raises(DataError, match=reason):
            ImageTable([path])


def test_any_changed_byte_is_an_error_of_ours_or_harmless(tmp_path: Path) -> None:
    columns = {"image": pairs(6), "label": labels(6)}
    path = write(tmp_path / "a.parquet", columns, names=NAMES, write_page_checksum=True, use_dictionary=False)
    good = path.read_bytes()
    random = np.random.default_rng(0)
    seen = 0
    for place in random.integers(4, len(good), size=250).tolist():
        path.write_bytes(good[:place] + bytes([good[place] ^ int(random.integers(1, 256))]) + good[place + 1 :])
        try:
            table = ImageTable([path])
            table.labels()
            for index in range(len(table)):
                table.row(index)
        except DataError:
            seen += 1
    assert seen > 50


def test_damaged_pages_are_noticed_by_their_checksums(tmp_path: Path) -> None:
    columns = {"image": pairs(6, 0, 400), "label": labels(6)}
    path = write(tmp_path / "a.parquet", columns, write_page_checksum=True, use_dictionary=False, compression="none")
    good = path.read_bytes()
    place = good.index(blob(2, 400)) + 50
    path.write_bytes(good[:place] + b"\0\1\2\3" + good[place + 4 :])
    with pytest.raises(DataError, match=r"is damaged: .*(?i:crc|checksum)"):
        ImageTable([path]).row(2)


def test_a_file_that_changes_after_opening_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": pairs(6), "label": labels(6)})
    table = ImageTable([path])
    write(path, {"image": pairs(3), "label": labels(3)})
    with pytest.raises(DataError, match="has changed"):
        table.row(5)
    with pytest.raises(DataError, match="has changed"):
        table.labels()
    assert ImageTable([path]).digest != table.digest
