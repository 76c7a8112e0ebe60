"""What a model's weights show without an image: its filters, and what it knows of places (Fig. 7, Appendix D.4)."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config.check import as_size, whole
from vitrail.config.fields import encode
from vitrail.errors import ConfigError
from vitrail.inspection.views import unwrap, with_attention
from vitrail.models import BiT, ViT, eval_mode
from vitrail.models.position_kinds import Biased, BiasedTable, Learned2D, Relative
from vitrail.models.positions import AddedPositions
from vitrail.models.resnet import SameConv, standardize_by_variance
from vitrail.models.vit import PatchEmbedding
from vitrail.ops.patches import unpatchify
from vitrail.ops.similarity import cosines

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


class Axes(NamedTuple):
    """Cosines among the vectors of the rows, and among those of the columns."""

    rows: Float[Tensor, "rows rows"]
    cols: Float[Tensor, "cols cols"]


def kind_of_positions(model: nn.Module) -> str:
    """Tell which picture a model's positions have: none, learned, learned-2d, relative, bias, or fixed."""
    kind = encode(with_attention(model).config.positions)["kind"]
    return "fixed" if kind.startswith("sinusoidal") else kind


def position_similarity(
    model: nn.Module, image_size: int | tuple[int, int] | None = None, table: int = 0, every: int = 1
) -> Float[Tensor, "r c rows cols"]:
    """Give the cosine of each patch's position with all others (Fig. 7 centre), at the grid of an image size.

    Another size than the model's own resamples the positions as the model does. `table` is the layer, where every layer
    has positions of its own. The class token's entry is left out. `every` takes some patches alone, so many rows and
    columns apart, each with all.
    """
    inside = with_attention(model)
    positions = inside.positions
    if not isinstance(positions, AddedPositions):
        kind = kind_of_positions(inside)
        other = {"relative": " Take relative_similarity.", "bias": " Take offset_biases."}.get(kind, "")
        raise ConfigError(f"positions of the kind {kind!r} are no vectors that are added to the tokens.{other}")
    whole("table", table, least=0, most=positions.tables - 1)
    grid = inside.config.stem.grid(*(inside.config.image_size if image_size is None else as_size(image_size)))
    with eval_mode(inside):
        vectors = positions.vectors(table, grid, next(inside.parameters()))[positions.leading :]  # N D
    directions = F.normalize(vectors.detach().double(), dim=1).unflatten(0, grid)  # rows cols D
    some = directions[:: whole("every", every), ::every]
    return torch.einsum("rcd,ijd->rcij", some, directions).float()


def axis_similarity(model: nn.Module, table: int = 0) -> Axes:
    """Give the cosines among the rows' and among the columns' vectors, where each axis has its own (2-D positions)."""
    positions = with_attention(model).positions
    if not isinstance(positions, Learned2D):
        raise ConfigError(
            "rows and columns have vectors of their own in 2-D positions alone. Take position_similarity."
        )
    whole("table", table, least=0, most=positions.tables - 1)
    return Axes(cosines(positions.rows[table].float()), cosines(positions.cols[table].float()))


def relative_similarity(model: nn.Module, table: int = 0) -> Float[Tensor, "h M M"]:
    """Give the cosines among the keys of all offsets of two tokens, from 1 - T to T - 1, in every head."""
    inside = with_attention(model)
    positions = inside.positions
    if not isinstance(positions, Relative):
        raise ConfigError("offsets have keys in relative positions alone. Take position_similarity.")
    whole("table", table, least=0, most=positions.tables - 1)
    keys = positions.offsets[table].detach().float().unflatten(1, (inside.config.heads, inside.config.head_width))
    return torch.stack([cosines(keys[:, head]) for head in range(inside.config.heads)])  # h M M


def offset_biases(model: nn.Module, table: int = 0) -> Float[Tensor, "h R C"]:
    """Give what each head adds to the logits for every offset of two patches, rows first; none is in the middle."""
    inside = with_attention(model)
    positions = inside.positions
    if not isinstance(positions, Biased | BiasedTable):
        raise ConfigError("offsets have biases in positions=bias alone. Take position_similarity.")
    whole("table", table, least=0, most=len(positions.biases) - 1)
    rows, cols = (2 * side - 1 for side in positions.grid)
    return positions.biases[table].detach().float()[: rows * cols].T.unflatten(1, (rows, cols))
