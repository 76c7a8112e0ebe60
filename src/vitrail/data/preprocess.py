"""From any image that a person has to the numbers that a model reads: to the bit what evaluation feeds it."""

import os
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config.card import Preprocessing
from vitrail.data.decode import ImageError, Pixels, decode, from_library, on_white, owned, with_channels
from vitrail.data.feed import EvalTransform
from vitrail.data.sources.folder import read_file
from vitrail.data.transforms import scale
from vitrail.errors import DataError, ShapeError

EXPECTED = "expected a path, the bytes of an image file, a PIL image, or pixels of 8 bits (uint8) in an array or tensor"


def to_batch(
    images: object, preprocessing: Preprocessing, image_size: int | tuple[int, int], channels: int = 3
) -> Float[Tensor, "B C H W"]:
    """Decode, turn upright, resize, crop and scale one image or several, exactly as evaluation does."""
    if channels not in (1, 3):
        raise ShapeError(f"images have 1 or 3 channels; the model reads {channels}. Make its input, B C H W, yourself.")
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    transform = EvalTransform(size, preprocessing, channels=channels)
    made: list[Tensor] = []
    for number, image in enumerate(list_images(images)):
        try:
            made.append(transform(read_image(image), 0, 0))
        except DataError as error:
            name = os.fspath(image) if isinstance(image, str | os.PathLike) else f"image {number}"
            hint = ". Repair it, or leave it out." if isinstance(error, ImageError) else ""
            raise type(error)(f"{name}: {error}{hint}") from error
    return scale(torch.stack(made), preprocessing)


def load_image(image: object, channels: int = 3) -> Pixels:
    """Give the pixels of one image, whole and upright: uint8, H W C."""
    data = read_image(image)
    return owned(decode(data, channels) if isinstance(data, bytes) else with_channels(data, channels))


def list_images(images: object) -> list[Any]:
    """Take apart what may be one image, a list or tuple of images, or a batch: an array N H W C, a tensor N C H W."""
    if isinstance(images, list | tuple) or (isinstance(images, np.ndarray | Tensor) and images.ndim == 4):
        found = list(images)
        if not found:
            raise DataError("expected one image or several; got none.")
        return found
    return [images]


def read_image(image: object) -> bytes | Pixels:
    """Give what one image is, as sources do: the bytes of its file, or its pixels.

    A file that cannot be read is an `ImageError`; an object that is no image is a `DataError`.
    """
    if isinstance(image, str | os.PathLike):
        return read_file(os.path.expanduser(os.fspath(image)))
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if (found := from_library(image)) is not None:
        return found
    if isinstance(image, Tensor):
        return _pixels(_channels_last(image.detach().cpu()).numpy())
    if isinstance(image, np.ndarray):
        return _pixels(image)
    raise DataError(f"{EXPECTED}; got {type(image).__name__}.")


def _channels_last(image: Tensor) -> Tensor:
    """Move the channels of a tensor, C H W or H W C, last; which axis they are must be plain."""
    if image.ndim != 3:
        return image
    first, last = image.shape[0] in (1, 3, 4), image.shape[2] in (1, 3, 4)
    if first and last:
        raise DataError(
            f"a tensor of shape {tuple(image.shape)} may be C H W or H W C. Give a numpy array, which is H W C."
        )
    return image.permute(1, 2, 0) if first else image


def _pixels(array: NDArray[Any]) -> Pixels:
    if array.dtype != np.uint8:
        raise DataError(
            f"{EXPECTED}; got {array.dtype} of shape {array.shape}. "
            "Give the image before transforms: leave ToTensor and Normalize out, the model's own preprocessing scales."
        )
    array = array[:, :, None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        raise DataError(f"{EXPECTED}: H W, or H W C (C H W of torch) with 1, 3 or 4 channels; got {array.shape}.")
    return on_white(array) if array.shape[2] == 4 else array
