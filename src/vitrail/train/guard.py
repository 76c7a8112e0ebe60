"""Watches loss and gradients, so that no update is made of numbers that are not finite."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import Optimizer

from vitrail.errors import VitrailError
from vitrail.train.muon import MuonAdamW


class DivergedError(VitrailError):
    """Loss or gradients are not finite; the weights are those before the update."""


class Guard:
    """Looks at every step.

    On the CPU, where weights are shared out, and with Muon, it looks before each update. Elsewhere on a GPU the fused
    optimiser skips every update from the first bad one on, by itself, and the guard reads the verdict a step later.
    """

    def __init__(self, optimizer: Optimizer, device: torch.device, *, waits: bool) -> None:
        self.waits = waits or device.type != "cuda" or isinstance(optimizer, MuonAdamW)  # Muon skips no update
        self.bad = torch.zeros((), dtype=torch.float32, device=device)
        self.reading: tuple[Tensor, torch.cuda.Event, Callable[[], str]] | None = None
        if not self.waits:
            optimizer.found_inf = self.bad  # pyright: ignore[reportAttributeAccessIssue]

    def look(self, loss: Tensor, norm: Tensor, where: Callable[[], str]) -> None:
        """Look at a step's loss and gradient norm, before its update; `where` names the step."""
        fine = torch.isfinite(loss) & torch.isfinite(norm)
        if self.waits:
            if not fine:
                raise DivergedError(_message(where, float(loss), float(norm)))
            return
        self.bad.copy_(torch.maximum(self.bad, (~fine).float()))
        self.read_verdict()
        verdict = torch.empty(3, pin_memory=True)
        verdict.copy_(torch.stack([self.bad, loss.float(), norm.float()]), non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self.reading = (verdict, event, where)

    def read_verdict(self) -> None:
        """Read the verdict on the step before."""
        if self.reading is None:
            return
        verdict, event, where = self.reading
        event.synchronize()
        self.reading = None
        if verdict[0]:
            raise DivergedError(_message(where, float(verdict[1]), float(verdict[2])))


def _message(where: Callable[[], str], loss: float, norm: float) -> str:
    return (
        f"{where()}: the loss is {loss} and the norm of the gradients {norm}; nothing was updated. Lower "
        "learning_rate, raise warmup_steps, set clip_norm=1 or precision=float32; vitrail data check finds odd images."
    )
