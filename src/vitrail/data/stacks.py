"""Images as stacks of channels, of any number and kind: .npy, TIFF of many samples or pages, PNG of 16 bits.

Headers are read first and bounded; numbers are read, as the file has them, when they are asked for.
"""

import io
import struct
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitrail.data.pixels import ImageError, Numbers
from vitrail.files.reading import array_header

NPY = b"\x93NUMPY"
TIFFS = {b"II*\0": "<", b"MM\0*": ">", b"II+\0": "<", b"MM\0+": ">"}
PNG = b"\x89PNG\r\n\x1a\n"
MOST_CHANNELS = 1024
MOST_NUMBERS = 4  # times the pixels that are decoded at most
FIELDS = {1: "B", 3: "H", 4: "I", 16: "Q"}  # of a TIFF: whole numbers by the number of their type
# Tags of a TIFF.
SIZE, LENGTH, BITS, COLORS, SAMPLES, PLANES, KIND, PACKING, MORE = 256, 257, 258, 262, 277, 284, 339, 259, 338
FIELDS_OF_PAGE = LENGTH, SIZE, SAMPLES, BITS, KIND, COLORS, PLANES, PACKING, MORE
USUAL = {SAMPLES: 1, BITS: 1, KIND: 1, COLORS: 1, PLANES: 1, PACKING: 1, MORE: 0}  # of a tag that is not there
GRAY, RGB, PALETTE, APART = (0, 1), 2, 3, 2
EXTRA = "pip install 'vitrail[tiff]' reads it"


class Stack(NamedTuple):
    """What the header of an image says, and how to read its numbers, H W C."""

    format: str
    height: int
    width: int
    channels: int
    bits: int
    read: Callable[[], Numbers]
    plain: bool = False  # the image library reads it too, in 8 bits
    whole: bool = False  # its numbers are whole ones of 8 bits


class Page(NamedTuple):
    """What one page of a TIFF says of itself."""

    height: int
    width: int
    samples: int
    bits: int
    kind: int  # 1: whole, 2: whole with a sign, 3: real
    colors: int
    planes: int  # 2: one channel after the other
    packing: int  # 1: none
    more: int  # of the samples after the colors the first: 0 is anything, 1 and 2 are alpha


def find_stack(data: bytes, most: int) -> Stack | None:
    """Read the header of an image that may be more than the image library makes of it; None for all others."""
    if data.startswith(NPY):
        found = _npy(data)
    elif data[:4] in TIFFS:
        found = _tiff(data)
    elif data.startswith(PNG) and data[24:25] == b"\x10":
        found = _png(data)
    else:
        return None
    return None if found is None else within(found, most)


def within(found: Stack, most: int) -> Stack:
    """Refuse an image whose header says that it has too many pixels, or channels."""
    height, width, channels = found[1:4]
    if min(height, width) < 1 or height * width > most or height * width * channels > MOST_NUMBERS * most:
        raise ImageError(f"{width}x{height} pixels of {channels} channels; at most {most:,} pixels are decoded")
    if not 1 <= channels <= MOST_CHANNELS:
        raise ImageError(f"{channels:,} channels; expected at most {MOST_CHANNELS:,}")
    return found


def axes_of(shape: tuple[int, ...]) -> tuple[int, int, int, bool]:
    """Say height, width and channels of an array, H W, H W C or C H W, and whether the channels come first.

    Channels are the smaller of the first and the last axis.
    """
    if len(shape) == 2:
        return shape[0], shape[1], 1, False
    if len(shape) != 3:
        raise ImageError(f"an array of shape {shape}; expected H W, H W C or C H W")
    if shape[0] == shape[2]:
        raise ImageError(f"an array of shape {shape}, which may be H W C or C H W. Save it with other sides")
    first = shape[0] < shape[2]
    height, width, channels = (shape[1], shape[2], shape[0]) if first else shape
    return height, width, channels, first


def _npy(data: bytes) -> Stack:
    try:
        header = array_header(data)
    except ValueError as error:
        raise ImageError(f"damaged header of an array: {error}") from error
    kind = header.dtype
    if kind.kind not in "biuf" or kind.itemsize > 8:
        raise ImageError(f"an array of {kind}; expected whole or real numbers")
    height, width, channels, first = axes_of(header.shape)
    count = height * width * channels
    if min(height, width, channels) < 1 or len(data) - header.start < count * kind.itemsize:
        raise ImageError(f"truncated: {len(data) - header.start:,} bytes for {count:,} numbers of {kind}")

    def read() -> Numbers:
        flat = np.frombuffer(data, kind, count, header.start)
        array = flat.reshape(header.shape, order="F" if header.columns_first else "C")
        array = array[:, :, None] if array.ndim == 2 else np.moveaxis(array, 0, 2) if first else array
        return array if kind.isnative else array.astype(kind.newbyteorder("="))

    whole = kind.kind in "bu" and kind.itemsize == 1
    return Stack("NPY", height, width, channels, 8 * kind.itemsize, read, whole=whole)


