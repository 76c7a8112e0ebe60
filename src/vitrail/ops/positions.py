"""Position tables on another grid (Section 3.2), kernels of another patch, and fixed tables (Appendix D.4)."""

from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from vitrail.config import Resampling
from vitrail.errors import ShapeError
from vitrail.ops.constants import constant
from vitrail.ops.patches import same_size

OF_TOKEN = 3  # numbers of the class token: what it reads of patches, what they read of it, what it reads of itself
LEAST, MOST, NEAR = 1.01, 1.5, 1e-6  # of the factor by which distances grow, and how closely it is found


def resample_positions(
    table: Float[Tensor, "T D"],
    old: tuple[int, int],
    new: tuple[int, int],
    how: Resampling = "bilinear-corners",
    before: int | None = None,
) -> Float[Tensor, "T2 D"]:
    """Resample a table from one grid (rows, cols) to another, as the authors do or another library.

    `before` says how many entries stand before the patches', and stay (None: none or one).
    """
    leading = table.shape[0] - old[0] * old[1]
    if any(side < 1 for side in (*old, *new)):
        raise ShapeError(f"a grid has at least one row and one column; got {old} and {new}.")
    if leading not in ((0, 1) if before is None else (before,)):
        raise ShapeError(
            f"a grid of {old[0]}x{old[1]} has {old[0] * old[1]} positions, {old[0] * old[1] + 1} with a class token; "
            f"the table has {table.shape[0]}."
        )
    if same_size(old, new):
        return table
    grid = table[leading:].to(torch.promote_types(table.dtype, torch.float32)).unflatten(0, old)  # rows cols D
    if how == "bilinear-corners":
        grid = resample_axis(resample_axis(grid, 0, new[0]), 1, new[1])
    else:
        rows, cols = (_bicubic(*sides, how, table.device).to(grid.dtype) for sides in zip(old, new, strict=True))
        grid = torch.einsum("ri,cj,ijd->rcd", rows, cols, grid)
    return torch.cat([table[:leading], grid.flatten(0, 1).to(table.dtype)])  # T2 D


def resample_axis(table: Float[Tensor, "..."], axis: int, new: int) -> Float[Tensor, "..."]:
    """Resample one axis linearly, first to first and last to last; in float32 or better."""
    if same_size((table.shape[axis],), (new,)):
        return table
    low, high, share = _taps(table.shape[axis], new, table.device)
    exact = table.to(torch.promote_types(table.dtype, torch.float32))
    share = share.to(exact.dtype).unflatten(0, (new, *[1] * (table.ndim - 1 - axis)))
    return torch.lerp(exact.index_select(axis, low), exact.index_select(axis, high), share).to(table.dtype)


def sinusoids(places: Float[Tensor, " n"], width: int) -> Float[Tensor, "n width"]:
    """The original Transformer's code of each place: sin and cos of place / 10000^(2i/D), turn by turn."""
    rates = 10000 ** (-torch.arange(0, width, 2, dtype=places.dtype, device=places.device) / width)
    angles = places[:, None] * rates  # n width/2
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)


@constant
def sinusoidal_table(
    width: int, leading: int, old: tuple[int, int], new: tuple[int, int], device: torch.device
) -> Float[Tensor, "T D"]:
    """The code of every token's place in the sequence; on another grid, of its corner-aligned place on the old one."""
    rows, cols = _places(old[0], new[0], device), _places(old[1], new[1], device)
    places = leading + (rows[:, None] * old[1] + cols).flatten()
    return sinusoids(torch.cat([torch.arange(leading, dtype=places.dtype, device=device), places]), width).float()


