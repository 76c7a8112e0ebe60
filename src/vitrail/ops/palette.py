"""A palette: the colours that stand for all others, and the nearest of each (iGPT, Chen et al., 2020)."""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

ROUNDS = 10  # after which a palette hardly changes
CHUNK = 1 << 15  # colours that are compared at a time


def nearest(colors: Float[Tensor, "n C"], palette: Float[Tensor, "K C"]) -> Int64[Tensor, " n"]:
    """Give the number of the palette's nearest colour, the first of several."""
    lengths = palette.square().sum(dim=1) / 2
    parts = [(lengths - part @ palette.T).argmin(dim=1) for part in colors.split(CHUNK)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=colors.device)


def make_palette(colors: Float[Tensor, "n C"], count: int, *, seed: int) -> Float[Tensor, "count C"]:
    """Find `count` colours that lie near to these (k-means), from a random choice of them on."""
    generator = torch.Generator().manual_seed(seed)
    distinct = torch.unique(colors, dim=0)
    order = torch.randperm(len(distinct), generator=generator)
    palette = distinct[order[torch.arange(count) % len(distinct)]].clone()
    for _ in range(ROUNDS):
        mine = nearest(colors, palette)
        counts = torch.bincount(mine, minlength=count)
        sums = torch.zeros_like(palette, dtype=torch.float64).index_add_(0, mine, colors.double())
        used = counts > 0  # one that is nobody's stays where it is
        palette[used] = (sums[used] / counts[used, None]).to(palette.dtype)
    return palette