def _png(data: bytes) -> Stack | None:
    """Read the header of a PNG of 16 bits a channel, of which the library keeps but the high 8 where there are colors.

    In the wrong order of bytes it keeps the low 8.
    """
    width, height, _, colors = struct.unpack(">IIBB", data[16:26])
    mode = {0: "L", 2: "RGB", 6: "RGBA"}.get(colors)
    if mode is None:
        return None

    def read() -> Numbers:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            if mode == "L":
                return np.asarray(image).astype(np.uint16)[:, :, None]
            high = np.asarray(image).astype(np.uint16)
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            image.tile = [tile._replace(args=f"{mode};16L") for tile in image.tile]
            return high << 8 | np.asarray(image)

    return Stack("PNG", height, width, {"L": 1, "RGB": 3, "RGBA": 4}[mode], 16, read, plain=True)


def _tiff(data: bytes) -> Stack | None:
    """Read the headers of a TIFF; None where its first page is a photograph of 8 bits, which the library reads."""
    try:
        pages = _pages(data)
    except (struct.error, ValueError, KeyError, IndexError, OverflowError) as error:
        raise ImageError(f"damaged header of a TIFF: {str(error) or type(error).__name__}") from error
    first = pages[0]
    alike = len(pages) > 1 and all(page == first for page in pages)
    if first.colors == PALETTE or first.bits == 1 or (first.samples == 1 and len(pages) > 1 and not alike):
        return None  # scans, and pictures beside their small copies
    if first.samples == 1:
        if first.bits <= 8 and not alike:
            return None
        known = (first.bits, first.kind) in ((8, 1), (16, 1), (32, 3), (32, 2))
        turned = first.bits == 32 and data[:1] == b"M"
        known &= not turned or first.packing == 1  # packed, the library turns their bytes twice
        read = partial(_pages_by_library, data, len(pages)) if known else partial(_by_tifffile, data, len(pages))
        plain = not alike and not turned and (first.bits, first.kind) in ((16, 1), (32, 1))
        return Stack(
            "TIFF", first.height, first.width, len(pages) if alike else 1, first.bits, read, plain, first[3:5] == (8, 1)
        )
    # The library knows colors, and of what is gray one sample: four bands of a satellite are gray to most programs.
    known = first.samples in (3, 4) and first.planes != APART and first.colors not in GRAY
    fourth = first.samples == 4 and first.colors == RGB and first.more == 0  # no alpha, which the library leaves out
    if known and first.bits == 8 and not fourth:
        return None
    if alike and first.bits > 8 and first.samples > 4:
        raise ImageError(f"{len(pages)} pages of {first.samples} channels each. Keep one page, or one channel a page")
    plain = known and first[3:5] in ((16, 1), (8, 1))
    read = partial(_by_tifffile, data, 1, apart=first.planes == APART)
    whole = first[3:5] == (8, 1)
    return Stack("TIFF", first.height, first.width, first.samples, first.bits, read, plain, whole)


def _pages(data: bytes) -> list[Page]:
    """Read what every page of a TIFF says of itself, by the chain of its directories."""
    order, big = TIFFS[data[:4]], data[2:3] == b"+" or data[3:4] == b"+"
    place, count_kind, width, value = ("Q", "Q", 20, 12) if big else ("I", "H", 12, 8)
    at = struct.unpack_from(order + place, data, 8 if big else 4)[0]
    found: list[Page] = []
    seen: set[int] = set()
    while at:
        if at in seen or len(found) > MOST_CHANNELS:
            raise ValueError("its pages have no end")
        seen.add(at)
        count = struct.unpack_from(order + count_kind, data, at)[0]
        start = at + struct.calcsize(count_kind)
        if count > 4096:
            raise ValueError(f"a directory of {count:,} entries")
        tags = dict(USUAL)
        for entry in range(start, start + count * width, width):
            tag, kind = struct.unpack_from(order + "HH", data, entry)
            length = struct.unpack_from(order + place, data, entry + 4)[0]
            if tag not in (*USUAL, SIZE, LENGTH) or kind not in FIELDS or not length:
                continue
            inside = length * struct.calcsize(FIELDS[kind]) <= struct.calcsize(place)
            where = entry + value if inside else struct.unpack_from(order + place, data, entry + value)[0]
            tags[tag] = struct.unpack_from(order + FIELDS[kind], data, where)[0]
        found.append(Page(*(tags[tag] for tag in FIELDS_OF_PAGE)))
        at = struct.unpack_from(order + place, data, start + count * width)[0]
    if not found:
        raise ValueError("it has no page")
    return found


def _pages_by_library(data: bytes, pages: int) -> Numbers:
    """Read pages of one channel each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(data), formats=("TIFF",)) as image:
            made = []
            for page in range(pages):
                image.seek(page)
                made.append(np.array(image))
    return np.stack([part.astype(part.dtype.newbyteorder("="), copy=False) for part in made], axis=2)


def _by_tifffile(data: bytes, pages: int, *, apart: bool = False) -> Numbers:
    """Read a page of many channels, or pages of a rare kind."""
    try:
        import tifffile
    except ImportError as error:
        raise ImageError(f"a TIFF of many channels, or of a rare kind of numbers: {EXTRA}") from error
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        made: list[Any] = [file.pages[page].asarray() for page in range(pages)]
    if pages > 1 or made[0].ndim == 2:
        return np.stack(made, axis=2)
    return np.moveaxis(made[0], 0, 2) if apart else made[0]
