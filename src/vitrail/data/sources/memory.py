"""Images that are in memory already, as pixels; also the sample in the box, so that all runs without a download."""

from collections.abc import Sequence
from importlib.resources import as_file, files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.decode import Pixels
from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.files import fingerprint_of


class MemorySource(Source):
    """Pixels in memory: an array N H W C or a tensor N C H W, 8 bits each, with a label for every image."""

    def __init__(
        self,
        images: NDArray[Any] | Tensor,
        labels: NDArray[Any] | Tensor | Sequence[int],
        class_names: Sequence[str],
        *,
        title: str = "image",
    ) -> None:
        self._images = _pixels(images)
        self.class_names = checked_names(class_names)
        self._labels = checked_labels(labels, len(self._images), len(self.class_names))
        self._title = title

    @property
    def fingerprint(self) -> str:
        """A short text that changes with the pixels, their shape, the labels and the classes."""
        if not self._fingerprint:
            shape, names = str(self._images.shape), "\0".join(self.class_names)
            self._fingerprint = fingerprint_of(shape, self._images, self._labels, names)
        return self._fingerprint

    def read(self, index: int) -> Pixels:
        """Give a copy of an image's pixels."""
        return self._images[self._within(index)].copy()

    def name(self, index: int) -> str:
        """Give the title and the number of an image."""
        return f"{self._title} {self._within(index)}"


def checked_names(class_names: Sequence[str], *, least: int = 1) -> tuple[str, ...]:
    """Read the names of classes: texts, each once, and not fewer than `least`."""
    names = tuple(class_names)
    texts = not isinstance(class_names, str) and all(isinstance(name, str) for name in names)
    if not texts or len(names) < least or len(set(names)) < len(names):
        few = "one or more texts" if least else "texts"
        raise DataError(f"class_names must be {few}, each once; got {class_names!r:.200}.")
    return names


def checked_labels(
    labels: NDArray[Any] | Tensor | Sequence[int], count: int, classes: int, *, least: int = 0
) -> NDArray[np.int64]:
    """Read whole numbers, one for each image, each the number of a class; -1, no label, where `least` allows it."""
    numbers = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise DataError(
            f"labels must be a row of whole numbers, one for each image; got {numbers.dtype} of shape {numbers.shape}."
        )
    if len(numbers) != count:
        raise DataError(f"labels must be as many as the images, {count}; got {len(numbers)}.")
    if int(numbers.min()) < least or int(numbers.max()) >= classes:
        raise DataError(
            f"labels must be from {least} to {classes - 1} for {classes} class names; got {numbers.min()} to "
            f"{numbers.max()}. Name every class, and count them from 0."
        )
    return numbers.astype(np.int64)


def sample_splits() -> dict[str, MemorySource]:
    """Open a part of Fashion-MNIST (Xiao et al., 2017): 2,000 grey images of 28x28 to train on, 1,000 to test."""
    with as_file(files("vitrail.data") / "sample" / "fashion.npz") as path, np.load(path, allow_pickle=False) as file:
        class_names = tuple(file["class_names"].tolist())
        return {
            split: MemorySource(
                file[f"{split}_images"][..., None], file[f"{split}_labels"], class_names, title=f"Fashion-MNIST {split}"
            )
            for split in ("train", "test")
        }


def _pixels(images: NDArray[Any] | Tensor) -> NDArray[np.uint8]:
    wanted = "a tensor N C H W" if isinstance(images, Tensor) else "an array N H W C"
    if images.ndim == 4:
        array = images.detach().cpu().permute(0, 2, 3, 1).numpy() if isinstance(images, Tensor) else images
        if array.dtype == np.uint8 and array.shape[3] in (1, 3) and array.size > 0:
            return np.ascontiguousarray(array)
    raise DataError(
        f"images must be {wanted} of uint8 with 1 or 3 channels, and not empty; got {images.dtype} of shape "
        f"{tuple(images.shape)}. Scale to 0..255 and add the axis of channels where it is missing."
    )
