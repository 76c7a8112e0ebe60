"""Numbers for a device: constants, made once from sizes alone, and copies that nothing waits for."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result", Tensor, tuple[Tensor, ...])


def constant(make: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Keep what a function of sizes and a device made; a traced program holds it as its own constant instead."""
    kept: dict[object, Result] = {}

    @functools.wraps(make)
    def once(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling():
            return make(*args, **options)
        key = (args, tuple(options.items()))
        if key not in kept:
            with torch.inference_mode(mode=False):  # usable in a later backward pass too
                made = make(*args, **options)
            first = made if isinstance(made, Tensor) else made[0]
            if type(first) is not Tensor:  # a fake tensor of somebody's trace
                return made
            kept[key] = made
        return kept[key]

    return once


def upload(numbers: NDArray[np.generic], device: torch.device) -> Tensor:
    """Copy numbers to a device; to a GPU through pinned memory, so that the host goes on at once."""
    tensor = torch.from_numpy(np.ascontiguousarray(numbers))
    if device.type == "cpu":
        return tensor
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
