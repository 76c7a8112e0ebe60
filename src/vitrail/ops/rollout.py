"""Attention rollout: what each token is made of after several layers (Appendix D.8; Abnar and Zuidema, 2020)."""

import torch
from jaxtyping import Float
from torch import Tensor


def with_residual(weights: Float[Tensor, "B T T"]) -> Float[Tensor, "B T T"]:
    """Add the residual's share to attention weights, the mean over the heads: each token keeps as much as it takes."""
    mixed = weights + torch.eye(weights.shape[1], dtype=weights.dtype, device=weights.device)
    return mixed / mixed.sum(dim=2, keepdim=True)


def roll_on(joint: Float[Tensor, "B T T"] | None, weights: Float[Tensor, "B T T"]) -> Float[Tensor, "B T T"]:
    """Go one layer on: shares of the input tokens in the tokens after it; `joint` are those before it."""
    mixed = with_residual(weights)
    return mixed if joint is None else mixed @ joint
