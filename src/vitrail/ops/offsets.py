"""Numbers for the offsets of two patches in rows and columns: which pair of tokens has which, and on another grid."""

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from vitrail.errors import ShapeError
from vitrail.ops.constants import constant

OF_TOKEN = 3  # numbers of the class token: what it reads of patches, what they read of it, what it reads of itself
LEAST, MOST, NEAR = 1.01, 1.5, 1e-6  # of the factor by which distances grow, and how closely it is found


def count_offsets(grid: tuple[int, int], leading: int) -> int:
    """Count the numbers of a grid: one for each offset, and those of the class token, where there is one."""
    return (2 * grid[0] - 1) * (2 * grid[1] - 1) + (OF_TOKEN if leading else 0)


@constant
def offset_numbers(grid: tuple[int, int], leading: int, device: torch.device) -> Int64[Tensor, "T T"]:
    """Say which number each query (first) has for each key: by rows, then by columns; the class token's come last."""
    rows, cols = (torch.arange(side, device=device) for side in grid)
    down = (rows[:, None] - rows + grid[0] - 1)[:, None, :, None]  # rows 1 rows 1
    across = (cols[:, None] - cols + grid[1] - 1)[None, :, None, :]  # 1 cols 1 cols
    patches = (down * (2 * grid[1] - 1) + across).flatten(2).flatten(0, 1)  # N N
    if not leading:
        return patches
    first = count_offsets(grid, leading) - OF_TOKEN
    whole = patches.new_full((len(patches) + 1, len(patches) + 1), first)
    whole[1:, 1:], whole[1:, 0], whole[0, 0] = patches, first + 1, first + 2
    return whole


def resample_offsets(
    table: Float[Tensor, "M h"],
    old: tuple[int, int],
    new: tuple[int, int],
    how: Literal["geometric", "bilinear"],
) -> Float[Tensor, "M2 h"]:
    """Give the numbers of another grid; those of the class token stay."""
    sides = [(2 * before - 1, 2 * after - 1) for before, after in zip(old, new, strict=True)]
    patches = sides[0][0] * sides[1][0]
    if len(table) - patches not in (0, OF_TOKEN):
        raise ShapeError(
            f"a grid of {old[0]}x{old[1]} has {patches} offsets, {patches + OF_TOKEN} numbers with a class token; "
            f"the table has {len(table)}."
        )
    if old == new:
        return table
    exact = table[:patches].to(torch.promote_types(table.dtype, torch.float32))
    rows, cols = (_shares(*side, how, table.device).to(exact.dtype) for side in sides)
    fresh = torch.einsum("ri,cj,ijh->rch", rows, cols, exact.unflatten(0, (sides[0][0], sides[1][0])))
    return torch.cat([fresh.flatten(0, 1).to(table.dtype), table[patches:]])


@constant
def _shares(
    old: int, new: int, how: Literal["geometric", "bilinear"], device: torch.device
) -> Float[Tensor, "new old"]:
    """Give the share of every old offset in every new one: linear between the two around it, the farthest beyond."""
    olds = torch.arange(old, dtype=torch.float64, device=device)
    places = torch.arange(new, dtype=torch.float64, device=device)
    if how == "bilinear":  # half-pixel centres
        source = ((places + 0.5) * (old / new) - 0.5).clamp(0, old - 1)
        return (1 - (source[:, None] - olds).abs()).clamp(min=0)
    far = _distances(old // 2, new // 2)
    points = torch.tensor([-each for each in reversed(far)] + [0.0, *far], dtype=torch.float64, device=device)
    wanted = (places - new // 2).clamp(points[0], points[-1])
    if old == 1:
        return torch.ones(new, 1, dtype=torch.float64, device=device)
    high = torch.searchsorted(points, wanted).clamp(1, old - 1)
    share = (wanted - points[high - 1]) / (points[high] - points[high - 1])
    shares = torch.zeros(new, old, dtype=torch.float64, device=device)
    shares.scatter_(1, high[:, None] - 1, 1 - share[:, None])
    return shares.scatter_add_(1, high[:, None], share[:, None])


def _distances(old: int, new: int) -> list[float]:
    """Place the old offsets among the new: 1, 1 + q, 1 + q + q^2, ..., with the factor that reaches the farthest."""
    low, high, factor = LEAST, MOST, LEAST
    while high - low > NEAR:  # then, as BEiT's authors have it, the last factor that was tried
        factor = (low + high) / 2
        low, high = (low, factor) if (1 - factor**old) / (1 - factor) > new else (factor, high)
    return [sum(factor**power for power in range(count)) for count in range(1, old + 1)]
