"""Masks by key: their bits against plain Python, their rates, that nothing goes with anything else, and compiled."""

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail.ops import random
from vitrail.ops.random import keep_mask, salted

EDGES = torch.tensor([-(2**63), 2**63 - 1, 0, 1, -1, 2**32, -(2**32), 10**15])


def low(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


def product(word: int) -> int:
    word = low((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9, 64)
    return low((word ^ (word >> 27)) * 0x94D049BB133111EB, 64)


def mix(word: int) -> int:
    return product(word) ^ (product(word) >> 31)


def expected(key: int, place: int, rate: float, salt: int) -> bool:
    """One element, in whole numbers that never wrap by themselves."""
    golden = 0x9E3779B97F4A7C15
    word = product(low(key, 64) ^ mix(golden ^ mix(salt + golden))) >> 32
    place += 1
    place = low((place ^ (place >> 16)) * 0x7FEB352D, 32)
    place = low((place ^ (place >> 15)) * 0x846CA68B, 32)
    value = low((word ^ place ^ (place >> 16)) * 0x7FEB352D, 32)
    value = low((value ^ (value >> 15)) * 0x846CA68B, 31)
    return value >= rate * 2**31


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("salt", [0, 1, 10**6])
def test_a_mask_is_the_hash_of_key_salt_and_place(rate: float, salt: int) -> None:
    kept = keep_mask(salted(EDGES, salt), (3, 5, 7), rate)
    assert kept.shape == (8, 3, 5, 7)
    whole = [[expected(key, place, rate, salt) for place in range(105)] for key in EDGES.tolist()]
    assert kept.flatten(1).tolist() == whole


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("first", [0, -(10**18)])
def test_as_much_is_kept_of_samples_and_elements_as_coins_would_keep(rate: float, first: int) -> None:
    kept = keep_mask(first + torch.arange(1500), (41, 43), rate).flatten(1).double()
    deviation = (rate * (1 - rate)) ** 0.5
    assert abs(kept.mean().item() - (1 - rate)) < 4 * deviation / kept.numel() ** 0.5
    for axis in (0, 1):
        scores = (kept.mean(axis) - (1 - rate)) / deviation * kept.shape[axis] ** 0.5
        assert scores.abs().max() < 5.5
        assert abs(scores.std().item() - 1) < 5 / (2 * len(scores)) ** 0.5  # as wide as coins, and no narrower


def correlations(rows: Tensor) -> Tensor:
    """Of every two rows, in deviations of what chance would give."""
    found = torch.corrcoef(rows.double())
    return found[~torch.eye(len(rows), dtype=torch.bool)] * rows.shape[1] ** 0.5


@pytest.mark.parametrize("step", [1, 2**31, 2**32, 0x9E3779B97F4A7C15 - 2**64])
def test_samples_modules_and_elements_go_their_own_ways(step: int) -> None:
    keys = torch.arange(600) * step
    samples = keep_mask(keys, (31, 37), 0.5).flatten(1)
    modules = torch.stack([keep_mask(salted(keys[:40], salt), (31, 37), 0.5).flatten() for salt in range(60)])
    depths = torch.stack([keep_mask(salted(keys, salt), (1, 1), 0.5).flatten() for salt in range(60)])
    for rows in (samples, samples.T, modules, depths):
        scores = correlations(rows)
        assert scores.abs().max() < 6
        assert abs(scores.std().item() - 1) < 0.05
    for lag in (1, 2, 37):  # neighbours in a row, and in a column
        both = samples[:, lag:] == samples[:, :-lag]
        assert abs(both.double().mean().item() - 0.5) < 4 * 0.5 / both.numel() ** 0.5


def test_the_size_of_a_chunk_changes_nothing_nor_does_an_empty_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = keep_mask(torch.arange(11), (5, 7), 0.3)
    for chunk in (1, 35 * 4):
        monkeypatch.setitem(random.CHUNK, "cpu", chunk)
        assert torch.equal(keep_mask(torch.arange(11), (5, 7), 0.3), whole)
    assert keep_mask(torch.arange(0), (5, 7), 0.3).shape == (0, 5, 7)


BACKENDS = [
    "aot_eager",
    pytest.param(
        "inductor",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on the CPU"),
        ],
    ),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled_masks_have_the_same_bits(untyped: None, backend: str, dynamic: bool) -> None:
    torch.compiler.reset()
    mask: Any = torch.compile(keep_mask, fullgraph=True, backend=backend, dynamic=dynamic)
    for rate, shape in ((0.1, (3, 5)), (0.5, (31, 37)), (0.5, (1, 1)), (0.75, (2, 64))):
        assert torch.equal(mask(EDGES, shape, rate), keep_mask(EDGES, shape, rate))
