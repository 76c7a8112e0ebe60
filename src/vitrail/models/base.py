"""What every model of Vitrail offers, and what it checks of what it is given, before any compute."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.config import Card, ModelConfig, Preprocessing
from vitrail.config.check import pick_layers
from vitrail.errors import ConfigError, ShapeError
from vitrail.models.heads import Head


class Model(nn.Module):
    """A classifier of images whose logits are a linear function of `represent`, or of its direction."""

    config: ModelConfig
    card: Card = Card()  # class names, preprocessing, provenance and metrics, where they are known
    head: Head  # none where the configuration has no classes
    layers: int  # blocks, or stages
    trained_on: Mapping[str, Any] = {}  # of a run in memory: images by their fingerprint, and how it cut them

    @property
    def plain(self) -> "Model":
        """The model of modules that are read and trained: itself, or what a fast one was made of."""
        return self

    def preprocess(self, images: object) -> Float[Tensor, "B C H W"]:
        """Make what the model reads of a path, bytes, a PIL image, an array or a uint8 tensor, or of a list of them.

        It resizes, crops and scales as the card says and as evaluation does; the batch is where the model is.
        """
        from vitrail.data.preprocess import to_batch

        like = next(self.parameters())
        batch = to_batch(images, self.card.preprocessing, self.config.image_size, self.config.channels)
        return batch.to(like.device, like.dtype)

    def represent(self, images: Tensor) -> Tensor:
        """What the linear classifier reads, B D."""
        raise NotImplementedError

    def outputs(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the linear classifier reads, and the logits that it gives, in one pass; None without a classifier."""
        features = self.represent(images)
        return features, self.head(features) if self.config.classes else None

    @overload
    def feature_map(self, images: Tensor, layers: int = -1) -> Tensor: ...
    @overload
    def feature_map(self, images: Tensor, layers: Sequence[int]) -> list[Tensor]: ...
    def feature_map(self, images: Float[Tensor, "B C H W"], layers: int | Sequence[int] = -1) -> Tensor | list[Tensor]:
        """Features on their grid, B D rows cols, after one block or stage or several, as `maps_after` gives them."""
        wanted = pick_layers(layers, self.layers)
        maps = self.maps_after(images, wanted)
        return [maps[layer] for layer in wanted] if isinstance(layers, Iterable) else maps[wanted[0]]

    def maps_after(self, images: Tensor, wanted: list[int]) -> dict[int, Tensor]:
        """Features on their grid after each of these blocks or stages."""
        raise NotImplementedError

    def tokens(self, images: Tensor) -> Tensor:
        """Every token after the last layer, B T D; of a Vision Transformer alone."""
        raise ConfigError(f"a {type(self).__name__} has no tokens. Take feature_map, or a Vision Transformer.")

    def attention_maps(
        self, images: Tensor, layers: int | Sequence[int] | None = None, queries: slice = slice(None)
    ) -> list[Tensor]:
        """Attention weights by layer, each B h Q T; of a Vision Transformer alone."""
        raise ConfigError(f"a {type(self).__name__} has no attention to show. Take a Vision Transformer.")


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode, without gradients, for a while; every part is then in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


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


def _advice(preprocessing: Preprocessing) -> str:
    """Say how pixels become what the model reads."""
    mean, deviation = (
        f"{values[0]:g}" if len(values) == 1 else f"({', '.join(f'{value:g}' for value in values)})"
        for values in (preprocessing.mean, preprocessing.deviation)
    )
    return f"Take model.preprocess(image); of bytes, it gives (x / 255 - {mean}) / {deviation}, by channel."


def _sides(images: Tensor) -> str:
    return "x".join(map(str, images.shape))
