"""What the machine suggests where nothing is said."""

import os


def usual_workers(*, gpu: bool) -> int:
    """Leave the model's own process a core of those beside a GPU; on the CPU the model needs them all."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = max(cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
    return min(max(cores - 1, 1), 16) if gpu else 0


def has_gpu(device: str | None) -> bool:
    """Tell whether a GPU is meant: the one that is named, or any that is there."""
    import torch

    return torch.cuda.is_available() if device is None else device.startswith("cuda")
