"""Position tables on another grid of patches (Section 3.2)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitrail.errors import ShapeError

# Interpolation taps by (old, new, device): they depend on the grid alone, so they never go stale.
_TAPS: dict[tuple[int, int, torch.device], tuple[Tensor, Tensor, Tensor]] = {}


def resample_positions(
    table: Float[Tensor, "T D"], old: tuple[int, int], new: tuple[int, int]
) -> Float[Tensor, "T2 D"]:
    """Resample a table from one grid (rows, cols) to another, corner-aligned and bilinear; entries before it stay."""
    leading = table.shape[0] - old[0] * old[1]
    if leading not in (0, 1):
        raise ShapeError(
            f"a grid of {old[0]}x{old[1]} has {old[0] * old[1]} positions, {old[0] * old[1] + 1} with a class token; "
            f"the table has {table.shape[0]}."
        )
    if old == new:
        return table
    exact = table[leading:].to(torch.promote_types(table.dtype, torch.float32)).unflatten(0, old)  # rows cols D
    for axis in (0, 1):
        exact = _resample_axis(exact, axis, new[axis])
    return torch.cat([table[:leading], exact.flatten(0, 1).to(table.dtype)])  # T2 D


def _resample_axis(table: Float[Tensor, "rows cols D"], axis: int, new: int) -> Float[Tensor, "rows2 cols2 D"]:
    """Resample one axis linearly, first to first and last to last."""
    low, high, share = _taps(table.shape[axis], new, table.device)
    share = share.to(table.dtype).unflatten(0, (new, *[1] * (table.ndim - 1 - axis)))
    return torch.lerp(table.index_select(axis, low), table.index_select(axis, high), share)


def _taps(
    old: int, new: int, device: torch.device
) -> tuple[Int[Tensor, " new"], Int[Tensor, " new"], Float[Tensor, " new"]]:
    """Give for every new place the two old ones around it and the share of the second."""
    if torch.compiler.is_compiling():  # a traced program holds them as its own constants
        return _make_taps(old, new, device)
    key = (old, new, device)
    if key not in _TAPS:
        with torch.inference_mode(mode=False):  # usable in a later backward pass too
            taps = _make_taps(old, new, device)
        if type(taps[0]) is not Tensor:  # a fake tensor of somebody's trace
            return taps
        _TAPS[key] = taps
    return _TAPS[key]


def _make_taps(old: int, new: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    place = torch.arange(new, dtype=torch.float64, device=device) * ((old - 1) / max(new - 1, 1))
    low = place.floor().long().clamp(max=old - 1)
    return low, (low + 1).clamp(max=old - 1), place - low
