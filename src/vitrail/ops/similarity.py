"""How alike vectors and representations are (cosines, CKA), and how far in the image a head looks (Appendix D.7)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from vitrail.errors import ShapeError

FEWEST = 4  # samples without which nothing is left after the corrections


def cosines(vectors: Float[Tensor, "N D"]) -> Float[Tensor, "N N"]:
    """Cosine similarity of every vector with every other."""
    directions = F.normalize(vectors.detach().double(), dim=1)
    return (directions @ directions.T).float()


def gram(features: Float[Tensor, "n F"]) -> Float[Tensor, "n n"]:
    """Products of every two samples' features, in double precision."""
    exact = features.detach().double()
    return exact @ exact.T


def kernel_alignment(first: Float[Tensor, "n n"], second: Float[Tensor, "n n"]) -> float:
    """Linear CKA of two representations of the same samples, from their Gram matrices; 1 where one is a rotation.

    By the unbiased estimate of HSIC (Song et al., 2012), which few samples do not raise; unrelated ones give about 0.
    """
    if first.shape != second.shape or first.shape[0] < FEWEST:
        raise ShapeError(
            f"kernel alignment compares two representations of the same {FEWEST} samples or more; got "
            f"{first.shape[0]} and {second.shape[0]}. Give more images."
        )
    own = _independence(first, first) * _independence(second, second)
    return float(_independence(first, second) / own.clamp(min=torch.finfo(torch.float64).tiny).sqrt())


def _independence(first: Tensor, second: Tensor) -> Tensor:
    """Estimate HSIC without bias."""
    count = first.shape[0]
    one, other = (matrix.double() - matrix.double().diag().diag() for matrix in (first, second))
    product = (one * other.T).sum()
    sums = one.sum() * other.sum() / ((count - 1) * (count - 2))
    crossed = 2 * (one.sum(dim=0) @ other.sum(dim=1)) / (count - 2)
    return (product + sums - crossed) / (count * (count - 3))


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
