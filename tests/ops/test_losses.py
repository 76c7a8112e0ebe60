"""Losses against torch's own on probabilities, and against float64 formulas."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from reference import faces, optimizers as reference, uneven as slow
from torch import Tensor
from torch.nn import functional as F

from vitrail.models.heads import CosineHead
from vitrail.ops.losses import loss_of, smooth, with_margin

Kind = Literal["softmax", "sigmoid"]
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
    formulas: dict[Kind, Formula] = {"softmax": reference.softmax_loss, "sigmoid": reference.sigmoid_loss}
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


def angular(seed: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Representations and directions at all kinds of angles, and labels; some targets are nearly opposite."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    representation = 2 * torch.randn(13, 3, dtype=torch.float64, generator=generator)
    labels = torch.arange(13) % 5
    representation[3] = -1.5 * directions[3] + 0.1 * representation[3]
    representation[7] = 0.7 * directions[2] + 0.05 * representation[7]
    return representation, directions, labels


def arcface(representation: Tensor, directions: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
    """As the model and the loop compute it."""
    head = CosineHead(3, 5, scale)
    head.directions.weight = torch.nn.Parameter(directions.float())
    targets = F.one_hot(labels, 5).float()
    return loss_of(with_margin(head(representation.float()), targets, scale, margin), targets, "softmax")


@pytest.mark.parametrize("margin", [0.0, 0.2, 0.5, 1.3])
@pytest.mark.parametrize("scale", [1.0, 32.0])
def test_the_margin_is_that_of_angles_in_float64(scale: float, margin: float) -> None:
    representation, directions, labels = angular()
    expected = [
        faces.arcface_loss(row, directions.numpy(), int(label), scale, margin)
        for row, label in zip(representation.numpy(), labels, strict=True)
    ]
    found = arcface(representation, directions, labels, scale, margin)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("margin", [0.2, 0.5])
def test_the_margins_gradient_is_that_of_finite_differences(margin: float) -> None:
    representation, directions, labels = angular()
    single = representation.float().requires_grad_()
    arcface(single, directions, labels, 8.0, margin).sum().backward()
    assert single.grad is not None
    step = 1e-6
    for row in range(13):
        for col in range(3):
            sides = []
            for sign in (1, -1):
                moved = representation[row].numpy().copy()
                moved[col] += sign * step
                sides.append(faces.arcface_loss(moved, directions.numpy(), int(labels[row]), 8.0, margin))
            slope = (sides[0] - sides[1]) / (2 * step)
            assert single.grad[row, col].item() == pytest.approx(slope, rel=2e-3, abs=2e-4)


def test_a_margin_of_nothing_is_the_cross_entropy_of_scaled_cosines() -> None:
    representation, directions, labels = angular()
    cosines = F.cosine_similarity(representation[:, None], directions[None], dim=2).float()
    expected = F.cross_entropy(32 * cosines, labels, reduction="none")
    torch.testing.assert_close(arcface(representation, directions, labels, 32.0, 0.0), expected, rtol=1e-4, atol=1e-4)


def test_a_margin_makes_every_loss_larger_and_leaves_other_logits_alone() -> None:
    logits = 32 * torch.linspace(-1, 1, 41)[:, None].repeat(1, 3)
    targets = F.one_hot(torch.ones(41, dtype=torch.int64), 3).float()
    harder = with_margin(logits, targets, 32.0, 0.5)
    assert torch.equal(harder[:, [0, 2]], logits[:, [0, 2]])
    assert (harder[:, 1] < logits[:, 1]).all()
    assert (harder[1:, 1] > harder[:-1, 1]).all()  # also past pi, it rises with the cosine
    unlabeled = torch.zeros(41, 3)
    assert torch.equal(with_margin(logits, unlabeled, 32.0, 0.5), logits)


@pytest.mark.parametrize("autocast", [False, True])
def test_the_gradient_is_finite_where_an_image_lies_on_its_direction_or_opposite(autocast: bool) -> None:
    directions = torch.eye(3)
    exact = torch.cat([directions, -directions, 1e-7 * directions, torch.zeros(1, 3)])
    representation = exact.clone().requires_grad_()
    head = CosineHead(3, 3, 64.0)
    head.directions.weight = torch.nn.Parameter(directions.clone())
    targets = F.one_hot(torch.arange(10) % 3, 3).float()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = head(representation)
    assert logits.dtype == torch.float32
    loss_of(with_margin(logits, targets, 64.0, 0.5), targets, "softmax").sum().backward()
    assert representation.grad is not None
    assert representation.grad.isfinite().all()
    assert head.directions.weight.grad is not None
    assert head.directions.weight.grad.isfinite().all()
    beyond = torch.tensor([[64.0001, -64.0001, 0.0]], requires_grad=True)  # as rounding may give
    loss_of(with_margin(beyond, targets[:1], 64.0, 0.5), targets[:1], "softmax").sum().backward()
    assert beyond.grad is not None
    assert beyond.grad.isfinite().all()


@pytest.mark.parametrize("focal", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_weights_and_the_focal_loss_are_those_of_a_loop(kind: Kind, focal: float) -> None:
    logits, targets = case()
    labels, weights = torch.arange(11) % 7, torch.rand(7, generator=torch.Generator().manual_seed(1))
    hard = F.one_hot(labels, 7).float()
    found = loss_of(logits, hard, kind, weights=weights, focal=focal)
    expected = slow.loss(logits.double().tolist(), labels.tolist(), kind, weights.double().tolist(), focal)
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5)
    even = loss_of(logits, targets, kind, weights=torch.ones(7), focal=0.0)
    torch.testing.assert_close(even, loss_of(logits, targets, kind))


def test_weights_of_shares_are_torchs() -> None:
    logits, targets = case()
    weights = torch.linspace(0, 3, 7)
    expected = F.cross_entropy(logits, targets, weight=weights, reduction="none")
    torch.testing.assert_close(loss_of(logits, targets, "softmax", weights=weights), expected)


def test_a_focal_loss_is_finite_and_has_a_finite_gradient_where_an_answer_is_sure() -> None:
    for kind in ("softmax", "sigmoid"):
        logits = torch.tensor([[90.0, -90.0], [-90.0, 90.0], [0.0, 0.0]], requires_grad=True)
        losses = loss_of(logits, torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]), kind, focal=0.5)
        losses.sum().backward()
        assert losses[0] < 1e-6
        assert losses[1] > 80
        assert losses[2] == 0
        assert logits.grad is not None
        assert logits.grad.isfinite().all()
