"""Datasets and arrays of a program are the same images, labels and batches as the same files in a folder."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split

from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation
from vitrail.data.feed import evaluation_feed, train_feed
from vitrail.data.open import open_data
from vitrail.data.source import Source
from vitrail.data.sources.folder import FolderSource
from vitrail.errors import DataError

GENERATOR = np.random.RandomState(3)
COUNT, HEIGHT, WIDTH = 11, 30, 41
IMAGES = GENERATOR.randint(0, 256, (COUNT, HEIGHT, WIDTH, 3)).astype(np.uint8)
LABELS = np.arange(COUNT) % 3
NAMES = ("ant", "bee", "cat")


class Photos(Dataset[Any]):
    """A dataset as people write them; counts what is read."""

    def __init__(self, items: Any, **attributes: Any) -> None:
        self.items, self.reads = items, 0
        self.__dict__ |= attributes

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.items[index]


def tensor(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)


@pytest.fixture
def folder(tmp_path: Path) -> FolderSource:
    for index, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        place = tmp_path / "photos" / NAMES[label] / f"{index:03}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place)
    return FolderSource(tmp_path / "photos")


def batches(source: Source, *, workers: int = 0) -> list[torch.Tensor]:
    train = train_feed(
        source,
        (24, 16),
        batch=5,
        augmentation=Augmentation(jitter=0.3),
        preprocessing=Preprocessing(),
        workers=workers,
    )
    evaluation = evaluation_feed(source, (24, 16), batch=5, preprocessing=Preprocessing(), workers=workers)
    return [part for feed in (train, evaluation) for batch in feed.epoch(0) for part in (batch.images, batch.labels)]


def everything(folder: FolderSource) -> dict[str, Any]:
    """The images of a folder in its order, as every kind of thing that a program may hold."""
    order = [int(Path(folder.name(index)).stem) for index in range(COUNT)]
    images, labels = IMAGES[order], folder.labels
    paths = [folder.root / folder.name(index) for index in range(COUNT)]
    return {
        "PIL": Photos([(Image.fromarray(image), int(label)) for image, label in zip(images, labels, strict=True)]),
        "arrays": [(image, label) for image, label in zip(images, labels, strict=True)],
        "tensors": Photos([(tensor(image), torch.tensor(label)) for image, label in zip(images, labels, strict=True)]),
        "paths": Photos([(path, label) for path, label in zip(paths, labels, strict=True)], targets=labels.tolist()),
        "bytes": Photos([(path.read_bytes(), int(label)) for path, label in zip(paths, labels, strict=True)]),
        "hub": Photos([{"image": image, "label": int(label)} for image, label in zip(images, labels, strict=True)]),
        "torch": TensorDataset(torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)),
        "N H W C": (images, labels),
        "N C H W": (torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)),
        "N H W C of torch": (torch.from_numpy(images), labels.tolist()),
        "lists": ([str(path) for path in paths], labels.tolist()),
    }


def test_every_kind_gives_the_batches_of_the_folder(folder: FolderSource) -> None:
    expected = batches(folder)
    for kind, held in everything(folder).items():
        source = open_data(held)["all"]
        assert source.class_names == ("0", "1", "2"), kind
        np.testing.assert_array_equal(source.labels, folder.labels, err_msg=kind)
        for found, wanted in zip(batches(source), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, msg=kind)


def test_workers_read_a_dataset_as_this_process_does(folder: FolderSource) -> None:
    source = open_data(everything(folder)["PIL"])["all"]
    for found, wanted in zip(batches(source, workers=2), batches(folder), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.fingerprint == source.fingerprint


def test_labels_are_taken_from_the_dataset_where_it_lists_them() -> None:
    items = list(zip(IMAGES, LABELS.tolist(), strict=True))
    for attributes in ({"targets": LABELS.tolist()}, {"labels": LABELS}, {"targets": torch.from_numpy(LABELS)}):
        dataset = Photos(items, classes=list(NAMES), **attributes)
        source = open_data(dataset)["all"]
        assert dataset.reads <= 4
        assert source.class_names == NAMES
        np.testing.assert_array_equal(source.labels, LABELS)
    told: list[tuple[str, int, int]] = []
    dataset = Photos(items, targets=(2 - LABELS).tolist())  # its transform of targets says otherwise
    source = open_data(dataset, progress=lambda *step: told.append(step))["all"]
    np.testing.assert_array_equal(source.labels, LABELS)
    assert told[-1] == ("reading labels", COUNT, COUNT)


def test_subsets_of_torch_keep_classes_labels_and_names() -> None:
    items = list(zip(IMAGES, LABELS.tolist(), strict=True))
    files = [(f"{index}.png", int(label)) for index, label in enumerate(LABELS)]
    dataset = Photos(items, targets=LABELS.tolist(), classes=list(NAMES), samples=files)
    few = Subset(Subset(dataset, [9, 3, 1, 0]), [2, 0])
    source = open_data(few)["all"]
    assert source.labels.tolist() == [LABELS[1], LABELS[9]]
    assert (source.class_names, source.name(1)) == (NAMES, "9.png")
    np.testing.assert_array_equal(source.read(1), IMAGES[9])
    train, held = random_split(dataset, [7, 4], generator=torch.Generator().manual_seed(0))
    splits = open_data({"train": train, "validation": held})
    assert {name: len(split) for name, split in splits.items()} == {"train": 7, "val": 4}


def test_datasets_that_are_joined_keep_their_classes() -> None:
    items = list(zip(IMAGES, LABELS.tolist(), strict=True))
    few = Photos(items[:3], classes=list(NAMES))
    joined = ConcatDataset([Photos(items, classes=list(NAMES)), ConcatDataset([few, Photos(items)])])
    source = open_data(Subset(joined, [COUNT, 1, 0]))["all"]
    assert (source.labels.tolist(), source.class_names) == ([0, 1, 0], NAMES)
    other = Photos(items, classes=["bee", "ant", "cat"])
    with pytest.raises(DataError, match=r"joined, must have the same classes.*theirs differ"):
        open_data(ConcatDataset([few, other]))


def test_splits_have_one_list_of_classes(folder: FolderSource) -> None:
    splits = open_data({"train": (IMAGES, LABELS), "val": (IMAGES[:2], LABELS[:2])})
    assert [split.class_names for split in splits.values()] == [("0", "1", "2")] * 2
    splits = open_data({"train": folder, "val": (IMAGES[:2], LABELS[:2]), "test": str(folder.root)})
    assert [split.class_names for split in splits.values()] == [NAMES] * 3
    assert splits["train"] is folder is open_data(folder)["all"]
    with pytest.raises(DataError, match="the same classes"):
        open_data({"train": folder, "val": Photos([(IMAGES[0], 0)], classes=["one"])})


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_a_split_to_choose_by_has_several_names(name: str) -> None:
    assert list(open_data({"train": (IMAGES, LABELS), name: (IMAGES, LABELS)})) == ["train", "val"]


@pytest.mark.parametrize("others", [["eval"], ["testing"], ["val", "valid"], ["dev", "val"], ["all"], [3]])
def test_a_split_beside_train_that_nothing_would_read_is_refused(others: list[Any]) -> None:
    said = f"are train .*val .or valid, validation, dev. and test, each once; got train, {others[0]}"
    with pytest.raises(DataError, match=said):
        open_data(dict.fromkeys(["train", *others], (IMAGES, LABELS)))
    assert list(open_data({"monday": (IMAGES, LABELS)})) == ["monday"]


def test_a_fingerprint_follows_pixels_labels_and_classes() -> None:
    items = list(zip(IMAGES, LABELS.tolist(), strict=True))
    other = [(255 - IMAGES[0], 0), *items[1:]]
    kinds = [Photos(items), Photos(other), Photos([*items[:-1], (IMAGES[-1], 2)]), Photos(items, classes=list(NAMES))]
    kinds = [*kinds, (IMAGES, LABELS), (255 - IMAGES, LABELS)]
    assert len({open_data(kind)["all"].fingerprint for kind in kinds}) == len(kinds)
    assert open_data(Photos(items))["all"].fingerprint == open_data(items)["all"].fingerprint


def test_images_without_labels_are_taken_where_they_may_be() -> None:
    for labels in (None, np.full(COUNT, -1)):
        pair: Any = open_data((IMAGES, labels), unlabeled=True)["all"]
        assert pair.labels.tolist() == [-1] * COUNT
        assert np.array_equal(pair.read(4), IMAGES[4])
    source = open_data(list(IMAGES), unlabeled=True)["all"]
    assert (source.labels.tolist(), source.class_names) == ([-1] * COUNT, ())
    np.testing.assert_array_equal(source.read(3), IMAGES[3])
    with pytest.raises(DataError, match="item 0 of the dataset has no label"):
        open_data(list(IMAGES))


def test_gray_arrays_need_no_axis_of_channels() -> None:
    for images in (IMAGES[..., 0], torch.from_numpy(IMAGES[..., 0])):
        np.testing.assert_array_equal(open_data((images, LABELS))["all"].read(2), IMAGES[2, :, :, :1])


class Broken(Photos):
    """A dataset of which one item cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise OSError("a damaged file")
        return super().__getitem__(index)


