"""What a model knows of places: its positions, each against all others (Fig. 7 centre, Appendix D.4)."""

from typing import Literal, NamedTuple, assert_never

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import (
    Learned2DPositions,
    LearnedPositions,
    NoPositions,
    RelativePositions,
    Sinusoidal2DPositions,
    SinusoidalPositions,
)
from vitrail.config.check import as_size, whole
from vitrail.errors import ConfigError
from vitrail.inspection.looking import with_attention
from vitrail.models import eval_mode
from vitrail.models.position_kinds import Learned2D, Relative
from vitrail.models.positions import AddedPositions
from vitrail.ops.similarity import cosines

Kind = Literal["none", "learned", "learned-2d", "relative", "fixed"]


class Axes(NamedTuple):
    """Cosines among the vectors of the rows, and among those of the columns."""

    rows: Float[Tensor, "rows rows"]
    cols: Float[Tensor, "cols cols"]


def kind_of_positions(model: nn.Module) -> Kind:
    """Tell which picture a model's positions have."""
    match with_attention(model).config.positions:
        case NoPositions():
            return "none"
        case LearnedPositions():
            return "learned"
        case Learned2DPositions():
            return "learned-2d"
        case RelativePositions():
            return "relative"
        case SinusoidalPositions() | Sinusoidal2DPositions():
            return "fixed"
        case other:
            assert_never(other)


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
        other = " Take relative_similarity." if kind == "relative" else ""
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
