"""Dropout's masks as functions of (key of the sample, module, element): nothing else changes them.

A mask is a hash and no draw from a stream, so that neither the cut of a batch into micro-batches and ranks nor a
restart changes it, and its bits are equal on every device, compiled or not: all of it is arithmetic of whole numbers.
"""

from math import prod

import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor

from vitrail.ops.constants import constant
from vitrail.ops.order import key

FIRST, SECOND = 0x7FEB352D, -2073254261  # of lowbias32 (Wellons, 2018), as signed numbers; products wrap
CHUNK = {"cpu": 1 << 20, "cuda": 1 << 24}  # elements hashed at a time: what a core's cache holds; 128 MiB on a GPU


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
