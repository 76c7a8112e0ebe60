"""Order and randomness as functions of (seed, epoch, sample): nothing is drawn from a stream that must be replayed.

A shuffled order is a permutation that is computed place by place (a Feistel network on the bits of the place, walked
until it lands inside), so a run resumes at any step at once. A sample's random numbers are a hash of its identity, and
its dropout masks one of (its key, module, element), so that neither micro-batches nor ranks nor a restart change them,
and their bits are equal on every device, compiled or not: all of it is arithmetic of whole numbers.
"""

from enum import IntEnum, unique
from functools import lru_cache
from math import prod

import numpy as np
import torch
from jaxtyping import Bool, Int32, Int64
from numpy.typing import NDArray
from torch import Tensor

from vitrail.ops.constants import constant

Whole = NDArray[np.uint64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ROUNDS = 6
FIRST, SECOND = 0x7FEB352D, -2073254261  # of lowbias32 (Wellons, 2018), as signed numbers; products wrap
CHUNK = {"cpu": 1 << 20, "cuda": 1 << 24}  # elements hashed at a time: what a core's cache holds; 128 MiB on a GPU


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
    CLASS = 12  # of a class's images, where classes come equally often
    ORDER = 13  # of samples in an epoch
    MASKING = 14  # of the attention of queries
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


def salted(keys: Int64[Tensor, " B"], salt: int) -> Int64[Tensor, " B"]:
    """Give a module's own keys of the samples; the salt tells modules apart."""
    return keys ^ _signed(int(key(salt)))


def keep_mask(keys: Int64[Tensor, " B"], shape: tuple[int, ...], rate: float) -> Bool[Tensor, "B ..."]:
    """Say which elements of every sample are kept, each with probability 1 - rate, by its key and place alone."""
    words, places = _words(keys), _places(prod(shape), keys.device)
    limit = int(rate * 2**31)
    if torch.compiler.is_compiling():  # one kernel, which holds no hash
        return (_hash(words, places) >= limit).unflatten(1, shape)
    kept = torch.empty((len(words), len(places)), dtype=torch.bool, device=keys.device)
    step = max(1, CHUNK.get(keys.device.type, 1 << 24) // max(len(places), 1))
    for part, out in zip(words.split(step), kept.split(step), strict=True):
        torch.ge(_hash(part, places), limit, out=out)
    return kept.unflatten(1, shape)


def _hash(words: Int32[Tensor, " B"], places: Int32[Tensor, " n"]) -> Int32[Tensor, "B n"]:
    """Make 31 random bits of every word and place, both of which are hashes already."""
    value = (words[:, None] ^ places).mul_(FIRST)
    value.bitwise_xor_((value >> 15).bitwise_and_(0x1FFFF)).mul_(SECOND)
    # The sign goes: a C++ compiler may take a product's sign for that of its factors, since it need not wrap there.
    return value.bitwise_and_(0x7FFFFFFF)


def _words(keys: Int64[Tensor, " B"]) -> Int32[Tensor, " B"]:
    """Hash keys, which may be mere counts, to 32 bits (splitmix64's finaliser, Steele et al., 2014)."""
    value = keys
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ ((value >> shift) & (2 ** (64 - shift) - 1))) * _signed(factor)
    return (value >> 32).to(torch.int32)


@constant
def _places(count: int, device: torch.device) -> Int32[Tensor, " n"]:
    """Hash the places of a sample's elements; the same for every sample and module, so once."""
    value = torch.arange(1, count + 1, dtype=torch.int32, device=device)
    for shift, factor in ((16, FIRST), (15, SECOND)):
        value = (value ^ ((value >> shift) & (0xFFFFFFFF >> shift))) * factor
    return value ^ ((value >> 16) & 0xFFFF)


def _signed(word: int) -> int:
    """Read the lowest 64 bits as a signed number."""
    return (word + 2**63) % 2**64 - 2**63
