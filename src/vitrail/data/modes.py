"""What the image library opened, in any of its modes, as pixels of 8 bits: gray or RGB, on white."""

import io
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.pixels import BAND, ImageError, Pixels, owned


def to_array(image: Image.Image, depth: int = 8) -> Pixels:
    """Give the pixels of any mode in 8 bits, grey or RGB; what is transparent is white behind.

    A large image is converted a band at a time: its steps would take many times its own memory.
    """
    made: Pixels | None = None
    for top, bottom in _bands(image):
        band = image if bottom - top == image.height else image.crop((0, top, image.width, bottom))
        pixels = _band_to_array(band, depth)
        if band is image:
            return pixels
        made = np.empty((image.height, *pixels.shape[1:]), np.uint8) if made is None else made
        made[top:bottom] = pixels
    assert made is not None
    return made


def _bands(image: Image.Image) -> list[tuple[int, int]]:
    """Cut the rows of an image into stretches of a few million pixels."""
    rows = max(1, BAND // image.width)
    return [(top, min(top + rows, image.height)) for top in range(0, image.height, rows)]


def _band_to_array(image: Image.Image, depth: int) -> Pixels:
    """Give the pixels of a part; a PNG's one transparent colour is compared as its file keeps it, in `depth` bits."""
    mode, clear = image.mode, image.info.get("transparency")
    if mode in ("I;16", "I;16B", "I;16L", "I;16N", "I"):
        numbers: Any = np.asarray(image).astype(np.int64)
        if numbers.min() < 0 or numbers.max() > 65535:
            raise ImageError(f"numbers from {numbers.min()} to {numbers.max()}; expected 16 bits at most")
        levels = ((numbers + 128) // 257).astype(np.uint8)  # 65535 is 255
        return (levels if clear is None else np.where(numbers == clear, 255, levels).astype(np.uint8))[:, :, None]
    if mode == "F":
        raise ImageError("floating-point pixels, whose range is not said")
    if mode in ("RGBA", "LA", "PA", "La", "RGBa") or (mode in ("P", "RGB") and clear is not None):
        layer = image.convert("RGBA")
        behind = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return np.asarray(Image.alpha_composite(behind, layer).convert("RGB"))
    if mode in ("1", "L"):
        gray = np.asarray(image if mode == "L" else image.convert("L"))
        if clear is not None:
            most = (1 << depth) - 1  # which the library has made 255
            gray = np.where(gray == (clear & most) * 255 // most, 255, gray).astype(np.uint8)
        return gray[:, :, None]
    return np.asarray(image if mode == "RGB" else image.convert("RGB"))


def with_deep_alpha(image: Image.Image, data: bytes) -> Image.Image:
    """Make the one transparent colour of a PNG with 16 bits a channel its alpha: the library keeps but the high 8."""
    again = Image.open(io.BytesIO(data), formats=("PNG",))
    again.tile = [tile._replace(args="RGB;16L") for tile in again.tile]  # in the wrong order the low 8 come out
    color = np.array(image.info["transparency"])
    alpha = np.empty((image.height, image.width), np.uint8)
    for top, bottom in _bands(image):
        high, low = (np.asarray(each.crop((0, top, image.width, bottom))) for each in (image, again))
        alpha[top:bottom] = np.where(((high == color >> 8) & (low == color & 255)).all(axis=2), 0, 255)
    again.close()
    made = image.copy()
    made.putalpha(Image.fromarray(alpha))
    return made


def on_white(pixels: Pixels) -> Pixels:
    """Show transparent pixels, H W 4, on white, as files of such are shown: H W 3."""
    return to_array(Image.fromarray(owned(pixels)))
