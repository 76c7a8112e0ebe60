"""What every source of images offers: samples by number, with their labels and names; nothing is decoded."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import Pixels
from vitrail.data.order import Order, Share, WholeOrder
from vitrail.errors import DataError


class Source(ABC):
    """Labelled images by number.

    It is given to worker processes, so it must be picklable and cheap to copy: long lists of names are kept as one
    buffer of bytes with offsets (`Names`), never as objects, whose counters would copy the pages of every process.
    """

    class_names: tuple[str, ...]

    @property
    @abstractmethod
    def labels(self) -> NDArray[np.int64]:
        """The label of every sample; its length is the source's."""

    @abstractmethod
    def read(self, index: int) -> bytes | Pixels:
        """Give the encoded bytes of an image, or its pixels (uint8, H W C) where the source holds pixels.

        What cannot be read raises `ImageError` with the reason; OSErrors are turned into it.
        """

    @abstractmethod
    def name(self, index: int) -> str:
        """Name a sample for people: a path, a row of a file, a member of an archive."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A short text that changes when the samples do: names, order, labels; for caches and provenance."""

    def labels_of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the labels of the samples of a turn, which `order` has numbered."""
        return self.labels[samples]

    def order(self, share: Share, *, seed: int, shuffle: bool) -> Order:
        """Say in which order the samples are read."""
        return WholeOrder(len(self), share, seed=seed, shuffle=shuffle)

    def __len__(self) -> int:
        return len(self.labels)


def check_limit(bad: Sequence[tuple[str, str]], count: int, size: int, limit: float, more: str) -> None:
    """Stop where more images cannot be read than may; `bad` are names and reasons of some, `more` how to allow more."""
    if count > limit * size:
        some = "; ".join(f"{name}: {reason}" for name, reason in bad[:5])
        raise DataError(
            f"{count:,} of {size:,} images cannot be read, over the limit of {limit:.1%}: {some}. "
            f"Repair or remove them (vitrail data check lists all), or allow more: {more}."
        )


class Names:
    """Many short texts in one buffer: sixteen bytes each and the text, whatever their number."""

    def __init__(self, texts: list[str]) -> None:
        encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
        self._ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        self._bytes = np.frombuffer(b"".join(encoded), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self._ends):
            raise IndexError(index)
        start = int(self._ends[index - 1]) if index else 0
        return self._bytes[start : int(self._ends[index])].tobytes().decode("utf-8", "surrogateescape")
