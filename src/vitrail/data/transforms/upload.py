"""Numbers on their way to a device: one copy that nothing waits for."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(numbers: NDArray[np.generic], device: torch.device) -> Tensor:
    """Copy numbers to a device; to a GPU through pinned memory, so that the host goes on at once."""
    tensor = torch.from_numpy(np.ascontiguousarray(numbers))
    if device.type == "cpu":
        return tensor
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
