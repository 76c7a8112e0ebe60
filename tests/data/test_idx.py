"""The idx files of MNIST and its family, packed or not, and every way in which they can be wrong."""

import gzip
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.sources.idx import idx_splits
from vitrail.errors import DataError

RANDOM = np.random.default_rng(1)
TRAIN = RANDOM.integers(0, 256, (11, 5, 7), dtype=np.uint8)
TEST = RANDOM.integers(0, 256, (3, 5, 7), dtype=np.uint8)
TRAIN_LABELS = np.array([0, 1, 2, 3, 1, 1, 0, 3, 2, 2, 0], dtype=np.uint8)
TEST_LABELS = np.array([4, 0, 2], dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(TRAIN)))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(TRAIN_LABELS))
    (tmp_path / "t10k-images.idx3-ubyte").write_bytes(idx(TEST))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(TEST_LABELS)))
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        idx_splits(folder)
    return str(caught.value)


def test_both_splits_come_with_their_pixels_labels_and_shared_classes(folder: Path) -> None:
    splits = idx_splits(folder)
    assert list(splits) == ["train", "test"]
    for split, images, labels in [("train", TRAIN, TRAIN_LABELS), ("test", TEST, TEST_LABELS)]:
        source = splits[split]
        assert source.labels.tolist() == labels.tolist()
        assert source.class_names == ("0", "1", "2", "3", "4")
        assert all(np.array_equal(source.read(i), images[i, :, :, None]) for i in range(len(source)))
    assert splits["train"].name(7) == "train-images-idx3-ubyte.gz 7"
    named = idx_splits(folder, class_names=("a", "b", "c", "d", "e"))
    assert named["test"].class_names == ("a", "b", "c", "d", "e")
    assert named["test"].fingerprint != splits["test"].fingerprint


def test_a_source_survives_pickling(folder: Path) -> None:
    source = idx_splits(folder)["train"]
    copy = pickle.loads(pickle.dumps(source))
    assert np.array_equal(copy.read(10), source.read(10))
    assert copy.fingerprint == source.fingerprint


def test_a_split_may_be_alone_but_not_half(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte").unlink()
    assert "has only train-images-idx3-ubyte.gz; expected" in refusal(folder)
    (folder / "train-images-idx3-ubyte.gz").unlink()
    assert list(idx_splits(folder)) == ["test"]
    (folder / "t10k-images.idx3-ubyte").unlink()
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    assert "has no idx files; expected train-images-idx3-ubyte," in refusal(folder)
    assert "Check the path." in refusal(folder / "none")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"must start with 00 00 08 03, bytes in 3 axes, and its sizes; got nothing. Download it again."),
        (idx(TRAIN_LABELS)[:16], "got 00 00 08 01 00 00 00 0b"),
        (idx(TRAIN)[:9], "got 00 00 08 03 00 00 00 0b 00"),
        (b"\0\0\x0d" + idx(TRAIN)[3:], "got 00 00 0d 03"),
        (idx(TRAIN)[:-1], "is cut: its header says 385 bytes, it has 400."),
        (idx(TRAIN) + b"x", "must hold the 385 bytes that its header says; got more."),
        (idx(TRAIN[:0]), "1 to 4096 pixels a side; its header says (0, 5, 7)"),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, 1, 4097, 1) + bytes(4097), "its header says (1, 4097, 1)"),
        (idx(TRAIN[:10]), "holds 10 images and train-labels-idx1-ubyte 11 labels; expected as many."),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_no_such_file_is_refused(folder: Path, data: bytes, message: str, packed: bool) -> None:
    path = folder / "train-images-idx3-ubyte.gz"
    if packed:
        path.write_bytes(gzip.compress(data))
        message = message.replace("is cut: its header says 385 bytes, it has 400.", "must hold the 385 bytes that")
    else:
        path.unlink()
        path.with_suffix("").write_bytes(data)
    assert message in refusal(folder)


def test_damaged_archives_are_refused(folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte.gz"
    sound = path.read_bytes()
    for damaged in (sound[:-9], sound[:40] + b"\xff\xff\xff" + sound[43:], sound[:-8] + bytes(8), b"no archive at all"):
        path.write_bytes(damaged)
        assert "train-images-idx3-ubyte.gz" in (message := refusal(folder))
        assert message.endswith("Download it again.")


def test_no_more_is_unpacked_than_the_header_says(folder: Path) -> None:
    path = folder / "train-images-idx3-ubyte.gz"
    tracemalloc.start()
    path.write_bytes(gzip.compress(idx(TRAIN) + bytes(200 << 20), 1))
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    assert "got more" in refusal(folder)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert peak < 2 << 20
    path.write_bytes(gzip.compress(struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 4096, 4096)))
    assert "is cut: its header says 72,057," in refusal(folder)
