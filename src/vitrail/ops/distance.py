"""Mean attention distance: how far, in pixels of the image, a head looks (Fig. 7 right, Appendix D.7)."""

import torch
from jaxtyping import Float
from torch import Tensor


def patch_places(grid: tuple[int, int], stride: int) -> Float[Tensor, "N 2"]:
    """Where every patch is, in pixels down and to the right of the first, `stride` from each to the next."""
    rows, cols = torch.meshgrid(*(torch.arange(side, dtype=torch.float32) for side in grid), indexing="ij")
    return torch.stack([rows.flatten(), cols.flatten()], dim=1) * stride


def distances_from(some: Float[Tensor, "Q 2"], places: Float[Tensor, "N 2"]) -> Float[Tensor, "Q N"]:
    """Euclidean distance of some patches from all."""
    return (some[:, None] - places).square().sum(dim=2).sqrt()


def distance_sums(
    weights: Float[Tensor, "B h Q N"], far: Float[Tensor, "Q N"], *, normalized: bool
) -> Float[Tensor, "B h"]:
    """Add up over some queries how far each looks: distances weighed by its attention to the patches.

    What it gives to the class token is at no distance and counts nothing; `normalised`, the weights of the patches are
    scaled to one first.
    """
    by_query = torch.einsum("bhqn,qn->bhq", weights, far.to(weights))  # B h Q
    if normalized:
        by_query = by_query / weights.sum(dim=3).clamp(min=torch.finfo(weights.dtype).tiny)
    return by_query.sum(dim=2)
