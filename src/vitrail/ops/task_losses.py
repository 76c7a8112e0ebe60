"""Losses of several labels, of numbers, and of ordered classes: one number for every image."""

from typing import Literal, assert_never

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def label_loss(logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"], focal: float = 0.0) -> Float[Tensor, " B"]:
    """Give the mean over the labels of the cross-entropy of a sigmoid each; focal as Lin et al. (2017)."""
    logits = logits.float()
    losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    if focal:
        shares = logits.sigmoid()
        losses = losses * (shares * (1 - targets) + (1 - shares) * targets).clamp(min=1e-6) ** focal
    return losses.mean(dim=1)


def number_loss(
    found: Float[Tensor, "B K"], wanted: Float[Tensor, "B K"], kind: Literal["squared", "huber"], delta: float
) -> Float[Tensor, " B"]:
    """Give the mean over the numbers of half the squared error; of huber, linear from `delta` on (Huber, 1964)."""
    match kind:
        case "squared":
            return (found.float() - wanted).square().mean(dim=1) / 2
        case "huber":
            return F.huber_loss(found.float(), wanted, reduction="none", delta=delta).mean(dim=1)
        case _:
            assert_never(kind)


def order_loss(logits: Float[Tensor, "B K"], targets: Float[Tensor, "B K"]) -> Float[Tensor, " B"]:
    """Give the sum, over the borders between ordered classes, of the cross-entropy of being at or below each.

    The probability of it is that of a softmax over the classes, added up; so a far class costs more than a near one,
    and the loss is least where the probabilities are the true ones.
    """
    logits = logits.float()
    classes = logits.shape[1]
    at_most = up_to(classes, logits.device)[:-1]  # a border by a class
    whole = logits.logsumexp(dim=1, keepdim=True)
    each = logits[:, None].expand(-1, classes - 1, -1)
    below = each.masked_fill(~at_most, -torch.inf).logsumexp(dim=2) - whole
    above = each.masked_fill(at_most, -torch.inf).logsumexp(dim=2) - whole
    share = targets @ at_most.T.to(targets.dtype)
    known = targets.sum(dim=1, keepdim=True)  # 0 of what has no label, which has no loss
    return -(share * below + (known - share) * above).sum(dim=1)


def median_class(probabilities: Float[Tensor, "B K"]) -> Int[Tensor, " B"]:
    """Give the class at which half of the probability is reached: the least expected distance."""
    exact = probabilities.double()
    reached = exact @ up_to(exact.shape[1], exact.device).T.double() >= 0.5 * exact.sum(dim=1, keepdim=True)
    return reached.to(torch.int64).argmax(dim=1)


def up_to(classes: int, device: torch.device) -> Bool[Tensor, "K K"]:
    """Say which classes are at or below each: their sums are products, which a GPU gives the same every time."""
    places = torch.arange(classes, device=device)
    return places[None, :] <= places[:, None]
