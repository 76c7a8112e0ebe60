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

    def read(self, index: int) -> bytes | Pixels:
        """Read from the source that the sample is of."""
        source, place = self._place(index)
        return source.read(place)

    def name(self, index: int) -> str:
        """Name a sample as its source does."""
        source, place = self._place(index)
        return source.name(place)

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """That of all sources, where they are alike."""
        shapes = {source.shape for source in self.sources}
        return shapes.pop() if len(shapes) == 1 else None

    def read_many(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read from the sources that the samples are of, from each at once."""
        which = np.searchsorted(self._ends, indices, side="right")
        found = np.empty((len(indices), *(self.shape or ())), dtype=np.uint8)
        for number in np.unique(which).tolist():
            source, mine = self.sources[number], which == number
            found[mine] = source.read_many(indices[mine] - int(self._ends[number]) + len(source))
        return found

    @property
    def targets(self) -> NDArray[np.float32] | None:
        """Those of all sources, where all have such."""
        parts = [part for source in self.sources if (part := source.targets) is not None]
        return np.concatenate(parts) if len(parts) == len(self.sources) else None

    @property
    def fingerprint(self) -> str:
        """A digest of the sources', in their order."""
        texts = "\0".join(source.fingerprint for source in self.sources)
        return f"joined-{short_hash(texts).hex()}"

    def _place(self, index: int) -> tuple[Source, int]:
        number = int(np.searchsorted(self._ends, self._within(index), side="right"))
        source = self.sources[number]
        return source, index - int(self._ends[number]) + len(source)
