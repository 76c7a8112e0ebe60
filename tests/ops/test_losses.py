"""Losses against torch's own on probabilities, and against float64 formulas."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from reference import optimisers as reference
from torch import Tensor
from torch.nn import functional as F

from vitrail.config.recipe import Loss
from vitrail.ops.losses import loss_of, smooth

Formula = Callable[[reference.Reals, reference.Reals], reference.Reals]


def case(scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    logits = scale * torch.randn(11, 7, generator=generator)
    return logits, torch.rand(11, 7, generator=generator).softmax(dim=1)


def test_softmax_is_torchs_cross_entropy_with_probabilities() -> None:
    logits, targets = case()
    losses = loss_of(logits, targets, "softmax")
    torch.testing.assert_close(losses, F.cross_entropy(logits, targets, reduction="none"))
    labels = torch.arange(11) % 7
    torch.testing.assert_close(
        loss_of(logits, F.one_hot(labels, 7).float(), "softmax"), F.cross_entropy(logits, labels, reduction="none")
    )


@pytest.mark.parametrize("scale", [0.1, 3.0, 300.0])
def test_both_losses_are_the_float64_formulas_one_number_an_image(scale: float) -> None:
    logits, targets = case(scale)
    formulas: dict[Loss, Formula] = {"softmax": reference.softmax_loss, "sigmoid": reference.sigmoid_loss}
    for kind, formula in formulas.items():
        losses = loss_of(logits, targets, kind)
        assert losses.shape == (11,)
        expected = formula(logits.double().numpy(), targets.double().numpy())
        np.testing.assert_allclose(losses.numpy(), expected, rtol=3e-6)


def test_the_sigmoids_gradient_is_the_difference_of_shares() -> None:
    logits, targets = case()
    logits.requires_grad_()
    loss_of(logits, targets, "sigmoid").sum().backward()
    torch.testing.assert_close(logits.grad, logits.sigmoid().detach() - targets)


def test_logits_of_half_precision_are_summed_in_single() -> None:
    logits, targets = case()
    half = logits.bfloat16()
    for kind in ("softmax", "sigmoid"):
        losses = loss_of(half, targets, kind)
        assert losses.dtype == torch.float32
        torch.testing.assert_close(losses, loss_of(half.float(), targets, kind), rtol=0, atol=0)


def test_smoothing_spreads_a_share_over_all_classes_as_torch_does() -> None:
    logits, _ = case()
    labels = torch.arange(11) % 7
    targets = F.one_hot(labels, 7).float()
    torch.testing.assert_close(smooth(targets, 0.14)[2], torch.tensor([0.02, 0.02, 0.88, 0.02, 0.02, 0.02, 0.02]))
    torch.testing.assert_close(
        loss_of(logits, smooth(targets, 0.14), "softmax"),
        F.cross_entropy(logits, labels, label_smoothing=0.14, reduction="none"),
    )
    assert smooth(targets, 0.0) is targets
    _, mixed = case()
    torch.testing.assert_close(smooth(mixed, 0.3).sum(dim=1), torch.ones(11))


def test_images_without_a_label_have_no_softmax_loss_smoothed_or_not() -> None:
    logits, targets = case()
    targets[[2, 5]] = 0
    logits.requires_grad_()
    for share in (0.0, 0.2):
        losses = loss_of(logits, smooth(targets, share), "softmax")
        assert (losses == 0).nonzero().flatten().tolist() == [2, 5]
        (gradient,) = torch.autograd.grad(losses.sum(), logits)
        assert gradient.abs().sum(dim=1).eq(0).nonzero().flatten().tolist() == [2, 5]
