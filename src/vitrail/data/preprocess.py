"""From any image that a person has to the numbers that a model reads: to the bit what evaluation feeds it."""

import io
import os
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.config import Preprocessing
from vitrail.data.decode import ImageError, Pixels, from_library
from vitrail.data.modes import on_white
from vitrail.data.sources.folder import read_file
from vitrail.data.transforms.finish import scale
from vitrail.data.transforms.resize import EvalTransform
from vitrail.errors import DataError

EXPECTED = "expected a path, the bytes of an image file, a PIL image, or pixels of 8 bits (uint8) in an array or tensor"


def to_batch(
    images: object, preprocessing: Preprocessing, image_size: int | tuple[int, int], channels: int = 3
) -> Float[Tensor, "B C H W"]:
    """Decode, turn upright, resize, crop and scale one image or several, exactly as evaluation does."""
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    transform = EvalTransform(size, preprocessing, channels=channels)
    made: list[Tensor] = []
    for number, image in enumerate(list_images(images)):
        try:
            made.append(transform(read_image(image, real=preprocessing.value_range is not None), 0, 0))
        except DataError as error:
            name = os.fspath(image) if isinstance(image, str | os.PathLike) else f"image {number}"
            hint = ". Repair it, or leave it out." if isinstance(error, ImageError) else ""
            raise type(error)(f"{name}: {error}{hint}") from error
    return scale(torch.stack(made), preprocessing)


def list_images(images: object) -> list[Any]:
    """Take apart what may be one image, a list or tuple of images, or a batch: an array N H W C, a tensor N C H W."""
    if isinstance(images, list | tuple) or (isinstance(images, np.ndarray | Tensor) and images.ndim == 4):
        found = list(images)
        if not found:
            raise DataError("expected one image or several; got none.")
        return found
    return [images]


def read_image(image: object, *, real: bool = False) -> bytes | Pixels:
    """Give what one image is, as sources do: the bytes of its file, or its pixels.

    An array of many channels or of 16 bits is what its file would be; so is any where numbers may be `real`. A file
    that cannot be read is an `ImageError`; an object that is no image is a `DataError`.
    """
    if isinstance(image, str | os.PathLike):
        return read_file(os.path.expanduser(os.fspath(image)))
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if callable(getattr(image, "read", None)):  # an open file
        return read_image(image.read())  # pyright: ignore[reportAttributeAccessIssue]
    if (found := from_library(image)) is not None:
        return found
    if not isinstance(image, np.ndarray | Tensor):
        raise DataError(f"{EXPECTED}; got {type(image).__name__}.")
    if _is_stack(image) or (real and str(image.dtype).removeprefix("torch.") != "uint8"):
        array = image.detach().cpu().numpy() if isinstance(image, Tensor) else image
        out = io.BytesIO()
        np.save(out, array, allow_pickle=False)
        return out.getvalue()
    if (kind := str(image.dtype).removeprefix("torch.")) != "uint8":
        cast = ".to(torch.uint8)" if isinstance(image, Tensor) else '.astype("uint8")'
        before = (
            "Give the image before transforms: leave ToTensor and Normalize out, the model's own preprocessing scales"
        )
        hint = before if "float" in kind else f"Where its numbers are levels from 0 to 255, add {cast}"
        raise DataError(f"{EXPECTED}; got {kind} of shape {tuple(image.shape)}. {hint}.")
    return _pixels(_channels_last(image.detach().cpu()).numpy() if isinstance(image, Tensor) else image)


def _is_stack(image: np.ndarray | Tensor) -> bool:
    """Tell an array of 16 bits, or of bytes whose channels are no photograph's."""
    kind = str(image.dtype).removeprefix("torch.")
    ends = {*image.shape[:1], *image.shape[-1:]} if isinstance(image, Tensor) else {*image.shape[-1:]}
    many = image.ndim == 3 and 0 not in image.shape and not ends & {1, 3, 4}
    return (kind == "uint8" and many) or (kind == "uint16" and image.ndim in (2, 3))


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


def _pixels(array: Pixels) -> Pixels:
    array = array[:, :, None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        raise DataError(f"{EXPECTED}: H W, or H W C (C H W of torch) with 1, 3 or 4 channels; got {array.shape}.")
    return on_white(array) if array.shape[2] == 4 else array
