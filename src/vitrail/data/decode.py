"""From the bytes of an image to its pixels: the only file that knows the image library.

An image is opened first (its size is known, nothing is decoded), then the part that is wanted is decoded, at a smaller
scale where the format can and the result is still large enough.
"""

import io
import warnings
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from vitrail.errors import DataError

Pixels = NDArray[np.uint8]  # H W C
# What is opened, in this order, and its suffixes. Others that the library knows run programs or are no photographs.
FORMATS = {
    "JPEG": ("jpg", "jpeg", "jpe", "jfif"),
    "MPO": ("jpg", "jpeg", "mpo"),  # a JPEG with a second view
    "PNG": ("png", "apng"),
    "WEBP": ("webp",),
    "GIF": ("gif",),
    "BMP": ("bmp", "dib"),
    "TIFF": ("tif", "tiff"),
    "PPM": ("ppm", "pgm", "pbm", "pnm"),
    "JPEG2000": ("jp2", "j2k", "jpx"),
    "AVIF": ("avif",),
    "ICO": ("ico",),
    "TGA": ("tga",),
    "DIB": ("bmp", "dib"),
    "PCX": ("pcx",),
}
# By which images are found in folders and archives, the preferred first.
SUFFIXES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "jp2", "avif")
MAGICS = {b"\xff\xd8": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"RIFF": "WEBP", b"BM": "BMP", b"II*\0": "TIFF"}
LARGEST = 90_000_000  # pixels
LARGEST_SIDE = 65_500  # of a JPEG; longer ones are made to hurt
BAND = 1 << 22  # pixels that are converted at once
MOST_SCANS = 200  # of a JPEG, each of which goes over all of it; a progressive one has ten or so,
MOST_SCANNED = 1_000_000_000  # and pixels that all of them go over


class ImageError(DataError):
    """One image that cannot be read or decoded; the message is the reason, in a few words."""


class Box(NamedTuple):
    """A part of an image, in whole pixels of its upright size."""

    top: int
    left: int
    height: int
    width: int


