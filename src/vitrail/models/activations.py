"""The activations of an MLP, by their words."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class QuickGelu(nn.Module):
    """An approximation of GELU: x sigmoid(1.702 x)."""

    def forward(self, features: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Transform each feature on its own."""
        return features * torch.sigmoid(1.702 * features)


ACTIVATIONS = {
    "gelu-tanh": lambda: nn.GELU(approximate="tanh"),
    "gelu": lambda: nn.GELU(approximate="none"),
    "relu": nn.ReLU,
    "quick-gelu": QuickGelu,
    "silu": nn.SiLU,
}
