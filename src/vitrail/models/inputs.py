"""What every model checks of its images before any compute."""

from collections.abc import Sequence

from torch import Tensor

from vitrail.errors import ShapeError


def check_images(images: Tensor, channels: int) -> None:
    """Refuse anything but float images, B C H W, of this many channels."""
    if images.ndim != 4:
        raise ShapeError(
            f"images must be a batch, B C H W; got {images.ndim} axes, {_sides(images)}."
            + (" Add the batch axis: images[None]." if images.ndim == 3 else "")
        )
    if images.shape[1] != channels:
        last = images.shape[3] == channels
        raise ShapeError(
            f"images must have {channels} channels, B C H W; got {images.shape[1]}, {_sides(images)}. "
            + ("Put the channels first: images.permute(0, 3, 1, 2)." if last else f"Give {channels} channels, ")
            + ("" if last else f"or build the model with channels={images.shape[1]}.")
        )
    if not images.is_floating_point():
        raise ShapeError(f"images must be float in [-1, 1]; got {images.dtype}. Scale bytes first: x / 127.5 - 1.")


def _sides(images: Tensor) -> str:
    return "x".join(map(str, images.shape))


def pick_layers(layers: Sequence[int], depth: int) -> list[int]:
    """Read layer numbers as a list's: from 0, or from the end when negative."""
    if not layers:
        raise ShapeError(f"layers must name at least one of the {depth} layers; got none.")
    for layer in layers:
        if not -depth <= layer < depth:
            raise ShapeError(f"layers must be from 0 to {depth - 1} (or -{depth} to -1); got {layer}.")
    return [layer % depth for layer in layers]
