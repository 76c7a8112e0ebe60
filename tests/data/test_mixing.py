"""Mixing: partners by blocks of the global order, the Beta distribution, pairs and their targets."""

import math

import numpy as np
import pytest
import torch

from vitrail.data.transforms.mixing import (
    SLOTS,
    beta,
    cut_boxes,
    cutmix,
    distribution,
    mixup,
    partners,
    plan,
    soft_targets,
)
from vitrail.errors import ConfigError
from vitrail.ops.random import draws


def test_partners_go_round_their_block() -> None:
    assert partners(np.arange(8), 4).tolist() == [1, 2, 3, 0, 5, 6, 7, 4]


def test_a_last_short_block_pairs_inside_itself() -> None:
    assert partners(np.arange(12, 19), 4).tolist() == [1, 2, 3, 0, 5, 6, 4]
    assert partners(np.arange(5), 4).tolist() == [1, 2, 3, 0, 4]
    assert partners(np.arange(0), 4).tolist() == []


def test_partners_follow_places_and_not_the_order_of_the_batch() -> None:
    places = np.array([9, 0, 11, 3, 8, 1, 10, 2])
    found = partners(places, 4)
    assert (places[found] // 4 == places // 4).all()
    assert (places[found] == places // 4 * 4 + (places + 1) % 4).all()


@pytest.mark.parametrize("block", [2, 4, 8])
def test_every_sample_is_a_partner_once_and_never_its_own(block: int) -> None:
    found = partners(np.arange(block * 5), block)
    assert sorted(found) == list(range(block * 5))
    assert (found != np.arange(block * 5)).all()


@pytest.mark.parametrize("places", [np.arange(2, 10), np.array([0, 1, 2, 4, 5, 6, 7]), np.array([0, 2, 3, 3])])
def test_a_block_in_pieces_is_refused(places: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="multiple of mix_block"):
        partners(places, 4)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 0.8, 1.0, 2.0, 30.0])
def test_the_distribution_has_its_moments(alpha: float) -> None:
    u = draws(np.arange(200_000), 1, 0, 0, 7)[:, 0]
    drawn = beta(u, alpha)
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert drawn.mean() == pytest.approx(0.5, abs=0.005)
    variance = 1 / (4 * (2 * alpha + 1))
    assert drawn.var() == pytest.approx(variance, rel=0.02)
    kurtosis = 3 - 6 / (2 * alpha + 3)
    assert ((drawn - 0.5) ** 4).mean() == pytest.approx(kurtosis * variance**2, rel=0.03)
    assert (np.diff(drawn[np.argsort(u)]) >= 0).all()


def test_known_distributions_are_met() -> None:
    x = np.linspace(0.01, 0.5, 17)
    assert distribution(x, 1.0) == pytest.approx(x)
    assert distribution(x, 2.0) == pytest.approx(3 * x**2 - 2 * x**3)
    assert distribution(x, 0.5) == pytest.approx(2 / math.pi * np.arcsin(np.sqrt(x)))
    u = np.linspace(0, 0.999, 1000)
    assert beta(u, 1.0) == pytest.approx(u, abs=1e-9)
    assert beta(u, 0.5) == pytest.approx(np.sin(math.pi * u / 2) ** 2, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.2, 0.8, 3.0, 30.0])
def test_numbers_between_the_entries_are_close(alpha: float) -> None:
    u = draws(np.arange(2000), 1, 1, 0, 7)[:, 0] / 2
    low, high = np.zeros_like(u), np.full_like(u, 0.5)
    for _ in range(50):
        middle = (low + high) / 2
        under = distribution(middle, alpha) < u
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    near = np.abs(beta(u, alpha) - high)
    assert near.max() < 1e-3
    assert near.mean() < 1e-5


def test_mixup_keeps_the_larger_part_and_cutmix_the_area() -> None:
    places, u = np.arange(400), draws(np.arange(400), SLOTS, 0, 0, 7)
    mixed = plan(places, 8, u, 0.2, 0.0, (9, 11))
    assert mixed.weight.min() >= 0.5
    assert (mixed.boxes == 0).all()
    cut = plan(places, 8, u, 0.0, 1.0, (9, 11))
    assert cut.weight == pytest.approx(1 - cut.boxes[:, 2] * cut.boxes[:, 3] / 99)
    assert cut.weight.min() < 0.2
    both = plan(places, 8, u, 0.2, 1.0, (9, 11))
    first = u[:, 0] < 0.5
    assert 150 < first.sum() < 250
    assert (both.weight == np.where(first, cut.weight, mixed.weight)).all()


def test_boxes_are_inside_and_as_large_as_drawn() -> None:
    u = draws(np.arange(5000), 3, 4, 0, 7)
    top, left, tall, wide = cut_boxes(u, 1.0, (40, 60)).T
    assert min(top.min(), left.min(), tall.min(), wide.min()) >= 0
    assert (top + tall).max() <= 40
    assert (left + wide).max() <= 60
    whole = (top > 0) & (left > 0) & (top + tall < 40) & (left + wide < 60)
    share = 1 - beta(u[:, 0], 1.0)
    assert (tall * wide / 2400)[whole] == pytest.approx(share[whole], abs=0.04)


def test_pairs_are_added_or_cut_in() -> None:
    images, other = torch.zeros(2, 1, 3, 5), torch.ones(2, 1, 3, 5)
    assert torch.equal(mixup(images, other, torch.tensor([1.0, 0.75]))[:, 0, 0, 0], torch.tensor([0.0, 0.25]))
    made = cutmix(images, other, torch.tensor([[0.0, 0, 0, 0], [1, 2, 2, 3]]))
    assert made.sum(dim=(1, 2, 3)).tolist() == [0, 6]
    assert (made[1, 0, 1:, 2:] == 1).all()


def test_targets_are_shares() -> None:
    made = soft_targets(torch.tensor([2, 0, 1]), torch.tensor([0, 0, 2]), torch.tensor([0.75, 0.5, 1.0]), 4)
    assert made.tolist() == [[0.25, 0, 0.75, 0], [1, 0, 0, 0], [0, 1, 0, 0]]


def test_what_has_no_label_has_no_share() -> None:
    labels, other, weight = torch.tensor([-1, 2, -1, 0]), torch.tensor([1, -1, -1, 1]), torch.full((4,), 0.75)
    made = soft_targets(labels, other, weight, 3)
    assert made.tolist() == [[0, 0.25, 0], [0, 0, 0.75], [0, 0, 0], [0.75, 0.25, 0]]
    none = soft_targets(torch.full((4,), -1), torch.full((4,), -1), weight, 0)
    assert none.shape == (4, 0)


def test_an_alpha_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="alpha must be positive"):
        beta(np.zeros(1), 0.0)


def test_a_block_goes_round_those_that_are_there() -> None:
    there, gone = np.array([0, 2, 3, 4, 6]), np.array([1, 5, 7])
    assert partners(there, 4, gone).tolist() == [1, 2, 0, 4, 3]
    assert partners(np.array([5]), 4, np.array([4, 6, 7])).tolist() == [0]
    with pytest.raises(ConfigError, match="must be whole in a batch"):
        partners(there, 4)