def test_an_item_that_cannot_be_read_is_left_out_and_named() -> None:
    items = list(zip(IMAGES, LABELS.tolist(), strict=True))
    source = open_data(Broken(items, targets=LABELS.tolist()))["all"]
    feed = evaluation_feed(source, (24, 16), batch=20, preprocessing=Preprocessing(), bad_image_limit=0.2)
    (batch,) = feed.epoch(0)
    assert batch.samples.tolist() == [*range(7), *range(8, COUNT)]
    assert [tuple(skip) for skip in batch.skipped] == [(7, "item 7", "cannot be read: OSError: a damaged file")]
    with pytest.raises(DataError, match=r"item 7 of the dataset cannot be read.*or list the labels as `targets`"):
        open_data(Broken(items))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([(torch.rand(3, 8, 9), 0)], r"item 0 .*8 bits.*got float32 of shape \(3, 8, 9\)\. Give the image before tr"),
        (
            [(torch.ones(3, 8, 9, dtype=torch.int64), 0)],
            r"got int64 of shape \(3, 8, 9\)\. Where.*\.to.torch\.uint8",
        ),
        ([(IMAGES[0] > 9, 0)], r"got bool of shape \(30, 41, 3\)\. Where its numbers are levels.*add \.astype"),
        ([(IMAGES[0], 0, {"camera": 3})], r"item 0 of the dataset is a tuple of 3; expected an image and its label"),
        ((IMAGES / 255, LABELS), "of uint8.*got float64"),
        ((torch.from_numpy(IMAGES) / 255, LABELS), r"of uint8.*got torch\.float32 of shape \(11, 30, 41, 3\)"),
        ((IMAGES, LABELS[:3]), "labels must be 11 whole numbers"),
        ((IMAGES, LABELS / 2), "labels must be 11 whole numbers"),
        ([(IMAGES[0], "cat")], "item 0 of the dataset has the label 'cat'"),
        ([(IMAGES[0], 0.5)], "labels must be whole numbers"),
        ([(IMAGES[0], -7)], "has -7"),
        ([], "holds none"),
        ((IMAGES[:0], []), "not empty|holds none"),
        (iter([(IMAGES[0], 0)]), "expected a dataset that has a length.*got list_iterator"),
        (7, "got int"),
        ({}, "splits by name"),
        (
            (IMAGES, [*range(COUNT - 1), 10**9]),
            "a label is 1000000000, and there are 11 images: no classes that are numbered from 0",
        ),
        (Photos([(IMAGES[0], 3)], classes=list(NAMES)), "below 3, the number of classes; got 3"),
    ],
)
def test_what_is_no_dataset_is_refused_with_what_to_give(data: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        open_data(data)


def test_an_item_of_floats_is_named_when_it_is_read() -> None:
    source = open_data(Photos([(IMAGES[0], 0), (torch.rand(3, 8, 9), 1)], targets=[0, 1]))["all"]
    with pytest.raises(DataError, match=r"item 1 of the dataset: expected .* got float32 of shape \(3, 8, 9\)"):
        source.read(1)


@pytest.mark.parametrize("keys", [("image", "label"), ("img", "target"), ("pixel_values", "labels")])
def test_items_may_be_dicts_by_usual_keys(keys: tuple[str, str]) -> None:
    items = [dict(zip(keys, (image, int(label)), strict=True)) for image, label in zip(IMAGES, LABELS, strict=True)]
    source = open_data(Photos(items, classes=NAMES))["all"]
    assert source.labels.tolist() == LABELS.tolist()
    assert np.array_equal(np.asarray(source.read(4)), IMAGES[4])


def test_what_items_hold_instead_is_said() -> None:
    with pytest.raises(
        DataError, match=r"item 0 of the dataset has \['photo', 'label'\]; expected 'image' and 'label'"
    ):
        open_data(Photos([{"photo": IMAGES[0], "label": 0}]))
    with pytest.raises(DataError, match="Number the names from 0"):
        open_data((IMAGES, [NAMES[label] for label in LABELS]))
    with pytest.raises(DataError, match="Number the names, and list them"):
        open_data(Photos([(IMAGES[0], "ant")]))


def test_a_list_of_arrays_and_labels_is_the_pair() -> None:
    pair, several = open_data((IMAGES, LABELS))["all"], open_data([IMAGES, LABELS])["all"]
    assert pair.fingerprint == several.fingerprint
