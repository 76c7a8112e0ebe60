"""Masks as files: their numbers as they are, indexed PNGs to write, and polygons filled."""

import io
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from vitrail.data.decode import ImageError, OpenImage

GRAY = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L", "I;16N")  # kinds of files whose pixels are numbers
FINE = 4  # samples of a polygon in a pixel, along each side
LOSSY = ("JPEG", "MPO")  # formats whose numbers are not those that were saved
MOST = 65_535  # of a mask's numbers


def decode_mask(data: bytes) -> NDArray[np.int64]:
    """Decode the numbers of a mask, H W: the indices of an indexed file, the levels of a gray one of 8 or 16 bits."""
    if OpenImage(data).format in LOSSY:  # which refuses what is no image, or far too large
        raise ImageError("a JPEG, which does not keep the numbers of a mask: expected a PNG of their first source")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data))
            image.load()
            values = np.asarray(image if image.mode in GRAY else image.convert("RGB")).astype(np.int64)
    except Exception as error:  # truncated and damaged data stop decoders in many types
        raise ImageError(f"damaged or truncated: {error}") from error
    if values.ndim == 3:
        if (values != values[:, :, :1]).any():
            raise ImageError(f"a mask in colors ({image.mode}): expected indexed or gray, whose numbers are classes")
        values = values[:, :, 0]
    if values.min() < 0 or values.max() > MOST:
        raise ImageError(f"numbers from {values.min()} to {values.max()}; expected 0 to {MOST}")
    return values


def encode_mask(values: NDArray[np.uint8], palette: NDArray[np.uint8]) -> bytes:
    """Encode numbers, H W, as an indexed PNG that shows them in these colors, 256 x 3."""
    image = Image.fromarray(values)
    image.putpalette(palette.astype(np.uint8).tobytes())  # which makes it indexed
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def fill_polygons(size: tuple[int, int], polygons: Sequence[Sequence[float]]) -> NDArray[np.bool_]:
    """Fill polygons (x, y, x, y, ...; pixels have whole corners) in an image of this height and width."""
    made = np.zeros(size, dtype=np.bool_)
    (left, right), (top, bottom) = (
        (
            max(int(min(min(corners[axis::2]) for corners in polygons)) - 1, 0),
            min(int(max(max(corners[axis::2]) for corners in polygons)) + 2, size[1 - axis]),
        )
        for axis in (0, 1)
    )
    if right <= left or bottom <= top:
        return made
    image = Image.new("L", ((right - left) * FINE, (bottom - top) * FINE))  # no more of the image than they reach
    drawing = ImageDraw.Draw(image)
    for corners in polygons:
        pairs = zip(corners[::2], corners[1::2], strict=True)
        drawing.polygon([((x - left) * FINE - 0.5, (y - top) * FINE - 0.5) for x, y in pairs], fill=1)
    cover = np.asarray(image).reshape(bottom - top, FINE, right - left, FINE).mean(axis=(1, 3))
    made[top:bottom, left:right] = cover >= 0.5
    return made
