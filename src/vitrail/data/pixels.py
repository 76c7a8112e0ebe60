"""Pixels: what decoding gives, how numbers of any kind become levels, and the channels that are wanted of them.

A level is from 0 to 255: whole (uint8), as in photographs, or real (float32) where a model's preprocessing has a
`value_range`, so that nothing of 16 bits, or of real numbers, is rounded away.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError

Pixels = NDArray[Any]  # H W C, levels from 0 to 255: uint8, or float32
Numbers = NDArray[Any]  # H W C, of any kind, as a file has them
Range = tuple[float, float]  # the numbers of a file that are black and white
BAND = 1 << 22  # pixels that are converted at once
MEASURE = "Set value_range=LOW,HIGH, the numbers that are black and white: vitrail data check measures them"


class ImageError(DataError):
    """One image that cannot be read or decoded; the message is the reason, in a few words."""


def to_levels(numbers: Numbers, value_range: Range | None) -> Pixels:
    """Make levels from 0 to 255 of numbers: real ones by the range, or whole ones of 8 and 16 bits without it."""
    kind = numbers.dtype
    if kind.kind not in "biuf":
        raise ImageError(f"numbers of the kind {kind}; expected whole or real ones")
    if value_range is None:
        if kind == np.uint8:
            return numbers
        if kind == np.bool_:
            return np.where(numbers, 255, 0).astype(np.uint8)
        if kind == np.uint16:
            return ((numbers.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 65535 is 255
        raise ImageError(f"numbers of the kind {kind}, whose range is not said. {MEASURE}")
    low, high = value_range
    if kind.kind in "bu" and kind.itemsize == 1 and not 1 < high <= 255:
        raise ImageError(f"levels of 8 bits; the model reads numbers from {low:g} to {high:g}")
    if kind.kind in "iu" and high <= 1:
        raise ImageError(f"whole numbers of {8 * kind.itemsize} bits; the model reads numbers from {low:g} to {high:g}")
    exact = np.float64 if kind.itemsize == 8 or (kind.kind in "iu" and kind.itemsize == 4) else np.float32
    levels = ((numbers.astype(exact) - exact(low)) * exact(255 / (high - low))).astype(np.float32)
    if kind.kind == "f" and not (sound := np.isfinite(levels)).all():
        raise ImageError(f"{int((~sound).sum()):,} of its numbers are NaN or infinite. Fill them in before")
    return levels


def with_channels(pixels: Pixels, channels: int) -> Pixels:
    """Repeat gray thrice, or weigh colors to gray (ITU-R 601), where that is wanted; other numbers are refused."""
    found = pixels.shape[2]
    if found == channels:
        return pixels
    if (found, channels) == (1, 3):
        return np.repeat(pixels, channels, axis=2)
    if (found, channels) == (3, 1):
        weights = np.array([19595, 38470, 7471], dtype=np.uint32)
        if pixels.dtype == np.float32:
            return pixels @ (weights / 65536).astype(np.float32)[:, None]
        parts = np.array_split(pixels, 1 + pixels.size // (3 * BAND))  # in bands, which take four times their memory
        return np.concatenate([(part @ weights + 32768 >> 16).astype(np.uint8) for part in parts])[:, :, None]
    raise ImageError(f"{found} channel{'s'[: found != 1]}; the model reads {channels}")


def to_picture(numbers: Numbers) -> NDArray[np.uint8]:
    """Show numbers of any kind and of any number of channels: the first three, or one, from their least to their most.

    Levels of 8 bits are shown as they are.
    """
    shown = numbers[:, :, : 3 if numbers.shape[2] >= 3 else 1]
    if shown.dtype == np.uint8:
        return shown
    real = np.nan_to_num(shown.astype(np.float32), posinf=0, neginf=0)
    low, high = (np.percentile(real, share, axis=(0, 1), keepdims=True) for share in (1, 99))
    return ((real - low) / np.maximum(high - low, 1e-12) * 255).clip(0, 255).round().astype(np.uint8)


def owned(pixels: Pixels) -> Pixels:
    """Give pixels that a tensor may share: their own, and in order; a copy where they are not."""
    return pixels if pixels.flags.writeable and min(pixels.strides) >= 0 else pixels.copy()
