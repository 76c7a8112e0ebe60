"""What every model checks of what it is given, before any compute."""

import operator
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from vitrail.config import Preprocessing
from vitrail.errors import ShapeError


def check_images(images: Tensor, channels: int, like: Tensor, preprocessing: Preprocessing) -> None:
    """Refuse anything but float images, B C H W, of this many channels, where and as the weights are."""
    if not isinstance(images, Tensor):
        raise ShapeError(
            f"images must be a tensor, B C H W; got {type(images).__name__}. "
            "Make one: torch.as_tensor(array).permute(0, 3, 1, 2) for an array B H W C."
        )
    if images.layout != torch.strided:
        raise ShapeError(f"images must be dense; got {images.layout}. Make them so: images.to_dense().")
    if images.ndim != 4:
        hint = " Add the batch axis: images[None]." if images.ndim == 3 else ""
        raise ShapeError(f"images must be a batch, B C H W; got {images.ndim} axes, {_sides(images)}.{hint}")
    if images.shape[1] != channels:
        hint = f"Give {channels} channels, or build the model with channels={images.shape[1]}."
        if images.shape[3] == channels:
            hint = "Put the channels first: images.permute(0, 3, 1, 2)."
        raise ShapeError(
            f"images must have {channels} channels, B C H W; got {images.shape[1]}, {_sides(images)}. {hint}"
        )
    if images.shape[2] < 1 or images.shape[3] < 1:
        raise ShapeError(f"images must have pixels; got {_sides(images)}.")
    if not images.is_floating_point():
        raise ShapeError(f"images must be float; got {images.dtype}. {_advice(preprocessing)}")
    if images.device != like.device:
        raise ShapeError(
            f"images must be on the model's device {like.device}; got {images.device}. Move them: images.to(...)."
        )
    if images.dtype != like.dtype and not torch.is_autocast_enabled(images.device.type):
        raise ShapeError(
            f"images must have the model's precision {like.dtype}; got {images.dtype}. "
            f"Convert them: images.to({like.dtype}), or run under torch.autocast."
        )


def check_slice(queries: slice) -> None:
    """Refuse anything but a slice that goes forward."""
    try:
        step = queries.indices(1)[2]
    except (AttributeError, TypeError, ValueError):
        step = 0
    if step < 1:
        raise ShapeError(f"queries must be a slice of the tokens, such as slice(0, 1); got {queries!r}.")


def pick_layers(layers: int | Sequence[int], depth: int) -> list[int]:
    """Read one layer number or several, as a list's: from 0, or from the end when negative."""
    several = list(layers) if isinstance(layers, Iterable) and not isinstance(layers, str) else [layers]
    if not several:
        raise ShapeError(f"layers must name at least one of the {depth} layers; got none.")
    picked = []
    for layer in several:
        try:
            number = operator.index(layer)  # pyright: ignore[reportArgumentType]
        except TypeError:
            number = None
        if number is None or not -depth <= number < depth:
            raise ShapeError(f"layers must be from 0 to {depth - 1} (or -{depth} to -1); got {layer!r}.")
        picked.append(number % depth)
    return picked


def _advice(preprocessing: Preprocessing) -> str:
    """Say how pixels become what the model reads."""
    mean, deviation = (
        f"{values[0]:g}" if len(values) == 1 else f"({', '.join(f'{value:g}' for value in values)})"
        for values in (preprocessing.mean, preprocessing.deviation)
    )
    return f"Take model.preprocess(image); of bytes, it gives (x / 255 - {mean}) / {deviation}, by channel."


def _sides(images: Tensor) -> str:
    return "x".join(map(str, images.shape))
