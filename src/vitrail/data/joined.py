"""Several sources as one."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import Pixels
from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.files import short_hash


class Joined(Source):
    """The samples of several sources of the same classes, one source after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        if len({source.class_names for source in self.sources}) != 1:
            raise DataError("expected sources of the same classes, in the same order. Open them as splits of one set.")
        self.class_names = self.sources[0].class_names
        self._labels = np.concatenate([source.labels for source in self.sources])
        self._labels.flags.writeable = False
        self._ends = np.cumsum([len(source) for source in self.sources])

    @property
    def labels(self) -> NDArray[np.int64]:
        """The labels of all, in turn."""
        return self._labels

    def read(self, index: int) -> bytes | Pixels:
        """Read from the source that the sample is of."""
        source, place = self._place(index)
        return source.read(place)

    def name(self, index: int) -> str:
        """Name a sample as its source does."""
        source, place = self._place(index)
        return source.name(place)

    @property
    def fingerprint(self) -> str:
        """A digest of the sources', in their order."""
        texts = "\0".join(source.fingerprint for source in self.sources)
        return f"joined-{short_hash(texts).hex()}"

    def _place(self, index: int) -> tuple[Source, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._ends, index, side="right"))
        source = self.sources[number]
        return source, index - int(self._ends[number]) + len(source)
