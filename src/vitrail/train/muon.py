"""Muon (Jordan et al., 2024), torch's own, for the matrices inside the blocks, and AdamW for everything else."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from vitrail.config.recipe import Muon
from vitrail.models.encoder import SelfAttention
from vitrail.models.parts import PartedMlp

BUFFER = "momentum_buffer"


class MuonAdamW(Optimizer):
    """One optimizer of two: matrices have updates whose singular values are about 1, the others those of AdamW.

    A matrix that is several, as query, key and value in one, has an update for each: its momentum stays in one piece.
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
        self.pieces: dict[Tensor, list[nn.Parameter]] = {
            matrix: [nn.Parameter(piece) for piece in matrix.detach().chunk(packed.get(matrix, 1))]
            for group in self.whole
            for matrix in group["params"]
        }
        self.muon = torch.optim.Muon(
            [
                {
                    "params": [piece for matrix in group["params"] for piece in self.pieces[matrix]],
                    "weight_decay": group["weight_decay"],
                }
                for group in self.whole
            ],
            lr=config.learning_rate,
            momentum=config.momentum,
            nesterov=config.nesterov,
            ns_steps=config.newton_schulz_steps,
            adjust_lr_fn=config.adjust,
        )
        self.adam = AdamW(rest, lr=config.learning_rate, betas=config.betas, eps=config.epsilon, fused=True)
        self.adam.state = self.state  # what is remembered is in one place, by the parameter

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for ours, theirs in zip(self.whole, self.muon.param_groups, strict=True):
            theirs["lr"] = ours["lr"]
        for matrix, pieces in self.pieces.items():
            self._lend(matrix, pieces)
        self.muon.step()
        self.adam.step()
        return loss

    def _lend(self, matrix: Tensor, pieces: list[nn.Parameter]) -> None:
        """Give the pieces of a matrix its values, its gradient and its momentum: all of them views."""
        for piece, values in zip(pieces, matrix.detach().chunk(len(pieces)), strict=True):
            piece.data, piece.grad = values, None
        if matrix.grad is None:
            return
        if BUFFER not in self.state[matrix]:
            self.state[matrix][BUFFER] = torch.zeros_like(matrix)
        memory = self.state[matrix][BUFFER]
        lent = zip(pieces, matrix.grad.chunk(len(pieces)), memory.chunk(len(pieces)), strict=True)
        for piece, gradient, momentum in lent:
            piece.grad = gradient
            self.muon.state[piece][BUFFER] = momentum


def packed_matrices(model: nn.Module) -> dict[Tensor, int]:
    """Say which matrices are several, one above the other: query, key and value, or a gate and its values."""
    found: dict[Tensor, int] = {}
    for module in model.modules():
        if isinstance(module, SelfAttention):
            found[module.qkv.weight] = 3
        elif isinstance(module, PartedMlp) and module.gated:
            found[module.expand.weight] = 2
    return found
