"""How something is timed: awake, several times over, and until the device is done."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import torch

from vitrail.errors import ConfigError
from vitrail.studies.bench.table import Unit

MOST_STEPS = 10_000  # of a repeat
Once = Callable[[], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Times steps on a device, about so many seconds in each repeat."""

    device: torch.device
    unit: Unit
    seconds: float

    def times(self, step: Callable[[], object], batch: int) -> Once:
        """Give what times a step of so many images once."""

        def once() -> dict[str, float]:
            if self.device.type != "cpu":
                step()  # wakes the device, and takes the memory that was given back
            one = self._took(step, 1)
            steps = min(max(round(self.seconds / max(one, 1e-9)), 1), MOST_STEPS)
            value = self._value(step, batch, steps, one)
            release(self.device)
            return {"value": value}

        return once

    def _value(self, step: Callable[[], object], batch: int, steps: int, one: float) -> float:
        match self.unit:
            case "ms":
                return 1e3 * statistics.median(self._took(step, 1) for _ in range(steps))
            case "images/s" | "ms an image":
                taken = one if steps == 1 else self._took(step, steps) / steps
                return batch / taken if self.unit == "images/s" else 1e3 * taken / batch
            case "s" | "MiB":
                raise ConfigError(f"steps are not timed in {self.unit}.")
            case _:
                assert_never(self.unit)

    def _took(self, step: Callable[[], object], steps: int) -> float:
        """Give the seconds of some steps, one after the other."""
        settle(self.device)
        start = time.perf_counter()
        for _ in range(steps):
            step()
        settle(self.device)
        return time.perf_counter() - start


def settle(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Give back what the allocator keeps, as others want it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def peak_of(step: Callable[[], object], device: torch.device, held: int) -> dict[str, Any]:
    """Say how much more a step holds on a GPU than was held before its model was made; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    settle(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    settle(device)
    return {"memory": torch.cuda.max_memory_allocated(device) - held}


def held_now(device: torch.device) -> int:
    """Give the bytes that tensors hold on a GPU now."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
