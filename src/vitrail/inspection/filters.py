"""What the first layer has learned: the embedding's filters, or the stem's (Fig. 7 left)."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.config.check import whole
from vitrail.inspection.looking import unwrap
from vitrail.models import BiT, ViT, eval_mode
from vitrail.models.resnet import SameConv
from vitrail.models.vit import PatchEmbedding
from vitrail.ops import unpatchify
from vitrail.ops.convolution import standardize_by_variance

SHOWN = 28  # as in Fig. 7


class Components(NamedTuple):
    """Principal components of filters, the strongest first."""

    filters: Float[Tensor, "k C p p"]
    shares: Float[Tensor, " k"]  # of the variance


def filters_of(model: nn.Module) -> Float[Tensor, "D C p p"]:
    """Give the first layer's filters: of the patches (E in eq. 1), or, as it applies them, of a ResNet's root."""
    inside = unwrap(model)
    with eval_mode(inside):
        if isinstance(inside, BiT):
            return standardize_by_variance(inside.root.weight, inside.root.epsilon).float()
        assert isinstance(inside, ViT)
        if isinstance(inside.embedding, PatchEmbedding):
            flat = inside.embedding.projection.weight[:, None].float()  # D 1 PPC
            return unpatchify(flat, inside.embedding.patch, (1, 1))
        root = inside.embedding.resnet.root
        assert isinstance(root, SameConv)
        return root.standardize(root.weight, root.epsilon).float()


def filter_components(model: nn.Module, count: int = SHOWN) -> Components:
    """Give the principal components of the first layer's filters (Fig. 7 left), each scaled to length one."""
    filters = filters_of(model)
    found, shares = principal_components(filters.flatten(1), whole("count", count))
    return Components(found.unflatten(1, tuple(filters.shape[1:])).to(filters), shares.to(filters))


def principal_components(filters: Float[Tensor, "D F"], count: int) -> tuple[Float[Tensor, "k F"], Float[Tensor, " k"]]:
    """Give the directions in which the filters differ most, each of length one, and their shares of the variance.

    There are no more than filters or their values. A component has no sign of its own: its largest value is positive.
    """
    exact = filters.detach().double()
    _, sizes, directions = torch.linalg.svd(exact - exact.mean(dim=0), full_matrices=False)
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    shares = sizes.square() / sizes.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
    return (directions * largest.sign())[:count].float(), shares[:count].float()
