"""What the benchmarks time with."""

import time
from collections.abc import Callable

import torch


def rate(step: Callable[[], object], steps: int, batch: int, device: torch.device) -> float:
    """Give images a second over some steps; of one thread on a CPU by its own time, whatever else runs there."""
    clock = time.process_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    settle(device)
    start = clock()
    for _ in range(steps):
        step()
    settle(device)
    return batch * steps / (clock() - start)


def settle(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
