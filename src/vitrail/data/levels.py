"""How bright images are: the mean and deviation of their levels, which models are fed by."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import ImageError, OpenImage, Pixels
from vitrail.data.pixels import BAND, with_channels
from vitrail.data.source import Source
from vitrail.data.sources.remote import RemoteShards
from vitrail.errors import DataError

LOOKED_AT = 256  # images, spread over a source
LEVELS = np.arange(256) / 255


class Levels(NamedTuple):
    """Mean and deviation of the levels from 0 to 1, by channel, of so many images, each of which counts the same."""

    images: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def as_one(self) -> "Levels":
        """Give one number for all channels where they are alike, as in gray images."""
        alike = len({*self.mean}) == len({*self.deviation}) == 1
        return self._replace(mean=self.mean[:1], deviation=self.deviation[:1]) if alike else self


def check_channels(source: Source, channels: int) -> None:
    """Refuse images of another number of channels than a model reads, by the first one; streams are not looked into."""
    if not channels or isinstance(source, RemoteShards) or not len(source):
        return
    try:
        data = source.read(0)
        found = OpenImage(data).channels if isinstance(data, bytes) else (data.shape[2],)
    except ImageError:
        return  # it is counted when its turn comes
    if channels in found or (channels, found[0]) in ((1, 3), (3, 1)):
        return
    said = f"{found[-1]} channel{'s'[: found[-1] != 1]}"
    raise DataError(
        f"{source.name(0)} has {said}; the model reads {channels}. Train it on such images with model.channels="
        f"{found[-1]} (--set model.channels={found[-1]}): the first layer of a checkpoint is then widened. "
        f"Or give images of {channels} channel{'s'[: channels != 1]}."
    )


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
        counts = _histograms(with_channels(pixels, channels)) / (pixels.shape[0] * pixels.shape[1])
        moments.append((counts @ LEVELS, counts @ LEVELS**2))
    if not moments:
        return None
    mean, square = np.mean(moments, axis=0)
    deviation = np.sqrt(np.maximum(square - mean**2, 0))
    return Levels(len(moments), *(tuple(np.round(each, 6).tolist()) for each in (mean, deviation)))


def _histograms(pixels: Pixels) -> NDArray[np.float64]:
    """Count the levels of each channel, C 256, a few rows at a time, since counting takes eight times their memory."""
    found = np.zeros((pixels.shape[2], 256))
    for rows in np.array_split(pixels, 1 + pixels.size // BAND):
        found += [np.bincount(channel.ravel(), minlength=256) for channel in np.moveaxis(rows, 2, 0)]
    return found
