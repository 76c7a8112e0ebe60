"""Losses of logits against shares of the classes: one number for every image."""

from math import cos, sin
from typing import Literal, assert_never

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

NARROW = 1e-6  # under which a squared sine, or what a probability lacks of 1, would have a gradient without bound


def smooth(targets: Float[Tensor, "B K"], share: float) -> Float[Tensor, "B K"]:
    """Spread a share of every target over all classes (Szegedy et al., 2016); what has no label keeps none."""
    return targets * (1 - share) + targets.sum(dim=1, keepdim=True) * (share / targets.shape[1]) if share else targets


def with_margin(
    logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"], scale: float, margin: float
) -> Float[Tensor, "B K"]:
    """Give scaled cosines with the target's as if its angle were larger by the margin (ArcFace, Deng et al. 2019).

    s cos(angle + m); where that angle passes pi, s (cos(angle) - m sin(m)), which goes on falling.
    """
    cosine = logits.float() / scale
    sine = (1 - cosine.square()).clamp(min=NARROW).sqrt()
    moved = torch.where(cosine > -cos(margin), cosine * cos(margin) - sine * sin(margin), cosine - margin * sin(margin))
    return torch.where(targets > 0, scale * moved, logits.float())


def loss_of(
    logits: Float[Tensor, "B K"],
    targets: Float[Tensor, "B K"],
    kind: Literal["softmax", "sigmoid"],
    *,
    weights: Float[Tensor, " K"] | None = None,
    focal: float = 0.0,
) -> Float[Tensor, " B"]:
    """Cross-entropy of a softmax over the classes, or the sum over the classes of that of a sigmoid each.

    What has no label, targets of zero, has no loss. `weights` are what classes count for: of a softmax, each share of a
    target its class's, as torch has it; of sigmoids, an image by the classes that it is of. `focal` is the power of
    what an answer lacks of being sure and right, by which its part of the loss is multiplied (Lin et al., 2017).
    """
    logits = logits.float()
    match kind:
        case "softmax":
            logs = F.log_softmax(logits, dim=1)
            shares = targets if weights is None else targets * weights
            shares = shares * (-torch.expm1(logs)).clamp(min=NARROW) ** focal if focal else shares
            return -(shares * logs).sum(dim=1)
        case "sigmoid":
            losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
            losses = (losses * unsure(logits, targets, focal) if focal else losses).sum(dim=1)
            if weights is not None:
                losses = losses * (targets @ weights) / targets.sum(dim=1).clamp(min=NARROW)
            return torch.where(targets.sum(dim=1) > 0, losses, 0)
        case _:
            assert_never(kind)


def unsure(logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"], power: float) -> Float[Tensor, "B K"]:
    """Give what a sigmoid's probability of the target lacks of 1, to a power: the weight of the focal loss."""
    shares = logits.sigmoid()
    return (shares * (1 - targets) + (1 - shares) * targets).clamp(min=NARROW) ** power
