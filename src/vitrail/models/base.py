"""What every model of Vitrail offers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import overload

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import Card, ModelConfig
from vitrail.errors import ConfigError

SHORTEST = 1e-6  # length under which a vector has no direction


class CosineHead(nn.Module):
    """A classifier by cosines: a direction for every class, no bias; lengths do not matter."""

    def __init__(self, width: int, classes: int, scale: float) -> None:
        super().__init__()
        self.directions = nn.Linear(width, classes, bias=False)
        self.scale = scale

    def forward(self, representation: Float[Tensor, "B D"]) -> Float[Tensor, "B K"]:
        """Logits: the scale times the cosines, in single precision, whatever the autocast."""
        with torch.autocast(representation.device.type, enabled=False):
            ours = F.normalize(representation.float(), dim=1, eps=SHORTEST)
            return self.scale * F.linear(ours, F.normalize(self.directions.weight.float(), dim=1, eps=SHORTEST))


Head = nn.Linear | CosineHead | nn.Identity


def build_head(config: ModelConfig) -> Head:
    """Make the classifier, linear or by cosines; without classes the representation goes through as it is."""
    if not config.classes:
        return nn.Identity()
    if config.cosine_scale is not None:
        return CosineHead(config.representation, config.classes, config.cosine_scale)
    return nn.Linear(config.representation, config.classes)


class Model(nn.Module):
    """A classifier of images whose logits are a linear function of `represent`, or of its direction."""

    card: Card = Card()  # class names, preprocessing, provenance and metrics, where they are known
    head: Head  # none where the configuration has no classes

    @property
    def config(self) -> ModelConfig:
        """What the model is."""
        raise NotImplementedError

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

    @overload
    def feature_map(self, images: Tensor, layers: int = -1) -> Tensor: ...
    @overload
    def feature_map(self, images: Tensor, layers: Sequence[int]) -> list[Tensor]: ...
    def feature_map(self, images: Tensor, layers: int | Sequence[int] = -1) -> Tensor | list[Tensor]:
        """Features on their grid, B D rows cols, of one layer or several."""
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
