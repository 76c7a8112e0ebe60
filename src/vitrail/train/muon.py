"""Muon (Jordan et al., 2024), by torch's arithmetic, for the matrices inside the blocks, and AdamW for all else."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from math import sqrt
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from vitrail.config.recipe import Muon
from vitrail.models.encoder import SelfAttention
from vitrail.models.parts import PartedMlp

BUFFER = "momentum_buffer"
QUINTIC = (3.4445, -4.7750, 2.0315)  # of an odd polynomial that brings singular values near 1
LEAST = 1e-7  # of a norm


class Piece(NamedTuple):
    """A matrix, or one of several in one: a view, what it is to move by, and the place of its group."""

    weight: Tensor
    update: Tensor
    group: int

    @property
    def shape(self) -> tuple[int, int]:
        """Its sides, the shorter first."""
        return min(self.weight.shape), max(self.weight.shape)

    @property
    def kind(self) -> tuple[int, bool]:
        """What is moved in one call: of one group, and lying alike."""
        return self.group, self.weight.shape[0] > self.weight.shape[1]


class MuonAdamW(Optimizer):
    """One optimizer of two: matrices have updates whose singular values are about 1, the others those of AdamW.

    A matrix that is several, as query, key and value in one, has an update for each. All of one shape go at once, where
    torch's own takes one after the other: some thirty calls for each, for which a GPU waits.
    """

    def __init__(
        self,
        matrices: Sequence[dict[str, Any]],
        others: Sequence[dict[str, Any]],
        packed: Mapping[Tensor, int],
        config: Muon,
    ) -> None:
        super().__init__([*matrices, *others], {"lr": config.learning_rate, "weight_decay": 0.0})
        self.whole, rest = self.param_groups[: len(matrices)], self.param_groups[len(matrices) :]
        self.config = config
        self.counts = {matrix: packed.get(matrix, 1) for group in self.whole for matrix in group["params"]}
        self.adam = AdamW(rest, lr=config.learning_rate, betas=config.betas, eps=config.epsilon, fused=True)
        self.adam.state = self.state  # what is remembered is in one place, by the parameter

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        pieces = sorted(self._pieces(), key=attrgetter("shape", "kind"))
        for _, some in groupby(pieces, key=attrgetter("shape")):
            self._move(list(some))
        self.adam.step()
        return loss

    def _pieces(self) -> Iterator[Piece]:
        """Give the matrices that have a gradient, cut up, with their momentum taken on."""
        for number, group in enumerate(self.whole):
            given = [matrix for matrix in group["params"] if matrix.grad is not None]
            if not given:
                continue
            for matrix in given:
                if BUFFER not in self.state[matrix]:
                    self.state[matrix][BUFFER] = torch.zeros_like(matrix)
            gradients, memory = [each.grad for each in given], [self.state[each][BUFFER] for each in given]
            torch._foreach_lerp_(memory, gradients, 1 - self.config.momentum)  # pyright: ignore[reportPrivateImportUsage]
            if self.config.nesterov:
                memory = torch._foreach_lerp(gradients, memory, self.config.momentum)  # pyright: ignore[reportPrivateImportUsage]
            for matrix, update in zip(given, memory, strict=True):
                count = self.counts[matrix]
                for weight, part in zip(matrix.detach().chunk(count), update.chunk(count), strict=True):
                    yield Piece(weight, part, number)

    def _move(self, pieces: list[Piece]) -> None:
        """Move matrices of one shape, some of them lying on their side."""
        wide = [piece.update.mT if piece.kind[1] else piece.update for piece in pieces]
        moves = orthogonal(torch.stack(wide), self.config.newton_schulz_steps).to(wide[0].dtype)
        for (number, tall), some in groupby(zip(pieces, moves, strict=True), key=lambda each: each[0].kind):
            weights, found = zip(*((piece.weight, move.mT if tall else move) for piece, move in some), strict=True)
            group = self.whole[number]
            rate = group["lr"] * self._longer(weights[0])
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_add_(weights, found, alpha=-rate)  # pyright: ignore[reportPrivateImportUsage]

    def _longer(self, weight: Tensor) -> float:
        """What the rate is multiplied by, of a matrix of this shape."""
        rows, columns = weight.shape
        if self.config.adjust == "original":
            return sqrt(max(1.0, rows / columns))
        return 0.2 * sqrt(max(rows, columns))


def orthogonal(matrices: Float[Tensor, "B M N"], steps: int) -> Float[Tensor, "B M N"]:
    """Bring the singular values of wide matrices near 1 by Newton-Schulz steps, in bfloat16."""
    a, b, c = QUINTIC
    found = matrices.bfloat16()
    found = found / torch.linalg.vector_norm(found, dim=(1, 2), keepdim=True).clamp(min=LEAST)
    for _ in range(steps):
        gram = found @ found.mT
        gram = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        found = torch.baddbmm(found, gram, found, beta=a)
    return found


def packed_matrices(model: nn.Module) -> dict[Tensor, int]:
    """Say which matrices are several, one above the other: query, key and value, or a gate and its values."""
    found: dict[Tensor, int] = {}
    for module in model.modules():
        if isinstance(module, SelfAttention):
            found[module.qkv.weight] = 3
        elif isinstance(module, PartedMlp) and module.gated:
            found[module.expand.weight] = 2
    return found