class OpenImage:
    """An image whose header was read: its upright size is known, its pixels are decoded when they are asked for."""

    def __init__(self, data: bytes, most: int = LARGEST) -> None:
        if not data:
            raise ImageError("empty file")
        scans = data.count(b"\xff\xda") if data.startswith(b"\xff\xd8") else 0
        if scans > MOST_SCANS:
            raise ImageError(f"a JPEG of {scans:,} scans, more than any photograph has")
        self._data = data
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of sizes, which are checked below, and of odd metadata
                self._image = Image.open(io.BytesIO(data), formats=_formats())
                width, height = self._image.size
                if width < 1 or height < 1 or width * height > most or max(width, height) > LARGEST_SIDE:
                    raise ImageError(f"{width}x{height} pixels; at most {most:,} are decoded")
                if scans * width * height > MOST_SCANNED:
                    raise ImageError(f"a JPEG of {scans:,} scans of {width}x{height} pixels, more than is decoded")
                self.orientation = _orientation(self._image)  # which may decode a PNG
        except ImageError:
            raise
        except UnidentifiedImageError as error:
            kind = next((kind for magic, kind in MAGICS.items() if data.startswith(magic)), None)
            what = f"damaged header of a {kind}" if kind else f"no image of a known format; it starts with {data[:8]!r}"
            raise ImageError(what) from error
        except Image.DecompressionBombError as error:
            raise ImageError(f"far more than the {most:,} pixels that are decoded") from error
        except Exception as error:  # a damaged header stops its parser in many types
            raise ImageError(f"damaged header: {error}") from error
        self.format = self._image.format or ""
        self.height, self.width = (width, height) if self.orientation >= 5 else (height, width)

    @property
    def mode(self) -> str:
        """How the file keeps its pixels, in the image library's word."""
        return self._image.mode

    @property
    def frames(self) -> int:
        """How many pictures the file holds."""
        return int(getattr(self._image, "n_frames", 1))

    @property
    def is_see_through(self) -> bool:
        """Whether any of it may be transparent."""
        return self.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in self._image.info

    def pixels(self, box: Box | None = None, least: tuple[int, int] = (0, 0), channels: int = 3) -> Pixels:
        """Decode a part; a JPEG at a half, a quarter or an eighth where the part still has `least` (height, width)."""
        box = box or Box(0, 0, self.height, self.width)
        shrink = _shrink(box, least) if self.format == "JPEG" and self.orientation == 1 else 1
        try:
            whole = self._decode_fast(shrink)
            if whole is None:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    whole = self._decode(shrink)
        except ImageError:
            raise
        except Exception as error:  # truncated and damaged data stop decoders in many types
            raise ImageError(f"damaged or truncated: {error}") from error
        return with_channels(_cut(whole, box, self.height, self.width), channels)

    def _decode_fast(self, shrink: int) -> Pixels | None:
        usable = self.format == "JPEG" and self.orientation == 1 and self._image.mode in ("RGB", "L")
        fast = _simplejpeg() if usable and _allowed["simplejpeg"] else None
        if fast is None:
            return None
        least = (-(-self.height // shrink), -(-self.width // shrink)) if shrink > 1 else (0, 0)
        space = "RGB" if self._image.mode == "RGB" else "GRAY"
        try:
            return fast.decode_jpeg(self._data, colorspace=space, min_height=least[0], min_width=least[1], min_factor=1)
        except ValueError:  # it is stricter than the image library, which decides, so that both skip the same
            return None

    def _decode(self, shrink: int) -> Pixels:
        image = self._image
        if shrink > 1:
            image.draft(image.mode, (self.width // shrink, self.height // shrink))
        image.seek(0)  # of an animation the first frame
        image.load()
        depth = self._data[24] if self.format == "PNG" else 8  # bits a channel, of the header
        if depth == 16 and image.mode == "RGB" and "transparency" in image.info:
            image = _with_deep_alpha(image, self._data)
        if self.orientation > 1:
            image = ImageOps.exif_transpose(image)
        return _to_array(image, depth)


def decode(data: bytes, channels: int = 3) -> Pixels:
    """Decode a whole image, upright, to 8 bits a channel."""
    return OpenImage(data).pixels(channels=channels)


def from_library(image: object) -> bytes | Pixels | None:
    """Give what an image of the image library shows, upright, as pixels; None for any other object.

    An image that was opened and not yet decoded gives the bytes of its file: it is then decoded as the file would be.
    """
    if not isinstance(image, Image.Image):
        return None
    try:
        if isinstance(image, ImageFile.ImageFile) and image.fp is not None and image.tile and not image.tell():
            place = image.fp.tell()
            image.fp.seek(0)
            data = image.fp.read()
            image.fp.seek(place)
            return data
        if image.mode == "I" and image.format is None and not (np.asarray(image) >> 8).any():
            image = image.convert("L")  # no file's, which says that it has 16 bits: numbers of a program, from 0 to 255
        return _to_array(ImageOps.exif_transpose(image) if _orientation(image) > 1 else image)
    except ImageError:
        raise
    except Exception as error:  # truncated and damaged data stop decoders in many types
        raise ImageError(f"damaged or truncated: {error}") from error


def on_white(pixels: Pixels) -> Pixels:
    """Show transparent pixels, H W 4, on white, as files of such are shown: H W 3."""
    return _to_array(Image.fromarray(owned(pixels)))


def encode(pixels: Pixels, kind: str = "PNG", quality: int = 90) -> bytes:
    """Encode pixels, H W 3 or H W 1, as a PNG or a JPEG."""
    buffer = io.BytesIO()
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    image.save(buffer, kind, **({"quality": quality} if kind == "JPEG" else {}))
    return buffer.getvalue()


def crop_by_library(data: bytes, box: Box, size: tuple[int, int]) -> Pixels:
    """Decode, crop and resize as the image library does by itself, bicubic: what the bench compares with."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    edges = (box.left, box.top, box.left + box.width, box.top + box.height)
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BICUBIC, box=edges))


@cache
def _formats() -> tuple[str, ...]:
    """List the formats that this build of the image library can open."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def use_simplejpeg(*, allowed: bool) -> None:
    """Allow the faster decoder of JPEG, as is the default, or do without it; for benches and tests."""
    _allowed["simplejpeg"] = allowed


_allowed = {"simplejpeg": True}


@cache
def _simplejpeg() -> ModuleType | None:
    """Find the faster decoder of JPEG, where it is installed."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def _orientation(image: Image.Image) -> int:
    """Read how the camera was held, 1 (upright) to 8; nonsense is upright."""
    if image.format not in (None, "JPEG", "MPO", "WEBP", "PNG", "TIFF", "AVIF"):
        return 1
    try:
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # metadata of any kind of damage
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _shrink(box: Box, least: tuple[int, int]) -> int:
    """Find the largest of 8, 4 and 2 by which a part may shrink and still be as large as wanted."""
    if min(least) < 1:
        return 1
    return next((by for by in (8, 4, 2) if box.height >= by * least[0] and box.width >= by * least[1]), 1)


def _cut(whole: Pixels, box: Box, height: int, width: int) -> Pixels:
    """Cut a part, given in the pixels of the full size, out of an image that may have been decoded smaller."""
    rows, cols = whole.shape[0] / height, whole.shape[1] / width
    top, left = round(box.top * rows), round(box.left * cols)
    bottom = max(round((box.top + box.height) * rows), top + 1)
    right = max(round((box.left + box.width) * cols), left + 1)
    return whole[top:bottom, left:right]


def _with_deep_alpha(image: Image.Image, data: bytes) -> Image.Image:
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


def _to_array(image: Image.Image, depth: int = 8) -> Pixels:
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


def owned(pixels: Pixels) -> Pixels:
    """Give pixels that a tensor may share: their own, and in order; a copy where they are not."""
    return pixels if pixels.flags.writeable and min(pixels.strides) >= 0 else pixels.copy()


def with_channels(pixels: Pixels, channels: int) -> Pixels:
    """Repeat grey, or weigh colours to grey (ITU-R 601), where another number of channels is wanted."""
    if pixels.shape[2] == channels:
        return pixels
    if channels == 1:
        weights = np.array([19595, 38470, 7471], dtype=np.uint32)
        parts = np.array_split(pixels, 1 + pixels.size // (3 * BAND))  # in bands, which take four times their memory
        return np.concatenate([(part @ weights + 32768 >> 16).astype(np.uint8) for part in parts])[:, :, None]
    return np.repeat(pixels, channels, axis=2)
