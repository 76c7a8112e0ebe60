"""How bright images are: the mean and deviation of their levels, which models are fed by."""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.decode import ImageError, OpenImage, Pixels
from vitrail.data.pixels import BAND, Numbers, Range, with_channels
from vitrail.data.source import Source
from vitrail.data.sources.remote import RemoteShards
from vitrail.errors import DataError

LOOKED_AT = 256  # images, spread over a source
HEADERS = 16  # images whose headers say of which kind all are
LEVELS = np.arange(256) / 255
WORDS = {"uint8": "8 bits", "uint16": "16 bits", "float32": "real numbers", "float64": "real numbers"}


class OpenArray:
    """Pixels of a source that holds them, in the words of `OpenImage`."""

    is_photograph = True

    def __init__(self, pixels: Pixels) -> None:
        self._pixels, self.channels = pixels, (pixels.shape[2],)

    def numbers(self) -> Numbers:
        """Give the pixels."""
        return self._pixels


class Levels(NamedTuple):
    """Mean and deviation of the levels from 0 to 1, by channel, of so many images, each of which counts the same.

    Of images that are no photographs also the numbers of their files: of which kind, by channel from which to which,
    and the range that holds them all.
    """

    images: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    kind: str | None = None
    least: tuple[float, ...] | None = None
    most: tuple[float, ...] | None = None
    value_range: Range | None = None  # None: levels of 8 bits

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def describe(self) -> str | None:
        """Say what the numbers are, and how all of them are kept; None of photographs."""
        if self.kind is None or self.least is None or self.most is None:
            return None
        channels = f"{len(self.least)} channel{'s'[: len(self.least) != 1]} of {self.kind}"
        low, high = min(self.least), max(self.most)
        kept = "" if self.value_range is None else "; value_range={:.7g},{:.7g} holds them".format(*self.value_range)
        return f"{channels}, from {low:.7g} to {high:.7g}{kept}"

    def as_one(self) -> "Levels":
        """Give one number for all channels where they are alike, as in gray images."""
        alike = len({*self.mean}) == len({*self.deviation}) == 1 and self.kind is None
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
        f"{source.name(0)} has {said}; the model reads {channels}. Train it on such images with "
        f"model.channels={found[-1]}: the first layer of a checkpoint is then made for them. "
        f"Or give images of {channels} channel{'s'[: channels != 1]}."
    )


def survey(
    source: Source, channels: int | None = None, most: int = LOOKED_AT, *, photographs: bool = True
) -> Levels | None:
    """Measure images of any kind, as one number for each of `channels`, their own where none are said.

    Photographs, of 8 bits, are measured as `measure_levels` does; of others the numbers of their files, as many as are
    of the kind and the channels of most. None where all are photographs and these are not wanted.
    """
    if isinstance(source, RemoteShards) or not len(source):
        return None
    kinds = Counter(
        (found.channels[0] if channels not in found.channels else channels, found.is_photograph)
        for found in (_opened(source, index) for index in _spread(source, HEADERS))
        if found is not None
    )
    own = channels if channels in (1, 3) else None
    if all(plain and count in (1, 3, own) for count, plain in kinds):
        return measure_levels(source, channels or 3, most) if photographs else None
    count = kinds.most_common(1)[0][0][0]
    reals = not all(plain for _, plain in kinds)
    moments: list[NDArray[np.float64]] = []
    types: Counter[np.dtype[Any]] = Counter()
    for index in _spread(source, most):
        opened = _opened(source, index)
        if opened is None or count not in opened.channels or opened.is_photograph == reals:
            continue
        try:
            numbers = opened.numbers()[:, :, :count]
        except ImageError:
            continue
        kind = numbers.dtype
        if (count, own) == (3, 1):
            numbers = with_channels(numbers.astype(np.float32), 1)
        if found := _moments(numbers):
            types[kind] += 1
            moments.append(np.stack(found))
    if not moments:
        return None
    mean, square = np.mean(moments, axis=0)[:2]
    least, greatest = np.min(moments, axis=0)[2], np.max(moments, axis=0)[3]
    kind = types.most_common(1)[0][0]
    value_range = range_of(kind, float(least.min()), float(greatest.max())) if reals else None
    low, high = value_range or (0.0, 255.0)
    mean, deviation = (mean - low) / (high - low), np.sqrt(np.maximum(square - mean**2, 0)) / (high - low)
    return Levels(
        images=len(moments),
        mean=tuple(float(f"{value:.6g}") for value in mean),
        deviation=tuple(float(f"{value:.6g}") for value in deviation),
        kind=WORDS.get(kind.name, kind.name),
        least=tuple(map(float, least)),
        most=tuple(map(float, greatest)),
        value_range=value_range,
    )


