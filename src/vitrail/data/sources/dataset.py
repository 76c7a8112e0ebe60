"""What a Python program holds: torch datasets, lists of pairs, arrays; items are read when they are needed."""

import contextlib
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset as TorchSubset

from vitrail.data.decode import ImageError, Pixels
from vitrail.data.preprocess import read_image
from vitrail.data.source import Source
from vitrail.data.sources.memory import MemorySource, checked_names
from vitrail.errors import DataError
from vitrail.files import fingerprint_of, image_hash, short_hash

IMAGES, LABELS = ("image", "img", "pixel_values"), ("label", "labels", "target")  # keys of items
LOOKED_AT = 32  # items of a dataset whose contents are part of its fingerprint
MOST_CLASSES = 1000  # and ten for each image: more that are not named are a mistake
EXPECTED = (
    "expected a dataset that has a length and gives (image, label) by number, a pair (images, labels), or splits by "
    'name: {"train": ..., "val": ...}'
)
Progress = Callable[[str, int, int], None]  # what is done, how much of it, and of how much


class DatasetSource(Source):
    """The items of a map-style dataset, each an image with its label, or alone where its label is -1."""

    def __init__(self, dataset: Any, labels: NDArray[np.int64], class_names: tuple[str, ...]) -> None:  # noqa: ANN401
        self.dataset, self.class_names, self._labels = dataset, class_names, labels

    @property
    def fingerprint(self) -> str:
        """A short text that changes with the labels, the classes, and the contents of items here and there."""
        if not self._fingerprint:
            some = np.unique(np.linspace(0, len(self) - 1, min(LOOKED_AT, len(self))).astype(np.int64))
            parts = "".join(self._hash(index) for index in some.tolist())
            self._fingerprint = fingerprint_of(parts, self._labels, "\0".join(self.class_names))
        return self._fingerprint

    def read(self, index: int) -> bytes | Pixels:
        """Give the image of an item; an item that its dataset cannot read is an `ImageError`."""
        return _image(self.dataset, self._within(index))

    def name(self, index: int) -> str:
        """Give an item's path where the dataset lists its files, as torchvision's do, else its number."""
        root, indices = _behind(self.dataset)
        listed = getattr(root, "samples", None)
        entry = listed[indices[index]] if isinstance(listed, list) else None
        return entry[0] if isinstance(entry, tuple) and isinstance(entry[0], str) else f"item {index}"

    def _hash(self, index: int) -> str:
        try:
            return image_hash(self.read(index)).hex()
        except ImageError:
            return short_hash(self.name(index)).hex()


@dataclass(frozen=True)
class _Pairs:
    """Images of any kind and their labels, as a dataset."""

    images: Any
    targets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.images[index], int(self.targets[index])


def python_splits(
    data: Mapping[str, Any], *, unlabeled: bool = False, progress: Progress | None = None
) -> dict[str, Source]:
    """Open sources, datasets and arrays by the names of their splits, with one list of classes for all."""
    if not data or not all(isinstance(name, str) for name in data):
        raise DataError(f"{EXPECTED}; got names {list(data)!r:.200}.")
    made: dict[str, Any] = {
        split: _paired(*part, unlabeled=unlabeled) if _is_pair(part) else part for split, part in data.items()
    }
    held = {split: part for split, part in made.items() if not isinstance(part, Source)}
    labels = {split: _labels(part, unlabeled=unlabeled, progress=progress) for split, part in held.items()}
    names = set[tuple[str, ...]]().union(*map(_class_names, made.values()))
    if len(names) > 1:
        raise DataError(
            "splits, and datasets that are joined, must have the same classes, in the same order; theirs differ. "
            "Give each all `classes`."
        )
    most = max((int(found.max()) for found in labels.values()), default=-1)
    count = sum(map(len, labels.values()))
    if not names and most >= MOST_CLASSES + 10 * count:
        raise DataError(
            f"a label is {most}, and there are {count:,} images: no classes that are numbered from 0 reach so far. "
            "Number them so, or give `classes`."
        )
    class_names = names.pop() if names else tuple(map(str, range(most + 1)))
    if most >= len(class_names):
        raise DataError(f"labels must be below {len(class_names)}, the number of classes; got {most}. Name them all.")
    for split, part in held.items():
        if _is_batch(part) and (class_names or not unlabeled):
            made[split] = MemorySource(part.images, labels[split], class_names)
        else:
            made[split] = DatasetSource(part, labels[split], class_names)
    return made


def _is_pair(part: Any) -> bool:  # noqa: ANN401
    """Tell (images, labels), also as a list where the first are arrays, from a dataset of two items."""
    several = isinstance(part, list) and len(part) == 2 and getattr(part[0], "ndim", 0) == 4
    return several or (isinstance(part, tuple) and len(part) == 2)


def _is_batch(part: Any) -> bool:  # noqa: ANN401
    return isinstance(part, _Pairs) and isinstance(part.images, np.ndarray | Tensor)


def _paired(images: Any, labels: Any, *, unlabeled: bool = False) -> _Pairs:  # noqa: ANN401
    """Read (images, labels): arrays of pixels get an axis of channels where they have none, tensors theirs first."""
    try:
        labels = np.full(len(images), -1) if unlabeled and labels is None else labels
        targets = _whole_numbers(labels, len(images))
    except TypeError as error:  # something without a length
        raise DataError(f"{EXPECTED}; got a pair of {type(images).__name__} and {type(labels).__name__}.") from error
    if targets is None:
        number = " Number the names from 0, and give them as `classes` of a dataset." if _is_text(labels) else ""
        raise DataError(f"labels must be {len(images)} whole numbers, one for each image; got {labels!r:.100}.{number}")
    if isinstance(images, np.ndarray | Tensor) and not str(images.dtype).endswith("uint8"):
        return _Pairs(images, targets)  # refused where it is read, by the shape that it has
    if isinstance(images, np.ndarray | Tensor) and images.ndim == 3:
        images = images[:, :, :, None] if isinstance(images, np.ndarray) else images[:, None]
    if isinstance(images, Tensor) and images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.permute(0, 3, 1, 2)
    return _Pairs(images, targets)