@constant
def sinusoidal_2d_table(
    width: int, leading: int, old: tuple[int, int], new: tuple[int, int], device: torch.device
) -> Float[Tensor, "T D"]:
    """The code of a patch's row in D/2 features, of its column in the others; a class token has zeros."""
    rows, cols = (sinusoids(_places(before, after, device), width // 2) for before, after in zip(old, new, strict=True))
    grid = torch.cat([rows[:, None].expand(-1, new[1], -1), cols.expand(new[0], -1, -1)], dim=2)  # rows cols D
    return torch.cat([grid.new_zeros(leading, width), grid.flatten(0, 1)]).float()


@constant
def simple_2d_table(
    width: int, leading: int, old: tuple[int, int], new: tuple[int, int], device: torch.device
) -> Float[Tensor, "T D"]:
    """Sines and then cosines of a patch's column in D/2 features, of its row in the others (Beyer et al., 2022)."""
    count = width // 4
    rates = 10000 ** (-torch.arange(count, dtype=torch.float64, device=device) / max(count - 1, 1))
    down, across = (
        torch.cat([angles.sin(), angles.cos()], dim=1)
        for angles in (_places(*sides, device)[:, None] * rates for sides in zip(old, new, strict=True))
    )
    grid = torch.cat([across.expand(new[0], -1, -1), down[:, None].expand(-1, new[1], -1)], dim=2)  # rows cols D
    return torch.cat([grid.new_zeros(leading, width), grid.flatten(0, 1)]).float()


@constant
def _bicubic(old: int, new: int, how: Resampling, device: torch.device) -> Float[Tensor, "new old"]:
    """Give the share of every old place in every new one, as torch's own interpolation has it.

    Written out, since torch cannot trace the antialiased one for sizes that it does not know.
    """
    places, olds = torch.arange(new, dtype=torch.float64, device=device), torch.arange(old, device=device)
    if how == "bicubic-antialias":
        scale = torch.sym_max(old / new, 1.0)
        shares = _cubic((olds + 0.5 - (places[:, None] + 0.5) * (old / new)) / scale, -0.5)
        return shares / shares.sum(dim=1, keepdim=True)
    source = _places(old, new, device) if how == "bicubic-corners" else (places + 0.5) * (old / new) - 0.5
    low = source.floor()
    steps = torch.arange(-1, 3, device=device)
    shares = _cubic(low[:, None] + steps - source[:, None], -0.75)  # of four neighbours; those outside are the border's
    taps = (low[:, None] + steps).long().clamp(0, old - 1)
    return (shares[:, :, None] * (taps[:, :, None] == olds)).sum(dim=1)


def _cubic(distance: Float[Tensor, "..."], sharpness: float) -> Float[Tensor, "..."]:
    """Keys' kernel: its value at each distance, zero from 2 on."""
    far = distance.abs()
    near = ((sharpness + 2) * far - (sharpness + 3)) * far**2 + 1
    beyond = ((far - 5) * far + 8) * far * sharpness - 4 * sharpness
    return torch.where(far <= 1, near, torch.where(far < 2, beyond, torch.zeros_like(far)))


@constant
def _taps(old: int, new: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Give for every new place the two old ones around it and the share of the second."""
    place = _places(old, new, device)
    low = place.floor().long().clamp(max=old - 1)
    return low, (low + 1).clamp(max=old - 1), place - low


def _places(old: int, new: int, device: torch.device) -> Float[Tensor, " new"]:
    """Spread the new places over the old ones, first to first and last to last."""
    return torch.arange(new, dtype=torch.float64, device=device) * ((old - 1) / torch.sym_max(new - 1, 1))


def resample_patches(kernel: Float[Tensor, "D PPC"], old: int, new: int) -> Float[Tensor, "D QQC"]:
    """Give the kernel of patches of another side whose embeddings of resized patches are the old ones.

    FlexiViT (Beyer et al., 2023), Section 3.4: the pseudo-inverse of a bilinear resize; exact where the patch grows.
    """
    if old == new:
        return kernel
    basis = torch.eye(old * old, dtype=torch.float64).unflatten(1, (1, old, old))  # of patches: PP 1 P P
    resize = F.interpolate(basis, size=(new, new), mode="bilinear", align_corners=False).flatten(1)  # PP QQ
    back = torch.linalg.pinv(resize).to(kernel.device)  # QQ PP
    flat = kernel.unflatten(1, (old * old, kernel.shape[1] // old**2)).double()  # D PP C
    return torch.einsum("qp,dpc->dqc", back, flat).flatten(1).to(kernel.dtype)


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
