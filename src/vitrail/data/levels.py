"""How bright images are: the mean and deviation of their levels, which models are fed by."""

from typing import NamedTuple

import numpy as np

from vitrail.data.decode import ImageError, OpenImage, with_channels
from vitrail.data.source import Source
from vitrail.data.sources.remote import RemoteShards

LOOKED_AT = 256  # images, spread over a source


class Levels(NamedTuple):
    """Mean and deviation of the levels from 0 to 1, by channel, of so many images, each of which counts the same."""

    images: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def as_one(self) -> "Levels":
        """Give one number for all channels where they are alike, as in gray images."""
        alike = len({*self.mean}) == len({*self.deviation}) == 1
        return self._replace(mean=self.mean[:1], deviation=self.deviation[:1]) if alike else self


def measure_levels(source: Source, channels: int = 3, most: int = LOOKED_AT) -> Levels | None:
    """Measure all images of a source, or many, spread over it; None for a stream, or where none can be decoded."""
    if isinstance(source, RemoteShards) or not len(source):
        return None
    moments = []
    for index in np.unique(np.linspace(0, len(source) - 1, min(most, len(source))).astype(np.int64)).tolist():
        try:
            data = source.read(index)
            pixels = OpenImage(data).pixels(channels=channels) if isinstance(data, bytes) else data
        except ImageError:
            continue
        levels = with_channels(pixels, channels).reshape(-1, channels) / 255
        moments.append((levels.mean(axis=0), (levels**2).mean(axis=0)))
    if not moments:
        return None
    mean, square = np.mean(moments, axis=0)
    deviation = np.sqrt(np.maximum(square - mean**2, 0))
    return Levels(len(moments), *(tuple(np.round(each, 6).tolist()) for each in (mean, deviation)))
