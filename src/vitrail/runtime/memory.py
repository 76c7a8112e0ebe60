"""What memory a process or its GPU holds, and the most that it held."""

import sys
from pathlib import Path

import torch

from vitrail.runtime.machine import resident_memory

# What a process holds of memory that it keeps, of what its tensors need at most: fitted to steps of five ViTs (LOG.md).
KEPT, LOADED = 1.135, 19 << 20
STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory(device: torch.device) -> int | None:
    """Give the most bytes that were held: of the GPU by tensors, else by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if STATUS.is_file():  # what getrusage says is never forgotten, nor what was before an exec
        said = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
        return int(said["VmHWM"].split()[0]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident(needed: int, device: str, *, checkpointing: bool) -> int:
    """Give what a process is seen to hold of the bytes that its tensors need; on a GPU the allocator counts these."""
    return needed if device == "cuda" else needed + LOADED if checkpointing else int(KEPT * needed) + LOADED


def held_memory(device: torch.device) -> int | None:
    """Give the bytes that are held now: of the GPU by tensors, else by this process, where the system tells."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return resident_memory() or None


def forget_peak(device: torch.device) -> bool:
    """Let the most that is held count from now on; tells whether the system could."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return True
    try:
        FORGET.write_text("5")
    except OSError:
        return False
    return True
