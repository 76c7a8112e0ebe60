"""Principal components of filters (Fig. 7 left)."""

import torch
from jaxtyping import Float
from torch import Tensor


def principal_components(filters: Float[Tensor, "D F"], count: int) -> tuple[Float[Tensor, "k F"], Float[Tensor, " k"]]:
    """Give the directions in which the filters differ most, each of length one, and their shares of the variance.

    There are no more than filters or their values. A component has no sign of its own: its largest value is positive.
    """
    exact = filters.detach().double()
    _, sizes, directions = torch.linalg.svd(exact - exact.mean(dim=0), full_matrices=False)
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    shares = sizes.square() / sizes.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
    return (directions * largest.sign())[:count].float(), shares[:count].float()
