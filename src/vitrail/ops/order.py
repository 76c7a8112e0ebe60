"""Order and randomness as functions of (seed, epoch, sample): nothing is drawn from a stream that must be replayed.

A shuffled order is a permutation that is computed place by place (a Feistel network on the bits of the place, walked
until it lands inside), so a run resumes at any step at once. A sample's random numbers are a hash of its identity.
"""

from enum import IntEnum, unique
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ROUNDS = 6


@unique
class Purpose(IntEnum):
    """What numbers are drawn for; each has its own, so that none changes with another, and saved runs go on."""

    CROP = 1
    FLIP = 2
    THREE_AUGMENT = 3
    JITTER = 4
    RANDAUGMENT = 5
    ERASING = 6
    MIXING = 7
    DROPOUT = 8
    HIDING = 9  # of patches from a model that learns without labels
    ORDER = 13  # of samples in an epoch
    SPOILING = 40  # of patches, to see what a model relies on
    SHARD = 90  # of samples inside one


def mix(value: Whole) -> Whole:
    """Hash whole numbers of 64 bits, one to one (splitmix64's finaliser, Steele et al., 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@lru_cache(maxsize=4096)
def key(*words: int) -> np.uint64:
    """Make one key of several numbers; their order counts."""
    made = np.zeros(1, dtype=np.uint64)
    for word in words:
        made = mix((made + GOLDEN) ^ mix(np.array([word & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64) + GOLDEN))
    return made[0]


def shuffled(places: NDArray[np.integer], count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Give the samples at these places of an epoch's order: a permutation of range(count), place by place."""
    half = np.uint64(max((max(count - 1, 1).bit_length() + 1) // 2, 1))
    mask = (np.uint64(1) << half) - np.uint64(1)
    keys = [key(seed, epoch, Purpose.ORDER, turn) for turn in range(ROUNDS)]
    found = np.array(places, dtype=np.uint64)
    outside = np.ones(found.shape, dtype=bool)
    while outside.any():  # under four steps on average, since the network's domain is less than four times the count
        left, right = found[outside] >> half, found[outside] & mask
        for turn in keys:
            left, right = right, left ^ (mix(right ^ turn) & mask)
        found[outside] = (left << half) | right
        outside = found >= np.uint64(count)
    return found.astype(np.int64)


def draws(samples: NDArray[np.integer], slots: int, seed: int, epoch: int, purpose: int) -> NDArray[np.float64]:
    """Give every sample `slots` numbers in [0, 1) that depend on nothing but these arguments."""
    base = mix(np.array(samples, dtype=np.uint64) ^ key(seed, epoch, purpose))[:, None]
    steps = (np.arange(1, slots + 1, dtype=np.uint64) * GOLDEN)[None]
    return (mix(mix(base + steps)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
