"""What the benchmarks time with."""

import time
from collections.abc import Callable

import torch


def rate(step: Callable[[], object], steps: int, batch: int, device: torch.device) -> float:
    """Give images a second over some steps."""
    settle(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    settle(device)
    return batch * steps / (time.perf_counter() - start)


def settle(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
