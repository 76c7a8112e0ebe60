"""How good the answers to some images are: what every objective gives."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Losses(NamedTuple):
    """How good the answers to some images are."""

    losses: Float[Tensor, " B"]
    correct: Float[Tensor, " B"]  # share of what was asked that was answered correctly; no gradient
