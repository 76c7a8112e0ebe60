"""What every model of Vitrail offers."""

from collections.abc import Sequence
from typing import overload

from torch import Tensor, nn

from vitrail.config import Card, ModelConfig
from vitrail.errors import ConfigError


def build_head(config: ModelConfig) -> nn.Linear | nn.Identity:
    """Make the linear classifier; without classes the representation goes through as it is."""
    return nn.Linear(config.representation, config.classes) if config.classes else nn.Identity()


class Model(nn.Module):
    """A classifier of images whose logits are a linear function of `represent`."""

    card: Card = Card()  # class names, preprocessing, provenance and metrics, where they are known
    head: nn.Linear | nn.Identity  # none where the configuration has no classes

    @property
    def config(self) -> ModelConfig:
        """What the model is."""
        raise NotImplementedError

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
