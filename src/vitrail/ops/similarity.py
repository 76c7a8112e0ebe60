"""How alike vectors are, and representations: cosines, and centred kernel alignment (Kornblith et al., 2019)."""

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
