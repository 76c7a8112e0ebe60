"""Crops of a whole batch at once, each resized from a box of its own: to the bit what `resize` gives them one by one.

torch resizes bytes on a CPU in whole numbers: weights of 16 bits, first along the rows, rounded to bytes, then along
the columns. The same weights as matrices give the same sums in float32, which holds every whole number up to 2**24.
"""

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitrail.ops.constants import constant

LARGEST = 256  # pixels of a side: the table of weights grows with its cube
EXACT = 2**24  # up to which float32 holds every whole number
BITS = 15  # of a weight, without its sign
MOST_BITS = 22


def crop_resize(
    images: UInt8[Tensor, "B C H W"], boxes: Int[Tensor, "B 4"], size: tuple[int, int]
) -> UInt8[Tensor, "B C h w"]:
    """Resize a box (top, left, height, width) of every image, antialiased and bilinear, on any device."""
    top, left, tall, wide = boxes.unbind(dim=1)
    rows, row_bits = _weights(images.shape[2], size[0], images.device)
    cols, col_bits = _weights(images.shape[3], size[1], images.device)
    across = _shifted(cols[wide], left)  # B w W
    down = _shifted(rows[tall], top)  # B h H
    made = torch.matmul(images.to(cols.dtype), across.mT[:, None])  # B C H w
    made = _rounded(made, col_bits[wide]).to(rows.dtype)
    made = torch.matmul(down[:, None], made)  # B C h w
    return _rounded(made, row_bits[tall]).to(torch.uint8)


def _shifted(weights: Float[Tensor, "B new old"], first: Int[Tensor, " B"]) -> Float[Tensor, "B new old"]:
    """Let the weights of a box begin where it does in its image; what lies outside has none."""
    places = torch.arange(weights.shape[2], device=weights.device) - first[:, None]  # B old
    found = weights.gather(2, places.clamp(min=0)[:, None].expand(-1, weights.shape[1], -1))
    return found * (places >= 0)[:, None]


def _rounded(sums: Float[Tensor, "B C h w"], bits: Int[Tensor, " B"]) -> Float[Tensor, "B C h w"]:
    """Divide by two to so many bits and round to the nearest byte, halves up."""
    unit = torch.exp2(bits.to(sums.dtype))[:, None, None, None]
    return ((sums + unit / 2) / unit).floor_().clamp_(0, 255)


@constant
def _weights(
    largest: int, new: int, device: torch.device
) -> tuple[Float[Tensor, "sides new largest"], Int[Tensor, " sides"]]:
    """Give the weights from any number of pixels, up to the largest, to the new one, and how many bits they have."""
    table = np.zeros((largest + 1, new, largest), dtype=np.float64)
    bits = np.zeros(largest + 1, dtype=np.int64)
    for old in range(1, largest + 1):
        table[old, :, :old], bits[old] = whole_weights(old, new)
    exact = 255 * int(table.sum(axis=2).max()) + 2 ** int(bits.max()) < EXACT
    kind = torch.float32 if exact else torch.float64
    return torch.from_numpy(table).to(device=device, dtype=kind), torch.from_numpy(bits).to(device)


def whole_weights(old: int, new: int) -> tuple[NDArray[np.float64], int]:
    """Give the weights, new by old, by which torch resizes bytes, as whole numbers, and the bits that they have."""
    scale = old / new
    reach = max(scale, 1.0)  # of a triangle to either side
    centers = scale * (np.arange(new) + 0.5)
    first = np.maximum((centers - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((centers + reach + 0.5).astype(np.int64), old)
    places = np.arange(old)
    weights = np.maximum(1 - np.abs(places + 0.5 - centers[:, None]) / reach, 0.0)
    weights[(places < first[:, None]) | (places >= last[:, None])] = 0.0
    weights /= weights.sum(axis=1, keepdims=True)
    largest, bits = float(weights.max()), 0
    while bits < MOST_BITS and int(0.5 + largest * (1 << (bits + 1))) < 1 << BITS:
        bits += 1
    return np.floor(weights * (1 << bits) + 0.5), bits
