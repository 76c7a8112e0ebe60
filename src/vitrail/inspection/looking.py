"""A model to look into: the one behind its wrappers, and images that it can read."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.errors import ConfigError, ShapeError
from vitrail.models import Model, ViT

AT_ONCE = 16  # images


def unwrap(model: nn.Module) -> Model:
    """Give the model behind torch.compile and data-parallel wrappers."""
    inside = model
    while not isinstance(inside, Model):
        wrapped = getattr(inside, "_orig_mod", None) or getattr(inside, "module", None)
        if not isinstance(wrapped, nn.Module):
            raise ConfigError(f"expected a model of Vitrail; got {type(model).__name__}. Take vitrail.load.")
        inside = wrapped
    return inside


def with_attention(model: nn.Module) -> ViT:
    """Give the Vision Transformer or hybrid behind a model; refuse what has no attention."""
    inside = unwrap(model)
    if not isinstance(inside, ViT):
        raise ConfigError(f"a {type(inside).__name__} has no attention to show. Take a Vision Transformer or a hybrid.")
    return inside


def to_model(model: Model, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
    """Move images to the model's device and precision; refuse anything that is no batch of images."""
    check_pictures(images)
    weight = next(model.parameters())
    return images.to(weight.device, weight.dtype)


def check_pictures(images: Tensor) -> None:
    """Refuse anything that is no batch of images."""
    if images.ndim != 4 or not images.is_floating_point():
        raise ShapeError(
            f"expected images as floats, B C H W, scaled as the model reads them; got {images.dtype} of shape "
            f"{tuple(images.shape)}. Take views_of, or add the axis that is missing."
        )
    if not len(images):
        raise ShapeError("there are no images to look at; give one at least.")


def check_weights(model: Model) -> None:
    """Refuse a model whose weights are not all numbers: every picture of it would be empty."""
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise ConfigError(
                f"{name!r} holds numbers that are not finite: the model has diverged. Take another checkpoint."
            )


def in_parts(images: Float[Tensor, "B C H W"], most: int = AT_ONCE) -> Iterator[Float[Tensor, "b C H W"]]:
    """Give a few images at a time."""
    yield from images.split(max(most, 1))
