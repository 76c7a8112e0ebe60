"""Images with the labels that a model gave them: which are taken, and as a source (Noisy Student, Xie et al., 2020)."""

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import Pixels
from vitrail.data.source import Source
from vitrail.files import short_hash


def choose_pseudo(
    labels: NDArray[np.int64],
    confidence: NDArray[np.floating],
    classes: int,
    *,
    least: float,
    balanced: bool,
    per_class: int | None = None,
) -> NDArray[np.int64]:
    """Give the places of the images to learn from, rising: those as sure as this at least, that have an answer.

    Balanced, each class has as many, `per_class` or the mean of those that have any: the surest of more, and of fewer
    each again, the surest first. Unbalanced, `per_class` is the most of a class.
    """
    sure = (labels >= 0) & (np.nan_to_num(confidence, nan=-1.0) >= least)
    members = [np.flatnonzero(sure & (labels == number)) for number in range(classes)]
    members = [some[np.argsort(-confidence[some], kind="stable")] for some in members if len(some)]
    if not members:
        return np.zeros(0, np.int64)
    if not balanced:
        return np.sort(np.concatenate([some[:per_class] for some in members])).astype(np.int64)
    count = per_class or round(sum(map(len, members)) / len(members))
    return np.sort(np.concatenate([np.resize(some, count) for some in members])).astype(np.int64)


class PseudoLabeled(Source):
    """Some images of a source, perhaps several times, with labels of their own in its place."""

    def __init__(
        self,
        source: Source,
        numbers: NDArray[np.int64],
        labels: NDArray[np.int64],
        class_names: tuple[str, ...],
    ) -> None:
        self.source, self.numbers = source, np.array(numbers, dtype=np.int64)
        self._labels = np.array(labels, dtype=np.int64)
        self.class_names = class_names

    def read(self, index: int) -> bytes | Pixels:
        """Read from the source."""
        return self.source.read(int(self.numbers[self._within(index)]))

    def name(self, index: int) -> str:
        """Name a sample as its source does."""
        return self.source.name(int(self.numbers[self._within(index)]))

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """The source's."""
        return self.source.shape

    def read_many(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read from the source."""
        return self.source.read_many(self.numbers[indices])

    @property
    def fingerprint(self) -> str:
        """A digest of the source's, of the numbers chosen, and of the labels given."""
        parts = (self.source.fingerprint, self.numbers.tobytes(), self._labels.tobytes(), "\0".join(self.class_names))
        return f"pseudo-{short_hash(*parts).hex()}"