def range_of(kind: np.dtype[Any], least: float, most: float) -> Range:
    """Choose which numbers are black and white: whole bits, or 0 and 1, where they hold all; else the ends of all."""
    if kind.kind == "u":
        return 0.0, float(next(2**bits - 1 for bits in (8, 10, 12, 14, 16, 24, 32, 64) if most <= 2**bits - 1))
    if least >= 0 and most <= 1 and kind.kind == "f":
        return 0.0, 1.0
    return (least, most) if most > least else (least, least + 1)


def _spread(source: Source, most: int) -> list[int]:
    return np.unique(np.linspace(0, len(source) - 1, min(most, len(source))).astype(np.int64)).tolist()


def _opened(source: Source, index: int) -> OpenImage | OpenArray | None:
    try:
        data = source.read(index)
        return OpenImage(data) if isinstance(data, bytes) else OpenArray(data)
    except ImageError:
        return None


def _moments(numbers: Numbers) -> tuple[NDArray[np.float64], ...] | None:
    """Give mean, mean of squares, least and most of each channel, in bands; None where some are not finite."""
    count, sums, squares = numbers.shape[0] * numbers.shape[1], 0.0, 0.0
    for rows in np.array_split(numbers, 1 + numbers.size // BAND):
        real = rows.astype(np.float64)
        sums, squares = sums + real.sum(axis=(0, 1)), squares + (real**2).sum(axis=(0, 1))
    if not np.isfinite(squares).all():
        return None
    ends = (numbers.min(axis=(0, 1)).astype(np.float64), numbers.max(axis=(0, 1)).astype(np.float64))
    return np.asarray(sums / count), np.asarray(squares / count), *ends


def measure_levels(
    source: Source, channels: int = 3, most: int = LOOKED_AT, value_range: Range | None = None
) -> Levels | None:
    """Measure all images of a source, or many, as a model reads them; None for a stream, or where none is decoded."""
    if isinstance(source, RemoteShards) or not len(source):
        return None
    moments = []
    for index in _spread(source, most):
        try:
            data = source.read(index)
            if isinstance(data, bytes):
                data = OpenImage(data).pixels(channels=channels, value_range=value_range)
            pixels = with_channels(data, channels)
        except ImageError:
            continue
        if pixels.dtype != np.uint8:
            if found := _moments(pixels):
                moments.append((found[0] / 255, found[1] / 255**2))
            continue
        counts = _histograms(pixels) / (pixels.shape[0] * pixels.shape[1])
        moments.append((counts @ LEVELS, counts @ LEVELS**2))
    if not moments:
        return None
    mean, square = np.mean(moments, axis=0)
    deviation = np.sqrt(np.maximum(square - mean**2, 0))
    mean, deviation = (tuple(np.round(each, 6).tolist()) for each in (mean, deviation))
    return Levels(images=len(moments), mean=mean, deviation=deviation)


def _histograms(pixels: Pixels) -> NDArray[np.float64]:
    """Count the levels of each channel, C 256, a few rows at a time, since counting takes eight times their memory."""
    found = np.zeros((pixels.shape[2], 256))
    for rows in np.array_split(pixels, 1 + pixels.size // BAND):
        found += [np.bincount(channel.ravel(), minlength=256) for channel in np.moveaxis(rows, 2, 0)]
    return found
