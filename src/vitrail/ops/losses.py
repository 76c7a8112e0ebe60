"""Losses of logits against shares of the classes: one number for every image."""

from typing import Literal, assert_never

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def smooth(targets: Float[Tensor, "B K"], share: float) -> Float[Tensor, "B K"]:
    """Spread a share of every target over all classes (Szegedy et al., 2016); what has no label keeps none."""
    return targets * (1 - share) + targets.sum(dim=1, keepdim=True) * (share / targets.shape[1]) if share else targets


def loss_of(
    logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"], kind: Literal["softmax", "sigmoid"]
) -> Float[Tensor, " B"]:
    """Cross-entropy of a softmax over the classes, or the sum over the classes of that of a sigmoid each.

    What has no label, targets of zero, has no loss.
    """
    logits = logits.float()
    match kind:
        case "softmax":
            return -(targets * F.log_softmax(logits, dim=1)).sum(dim=1)
        case "sigmoid":
            losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=1)
            return torch.where(targets.sum(dim=1) > 0, losses, 0)
        case _:
            assert_never(kind)
