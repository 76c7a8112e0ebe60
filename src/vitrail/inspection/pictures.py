"""Pictures for a page: as large as fits into its share of the bytes."""

import base64
from typing import NamedTuple

from jaxtyping import UInt8
from torch import Tensor

from vitrail.data.decode import encode
from vitrail.data.transforms.resize import resize

SIDES = (512, 384, 256, 160, 96, 48)  # pixels of the longer side, until all pictures fit
LOSSLESS = 160  # pixels up to which a picture is carried without loss, where all fit so
QUALITY = 85


class Picture(NamedTuple):
    """An image as a page carries it."""

    url: str
    height: int
    width: int
    bytes: int


def pictures_of(pixels: UInt8[Tensor, "B C H W"], most: int) -> list[Picture]:
    """Encode images so that all of them take no more than so many bytes; smaller than the last side none is made."""
    made = [_encoded(picture, lossless=True) for picture in pixels] if max(pixels.shape[2:]) <= LOSSLESS else []
    if made and sum(picture.bytes for picture in made) <= most:
        return made
    for side in SIDES:
        made = [_encoded(small_enough(picture, side), lossless=False) for picture in pixels]
        if sum(picture.bytes for picture in made) <= most:
            break
    return made


def small_enough(picture: UInt8[Tensor, "C H W"], side: int) -> UInt8[Tensor, "C h w"]:
    """Make a picture no larger than this."""
    factor = side / max(picture.shape[1:])
    if factor >= 1:
        return picture
    height, width = (max(round(length * factor), 1) for length in picture.shape[1:])
    return resize(picture, (height, width), "antialias")


def with_color(pixels: UInt8[Tensor, "*B C H W"]) -> UInt8[Tensor, "*B 3 H W"]:
    """Give grey images three channels."""
    return pixels.expand(*pixels.shape[:-3], 3, -1, -1) if pixels.shape[-3] == 1 else pixels


def url_of(data: bytes, kind: str) -> str:
    """Give bytes as an address that holds them."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _encoded(picture: UInt8[Tensor, "C H W"], *, lossless: bool) -> Picture:
    shown = with_color(picture).permute(1, 2, 0).contiguous().numpy()
    data = encode(shown, "PNG") if lossless else encode(shown, "JPEG", QUALITY)
    return Picture(url_of(data, "png" if lossless else "jpeg"), shown.shape[0], shown.shape[1], len(data))
