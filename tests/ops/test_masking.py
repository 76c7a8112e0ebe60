"""Which patches are hidden, how often each kind comes, and what comes in their place."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vitrail.errors import ShapeError
from vitrail.ops.masking import KEPT, MASK, OTHER, choose_patches, corrupt, plan_corruption
from vitrail.ops.random import draws


def numbers(images: int, patches: int) -> NDArray[np.float64]:
    return draws(np.arange(images), 3 * patches, 0, 0, 50)


@pytest.mark.parametrize(
    ("patches", "share", "expected"),
    [(16, 0.5, 8), (15, 0.5, 8), (196, 0.5, 98), (49, 0.15, 7), (49, 0.5, 25), (5, 0.5, 3)],
)
def test_exactly_the_share_is_corrupted_in_every_image(patches: int, share: float, expected: int) -> None:
    found = plan_corruption(numbers(200, patches), share, 0.8, 0.1)
    assert found.patches.shape == found.kinds.shape == found.others.shape == (200, expected)
    for row in found.patches:
        assert len(set(row.tolist())) == expected
        assert row.tolist() == sorted(row.tolist())
        assert 0 <= row.min() <= row.max() < patches


def test_every_patch_is_chosen_as_often_and_each_kind_has_its_share() -> None:
    images, patches = 20_000, 16
    found = plan_corruption(numbers(images, patches), 0.5, 0.8, 0.1)
    often = np.bincount(found.patches.ravel(), minlength=patches) / images
    assert np.abs(often - 0.5).max() < 4 * np.sqrt(0.25 / images)
    total = found.kinds.size
    for kind, share in ((MASK, 0.8), (OTHER, 0.1), (KEPT, 0.1)):
        assert abs((found.kinds == kind).mean() - share) < 4 * np.sqrt(share * (1 - share) / total)
    together = np.mean([np.isin([2, 3], row).all() for row in found.patches])  # without replacement: 8 x 7 / 16 x 15
    assert abs(together - 8 * 7 / (16 * 15)) < 4 * np.sqrt(0.25 / images)


def test_another_patch_is_never_its_own_and_any_is_as_likely() -> None:
    images, patches = 40_000, 5
    found = plan_corruption(numbers(images, patches), 1.0, 0.0, 1.0)
    assert (found.others != found.patches).all()
    for patch in range(patches):
        often = np.bincount(found.others[:, patch], minlength=patches) / images
        expected = np.where(np.arange(patches) == patch, 0, 1 / 4)
        assert np.abs(often - expected).max() < 4 * np.sqrt(0.1875 / images)


def test_what_is_chosen_depends_on_its_numbers_alone() -> None:
    u = numbers(7, 16)
    whole, part = plan_corruption(u, 0.5, 0.8, 0.1), plan_corruption(u[3:5], 0.5, 0.8, 0.1)
    for one, two in zip(whole, part, strict=True):
        np.testing.assert_array_equal(one[3:5], two)


def test_patches_are_chosen_by_the_smallest_numbers() -> None:
    assert choose_patches(np.array([[0.5, 0.1, 0.9, 0.2]]), 2).tolist() == [[1, 3]]


def test_embeddings_are_masked_replaced_or_kept_by_hand() -> None:
    embeddings = torch.arange(5.0)[None, :, None].expand(1, 5, 2).clone()
    made = corrupt(
        embeddings,
        torch.tensor([-1.0, -2.0]),
        torch.tensor([[0, 2, 3]]),
        torch.tensor([[MASK, OTHER, KEPT]]),
        torch.tensor([[4, 1, 4]]),
    )
    expected = torch.tensor([[[-1.0, -2], [1, 1], [1, 1], [3, 3], [4, 4]]])
    torch.testing.assert_close(made, expected)


def test_gradients_reach_the_mask_and_what_is_still_there() -> None:
    embeddings, mask = torch.randn(1, 4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    made = corrupt(embeddings, mask, torch.tensor([[0, 1]]), torch.tensor([[MASK, OTHER]]), torch.tensor([[2, 3]]))
    made.sum().backward()
    assert mask.grad is not None
    assert embeddings.grad is not None
    torch.testing.assert_close(mask.grad, torch.ones(3))
    assert embeddings.grad[0, :, 0].tolist() == [0, 0, 1, 2]  # the fourth stands in two places


def test_a_wrong_number_of_numbers_is_refused() -> None:
    with pytest.raises(ShapeError, match="expected 3 numbers for every patch; got 16 an image"):
        plan_corruption(np.zeros((1, 16)), 0.5, 0.8, 0.1)
