"""Rotary positions (Su et al., 2021) in two axes: angles of rows and columns, by which pairs of features are turned."""

from math import tau
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.config import RotaryPositions
from vitrail.errors import ShapeError
from vitrail.ops.constants import constant


@constant
def rotary_table(
    how: RotaryPositions, head_width: int, rows: int, cols: int, device: torch.device
) -> Float[Tensor, "2 N half"]:
    """Cosine and sine of every patch's angles: those of its row first, then those of its column."""
    count = head_width // 4
    rates = how.period ** (-torch.arange(count, dtype=torch.float64, device=device) / count)
    along = []
    for side in (rows, cols):
        places = torch.arange(side, dtype=torch.float64, device=device)
        if how.places == "share":
            places = tau * ((places + 0.5) * (2 / side) - 1)
        elif how.reference is not None:
            places = places * (how.reference / side)
        along.append(places[:, None] * rates)  # side d/4
    down, across = along[0][:, None].expand(-1, cols, -1), along[1].expand(rows, -1, -1)  # rows cols d/4
    angles = torch.cat([down, across], dim=2).flatten(0, 1)  # N d/2
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotate(
    heads: Float[Tensor, "B h T d"],
    table: Float[Tensor, "2 N half"],
    leading: int,
    pairs: Literal["halves", "neighbors"],
) -> Float[Tensor, "B h T d"]:
    """Turn the patches' pairs of features by their angles; the tokens before the patches stay."""
    patches = heads[:, :, leading:]
    if (
        not torch.compiler.is_compiling() and patches.shape[2] != table.shape[1]
    ):  # a trace's free sizes are not compared
        raise ShapeError(
            f"rotary positions are of every patch of a grid, here {table.shape[1]}; got {patches.shape[2]} patches. "
            "Give all of them, with their grid=(rows, cols)."
        )
    cosine, sine = table.to(heads.dtype).unbind(0)  # N d/2
    if pairs == "halves":
        first, second = patches.chunk(2, dim=3)
    else:
        first, second = patches[..., ::2], patches[..., 1::2]
    turned = [first * cosine - second * sine, second * cosine + first * sine]
    turned = torch.cat(turned, dim=3) if pairs == "halves" else torch.stack(turned, dim=4).flatten(3)
    return torch.cat([heads[:, :, :leading], turned], dim=2)
