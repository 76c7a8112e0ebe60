"""How much memory a call takes, by the allocations that torch's profiler records on the CPU."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch.profiler import ProfilerActivity, profile

Result = TypeVar("Result")


def peak_bytes(call: Callable[[], Result]) -> tuple[Result, int]:
    """Run a function and give its result with the most that it held at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as record:
        result = call()
    profiler: Any = record.profiler
    held, peak = 0, 0
    for event in profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return result, peak