def _is_text(labels: Any) -> bool:  # noqa: ANN401
    return isinstance(labels, str) or (isinstance(labels, list | tuple | np.ndarray) and isinstance(labels[0], str))


def _whole_numbers(labels: Any, count: int) -> NDArray[np.int64] | None:  # noqa: ANN401
    """Read a row of whole numbers, one for each item; None where it is something else."""
    try:
        found = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    except (ValueError, TypeError):  # rows of different lengths
        return None
    whole = found.dtype.kind in "iu" or not found.size
    return found.astype(np.int64) if whole and found.shape == (count,) else None


def _labels(dataset: Any, *, unlabeled: bool, progress: Progress | None) -> NDArray[np.int64]:  # noqa: ANN401
    """Find the label of every item: as the dataset lists them (`targets`, `labels`), else by reading every item."""
    if isinstance(dataset, str | bytes) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(f"{EXPECTED}; got {type(dataset).__name__}.")
    count = len(dataset)
    if not count:
        raise DataError("expected a dataset of images; it holds none.")
    if _is_batch(dataset):
        return dataset.targets
    with contextlib.suppress(ImageError):  # one bad item; what is no image at all is said at once
        _image(dataset, 0)
    root, indices = _behind(dataset)
    for listed in (getattr(root, name, None) for name in ("targets", "labels")):
        found = None if listed is None else _whole_numbers(listed, len(root))
        if found is not None and _agree(dataset, found[indices]):
            return found[indices]
    labels = np.full(count, -1, dtype=np.int64)
    for index in range(count):
        try:
            label = _item(dataset, index)[1]
        except ImageError as error:
            raise DataError(
                f"item {index} of the dataset {error}. Repair or remove it, or list the labels as `targets`."
            ) from error
        if label is not None or not unlabeled:
            labels[index] = _label(label, index)
        if progress is not None:
            progress("reading labels", index + 1, count)
    return labels


def _agree(dataset: Any, labels: NDArray[np.int64]) -> bool:  # noqa: ANN401
    """Whether items here and there have the labels that are listed: a transform of targets may change them."""
    for index in {0, len(labels) // 2, len(labels) - 1}:
        with contextlib.suppress(ImageError):
            if _label(_item(dataset, index)[1], index) != labels[index]:
                return False
    return True


def _label(label: Any, index: int) -> int:  # noqa: ANN401
    try:
        found = operator.index(label)
    except TypeError as error:
        what = "no label" if label is None else f"the label {label!r:.60}"
        number = " Number the names, and list them as the dataset's `classes`." if _is_text(label) else ""
        raise DataError(
            f"labels must be whole numbers, from 0; item {index} of the dataset has {what}.{number}"
        ) from error
    if found < -1:
        raise DataError(f"labels must be whole numbers, from 0; item {index} of the dataset has {found}.")
    return found


def _image(dataset: Any, index: int) -> bytes | Pixels:  # noqa: ANN401
    """Give what the image of an item is; an item that holds none is refused by its number."""
    image = _item(dataset, index)[0]
    if isinstance(image, tuple | list):
        what = f"a {type(image).__name__} of {len(image)}"
        raise DataError(f"item {index} of the dataset is {what}; expected an image and its label, (image, label).")
    try:
        return read_image(image)
    except DataError as error:
        numbered = str(error) if isinstance(error, ImageError) else f"item {index} of the dataset: {error}"
        raise type(error)(numbered) from error


def _item(dataset: Any, index: int) -> tuple[Any, Any]:  # noqa: ANN401
    """Give the image and the label of an item; no label where it is an image alone."""
    try:
        item = dataset[index]
    except Exception as error:  # whatever a dataset meets in a damaged file
        raise ImageError(f"cannot be read: {type(error).__name__}: {error}") from error
    if isinstance(item, Mapping):  # as the Hugging Face library gives them
        image, label = (next((item[key] for key in keys if key in item), None) for keys in (IMAGES, LABELS))
        if image is None:
            raise DataError(f"item {index} of the dataset has {[*item]!r:.100}; expected 'image' and 'label'.")
        return image, label
    return (item[0], item[1]) if isinstance(item, tuple | list) and len(item) == 2 else (item, None)


def _behind(dataset: Any) -> tuple[Any, NDArray[np.int64]]:  # noqa: ANN401
    """Look behind torch's subsets: the dataset that they are of, and the numbers of the items there."""
    indices = np.arange(len(dataset))
    while isinstance(dataset, TorchSubset):
        indices = np.asarray(dataset.indices)[indices]
        dataset = dataset.dataset
    return dataset, indices


def _class_names(dataset: Any) -> set[tuple[str, ...]]:  # noqa: ANN401
    """Read the names of the classes where the dataset has them: `classes`, as of torchvision, or `class_names`.

    Several lists where datasets of several are joined.
    """
    if isinstance(dataset, Source):
        return {dataset.class_names}
    root = _behind(dataset)[0]
    if isinstance(root, ConcatDataset):
        return set[tuple[str, ...]]().union(*map(_class_names, root.datasets))
    features = getattr(root, "features", None)
    told = getattr(features.get("label"), "names", None) if isinstance(features, Mapping) else None
    for names in (getattr(root, "classes", None), getattr(root, "class_names", None), told):
        if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
            return {checked_names(names)}
    return set()
