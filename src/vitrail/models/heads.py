"""What reads a representation: classifiers by cosines, of two tokens, or linear; the plain ones are torch's own."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import ModelConfig, ViTConfig

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


class TwoHeads(nn.Module):
    """A linear classifier of each half of a representation, averaged (Touvron et al., 2021, Section 4)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width // 2, classes), nn.Linear(width // 2, classes)

    def forward(self, representation: Float[Tensor, "B D"]) -> Float[Tensor, "B K"]:
        """Logits: the mean of both."""
        first, second = representation.chunk(2, dim=1)
        return (self.first(first) + self.second(second)) / 2


Head = nn.Linear | CosineHead | TwoHeads | nn.Identity


def build_head(config: ModelConfig) -> Head:
    """Make the classifier; without classes the representation goes through as it is."""
    if not config.classes:
        return nn.Identity()
    if config.cosine_scale is not None:
        return CosineHead(config.representation, config.classes, config.cosine_scale)
    if isinstance(config, ViTConfig) and config.pooling == "distilled":
        return TwoHeads(config.representation, config.classes)
    return nn.Linear(config.representation, config.classes)
