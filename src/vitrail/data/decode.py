"""From the bytes of an image to its pixels: the only file that knows the image library.

An image is opened first (its size is known, nothing is decoded), then the part that is wanted is decoded, at a smaller
scale where the format can and the result is still large enough.
"""

import io
import warnings
from functools import cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from vitrail.data.dicom import dicom_stack, is_dicom
from vitrail.data.modes import to_array, with_deep_alpha
from vitrail.data.pixels import ImageError, Numbers, Pixels, Range, to_levels, to_picture, with_channels
from vitrail.data.stacks import find_stack, within

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
    "NPY": ("npy",),  # an array
}
# By which images are found in folders and archives, the preferred first.
SUFFIXES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "jp2", "avif", "npy", "dcm")
MAGICS = {b"\xff\xd8": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"RIFF": "WEBP", b"BM": "BMP"}
MAGICS |= dict.fromkeys((b"II*\0", b"MM\0*"), "TIFF")
LARGEST = 90_000_000  # pixels
LARGEST_SIDE = 65_500  # of a JPEG; longer ones are made to hurt
MOST_SCANS = 200  # of a JPEG, each of which goes over all of it; a progressive one has ten or so,
MOST_SCANNED = 1_000_000_000  # and pixels that all of them go over


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
        self._data, self.orientation = data, 1
        self._stack = within(dicom_stack(data), most) if is_dicom(data) else find_stack(data, most)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of sizes, which are checked below, and of odd metadata
                self._image = self._open(data, most, scans)
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

    def _open(self, data: bytes, most: int, scans: int) -> Image.Image | None:
        """Open what the image library knows; None where only the stack is read."""
        if self._stack is not None and not self._stack.plain:
            self.format, self.height, self.width = self._stack[:3]
            return None
        image = Image.open(io.BytesIO(data), formats=_formats())
        width, height = image.size
        if width < 1 or height < 1 or width * height > most or max(width, height) > LARGEST_SIDE:
            raise ImageError(f"{width}x{height} pixels; at most {most:,} are decoded")
        if scans * width * height > MOST_SCANNED:
            raise ImageError(f"a JPEG of {scans:,} scans of {width}x{height} pixels, more than is decoded")
        self.orientation = _orientation(image)  # which may decode a PNG
        self.format = image.format or ""
        self.height, self.width = (width, height) if self.orientation >= 5 else (height, width)
        return image

    @property
    def mode(self) -> str:
        """How the file keeps its pixels, in the image library's word; empty where that does not read it."""
        return "" if self._image is None else self._image.mode

    @property
    def frames(self) -> int:
        """How many pictures the file holds."""
        return 1 if self._stack is not None and not self._stack.plain else int(getattr(self._image, "n_frames", 1))

    @property
    def is_see_through(self) -> bool:
        """Whether any of it may be transparent."""
        told = self._image is not None and "transparency" in self._image.info
        return told or self.mode in ("RGBA", "LA", "PA", "La", "RGBa")

    @property
    def channels(self) -> tuple[int, ...]:
        """The numbers of channels that it may have: a transparent image three or four."""
        if self._stack is not None and not self._stack.plain:
            return (self._stack.channels,)
        if self.mode in ("1", "L", "F") or self.mode.startswith("I"):
            return (1,)
        fourth = self._stack is not None and self._stack.channels == 4
        return (3, 4) if fourth or self.mode == "RGBA" else (3,)

    @property
    def bits(self) -> int:
        """How many bits each of its numbers has."""
        return 8 if self._stack is None else self._stack.bits

    @property
    def is_photograph(self) -> bool:
        """Whether its numbers are levels of 8 bits, and no more is to be had."""
        return self._stack is None or self._stack.whole

    def numbers(self) -> Numbers:
        """Give the numbers of all channels, H W C, upright, as the file keeps them."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if self._stack is not None:
                    return _upright(self._stack.read(), self.orientation)
                image = self._upright_image()
                return np.asarray(image) if image.mode == "RGBA" else to_array(image)
        except ImageError:
            raise
        except Exception as error:  # truncated and damaged data stop decoders in many types
            raise ImageError(f"damaged or truncated: {error}") from error

    def pixels(
        self,
        box: Box | None = None,
        least: tuple[int, int] = (0, 0),
        channels: int = 3,
        value_range: Range | None = None,
    ) -> Pixels:
        """Decode a part; a JPEG at a half, a quarter or an eighth where the part still has `least` (height, width).

        With a range the levels are real numbers, of all bits that the file has.
        """
        box = box or Box(0, 0, self.height, self.width)
        if self._image is None or value_range is not None or channels not in (1, 3):
            found = self.channels
            if channels not in found and (channels, found[0]) not in ((1, 3), (3, 1)):
                raise ImageError(f"{found[-1]} channel{'s'[: found[-1] != 1]}; the model reads {channels}")
            numbers = self.numbers()
            numbers = numbers[:, :, :3] if numbers.shape[2] == 4 and channels < 4 else numbers
            return with_channels(to_levels(_cut(numbers, box, self.height, self.width), value_range), channels)
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

    def picture(self, least: tuple[int, int] = (0, 0)) -> Pixels:
        """Show it to people, gray or in three colors of 8 bits: of other images the first channels, stretched."""
        library = self._stack is None or (self._stack.plain and self._stack.whole)
        return self.pixels(least=least) if library else to_picture(self.numbers())

    def _decode_fast(self, shrink: int) -> Pixels | None:
        assert self._image is not None
        usable = self.format == "JPEG" and self.orientation == 1 and self.mode in ("RGB", "L")
        fast = _simplejpeg() if usable and _allowed["simplejpeg"] else None
        if fast is None:
            return None
        least = (-(-self.height // shrink), -(-self.width // shrink)) if shrink > 1 else (0, 0)
        space = "RGB" if self.mode == "RGB" else "GRAY"
        try:
            return fast.decode_jpeg(self._data, colorspace=space, min_height=least[0], min_width=least[1], min_factor=1)
        except ValueError:  # it is stricter than the image library, which decides, so that both skip the same
            return None

    def _decode(self, shrink: int) -> Pixels:
        depth = self._data[24] if self.format == "PNG" else 8  # bits a channel, of the header
        return to_array(self._upright_image(shrink, depth), depth)

    def _upright_image(self, shrink: int = 1, depth: int = 8) -> Image.Image:
        assert self._image is not None
        image = self._image
        if shrink > 1:
            image.draft(image.mode, (self.width // shrink, self.height // shrink))
        image.seek(0)  # of an animation the first frame
        image.load()
        if depth == 16 and image.mode == "RGB" and "transparency" in image.info:
            image = with_deep_alpha(image, self._data)
        return ImageOps.exif_transpose(image) if self.orientation > 1 else image


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
        return to_array(ImageOps.exif_transpose(image) if _orientation(image) > 1 else image)
    except ImageError:
        raise
    except Exception as error:  # truncated and damaged data stop decoders in many types
        raise ImageError(f"damaged or truncated: {error}") from error


def encode(pixels: Pixels, kind: str = "PNG", quality: int = 90) -> bytes:
    """Encode pixels, H W 3 or H W 1, as a PNG or a JPEG."""
    buffer = io.BytesIO()
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    image.save(buffer, kind, **({"quality": quality} if kind == "JPEG" else {}))
    return buffer.getvalue()


def resize_by_boxes(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize to (height, width) by means of the pixels in each box, as the image library does."""
    parts = [Image.fromarray(np.ascontiguousarray(pixels[:, :, place])) for place in range(pixels.shape[2])]
    return np.stack([np.asarray(part.resize((size[1], size[0]), Image.Resampling.BOX)) for part in parts], axis=2)


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


def _upright(numbers: Numbers, orientation: int) -> Numbers:
    """Turn an image by how the camera was held."""
    turned = np.swapaxes(numbers, 0, 1) if orientation >= 5 else numbers
    if orientation in (3, 4, 7, 8):
        turned = turned[::-1]
    return turned[:, ::-1] if orientation in (2, 3, 6, 7) else turned


def _shrink(box: Box, least: tuple[int, int]) -> int:
    """Find the largest of 8, 4 and 2 by which a part may shrink and still be as large as wanted."""
    if min(least) < 1:
        return 1
    return next((by for by in (8, 4, 2) if box.height >= by * least[0] and box.width >= by * least[1]), 1)


def _cut(whole: Numbers, box: Box, height: int, width: int) -> Numbers:
    """Cut a part, given in the pixels of the full size, out of an image that may have been decoded smaller."""
    rows, cols = whole.shape[0] / height, whole.shape[1] / width
    top, left = round(box.top * rows), round(box.left * cols)
    bottom = max(round((box.top + box.height) * rows), top + 1)
    right = max(round((box.left + box.width) * cols), left + 1)
    return whole[top:bottom, left:right]
