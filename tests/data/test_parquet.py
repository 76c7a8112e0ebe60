"""Sources of parquet files: the hub's names of files, missing parts, shared classes, images beside the file."""

import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.data.decode import ImageError
from vitrail.data.sources.parquet import ParquetSource, parquet_splits
from vitrail.errors import DataError

arrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")
PAIR = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])


def blob(number: int) -> bytes:
    return np.random.default_rng(number).bytes(30 + number % 5)


def write(path: Path, numbers: range, label: list[Any] | None = None) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    images = arrow.array([{"bytes": blob(i), "path": None} for i in numbers], PAIR)
    label = [i % 3 for i in numbers] if label is None else label
    parquet.write_table(arrow.table({"image": images, "label": arrow.array(label)}), path, row_group_size=3)
    return path


@pytest.mark.parametrize("under", ["", "data"])
@pytest.mark.parametrize("ending", ["", "-0123456789abcdef"])
def test_splits_are_found_by_the_hubs_names_and_read_in_order(tmp_path: Path, under: str, ending: str) -> None:
    folder = tmp_path / under
    for name, numbers in (
        ("test-00000-of-00001", range(50, 54)),
        ("train-00001-of-00002", range(7, 12)),
        ("train-00000-of-00002", range(7)),
        ("validation-00000-of-00001", range(40, 43)),
    ):
        write(folder / f"{name}{ending}.parquet", numbers)
    splits = parquet_splits(tmp_path)
    assert list(splits) == ["train", "validation", "test"]
    train = splits["train"]
    assert [train.read(i) for i in range(len(train))] == [blob(i) for i in range(12)]
    assert train.labels.tolist() == [i % 3 for i in range(12)]
    assert train.name(8) == f"train-00001-of-00002{ending}.parquet row 1"
    with pytest.raises(DataError, match=r"several splits: train, validation, test. Open them with parquet_splits"):
        ParquetSource(tmp_path)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00003.parquet", range(2))
    write(tmp_path / "train-00002-of-00003.parquet", range(2))
    with pytest.raises(DataError, match=r"expected 3 parts of train; 1 .*train-00001-of-00003.parquet"):
        parquet_splits(tmp_path)
    write(tmp_path / "train-00000-of-00001.parquet", range(2))
    with pytest.raises(DataError, match=r"train comes in \[1, 3\] parts at once"):
        parquet_splits(tmp_path)


def test_a_lone_file_of_another_name_is_all_there_is(tmp_path: Path) -> None:
    photos = write(tmp_path / "pilot" / "photos.parquet", range(4))
    for place in (photos, photos.parent):
        assert {name: len(source) for name, source in parquet_splits(place).items()} == {"all": 4}
    write(tmp_path / "pilot" / "others.parquet", range(4))
    assert list(parquet_splits(photos.parent)) == ["others", "photos"]


def test_one_file_is_a_split_and_plain_names_are_splits(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", range(4))
    write(tmp_path / "val.parquet", range(4, 6))
    assert {name: len(source) for name, source in parquet_splits(tmp_path).items()} == {"train": 4, "val": 2}
    assert list(parquet_splits(tmp_path / "val.parquet")) == ["val"]
    write(tmp_path / "validation-00000-of-00002.parquet", range(4))
    assert list(parquet_splits(tmp_path / "validation-00000-of-00002.parquet")) == ["validation"]
    assert len(ParquetSource([tmp_path / "val.parquet", tmp_path / "train.parquet"])) == 6


def test_places_without_parquet_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected parquet files in"):
        parquet_splits(tmp_path)
    with pytest.raises(DataError, match="there is no file or folder"):
        parquet_splits(tmp_path / "nowhere")


def test_a_split_that_lacks_classes_numbers_the_others_alike(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", range(3), ["cat", "ant", "dog"])
    write(tmp_path / "test.parquet", range(3), ["dog", "eel", "dog"])
    splits = parquet_splits(tmp_path)
    assert {source.class_names for source in splits.values()} == {("ant", "cat", "dog", "eel")}
    assert splits["test"].labels.tolist() == [2, 3, 2]
    write(tmp_path / "train.parquet", range(3), [0, 11, 2])
    write(tmp_path / "test.parquet", range(3), [0, 1, 2])
    splits = parquet_splits(tmp_path)
    assert {source.class_names for source in splits.values()} == {tuple(map(str, range(12)))}
    assert splits["test"].labels.tolist() == [0, 1, 2]


def test_a_row_with_a_path_alone_is_read_beside_the_file_and_never_outside(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "a.jpg").write_bytes(b"beside")
    (tmp_path / "secret").write_bytes(b"outside")
    paths = ["images/a.jpg", "images/b.jpg", "../secret", str(tmp_path / "secret"), None]
    images = arrow.array([{"bytes": None, "path": path} for path in paths] + [None], PAIR)
    file = folder / "train.parquet"
    parquet.write_table(arrow.table({"image": images, "label": arrow.array([0] * 6)}), file)
    source = ParquetSource(file)
    assert source.read(0) == b"beside"
    for index, reason in enumerate(("No such file", "not beside", "not beside", "no image", "no image"), start=1):
        with pytest.raises(ImageError, match=reason):
            source.read(index)


def test_damage_found_while_reading_is_an_error_of_that_image(tmp_path: Path) -> None:
    source = ParquetSource(write(tmp_path / "train.parquet", range(5)))
    (tmp_path / "train.parquet").write_bytes(b"gone")
    with pytest.raises(ImageError, match="damaged"):
        source.read(2)


def test_the_fingerprint_changes_with_samples_labels_and_order_and_with_nothing_else(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1.parquet", range(5)), write(tmp_path / "2.parquet", range(5, 10))
    moved = write(tmp_path / "elsewhere" / "1.parquet", range(5))
    same = ParquetSource([one]).fingerprint
    assert same == ParquetSource([one]).fingerprint == ParquetSource([moved]).fingerprint
    others = {
        same,
        ParquetSource([two]).fingerprint,
        ParquetSource([one, two]).fingerprint,
        ParquetSource([two, one]).fingerprint,
        ParquetSource([one], class_names=("a", "b", "c")).fingerprint,
        ParquetSource([write(one, range(5), [2, 1, 0, 0, 1])]).fingerprint,
    }
    assert len(others) == 6


def reader(source: ParquetSource, numbers: list[int]) -> list[bytes]:
    return [source.read(number) for number in numbers]


def test_workers_read_what_the_parent_reads(tmp_path: Path) -> None:
    source = ParquetSource(write(tmp_path / "train.parquet", range(20)))
    source.read(0)  # something is held already
    assert len(pickle.dumps(source)) < 3000
    copy = pickle.loads(pickle.dumps(source))
    assert reader(copy, [19, 3]) == [blob(19), blob(3)]
    assert copy.fingerprint == source.fingerprint


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_forked_workers_read_what_the_parent_reads(tmp_path: Path) -> None:
    source = ParquetSource(write(tmp_path / "train.parquet", range(20)))
    source.read(0)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        got = pool.starmap(reader, [(source, [1, 18]), (source, [17, 0])])
    assert got == [[blob(1), blob(18)], [blob(17), blob(0)]]
