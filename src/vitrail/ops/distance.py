"""Mean attention distance: how far, in pixels of the image, a head looks (Fig. 7 right, Appendix D.7)."""

import torch
from jaxtyping import Float
from torch import Tensor


def patch_distances(grid: tuple[int, int], stride: int) -> Float[Tensor, "N N"]:
    """Euclidean distance of every two patches' centres, `stride` pixels from each to the next."""
    rows, cols = torch.meshgrid(*(torch.arange(side, dtype=torch.float64) for side in grid), indexing="ij")
    places = torch.stack([rows.flatten(), cols.flatten()], dim=1) * stride  # N 2
    return (places[:, None] - places).square().sum(dim=2).sqrt().float()


def distance_sums(
    weights: Float[Tensor, "B h Q N"], far: Float[Tensor, "Q N"], *, normalised: bool
) -> Float[Tensor, "B h"]:
    """Add up over some queries how far each looks: distances weighed by its attention to the patches.

    What it gives to the class token is at no distance and counts nothing; `normalised`, the weights of the patches are
    scaled to one first.
    """
    by_query = torch.einsum("bhqn,qn->bhq", weights, far.to(weights))  # B h Q
    if normalised:
        by_query = by_query / weights.sum(dim=3).clamp(min=torch.finfo(weights.dtype).tiny)
    return by_query.sum(dim=2)
