"""How many images go through at once: as many as the memory model says fit, and half of that where they do not."""

import os
from pathlib import Path

import torch

from vitrail.config import ModelConfig
from vitrail.config.recipe import Adam, Training
from vitrail.ops.counts import parameters
from vitrail.ops.memory import FULL, Step, peak_memory

SHARE = 0.8  # of the memory that is free
MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def fit_micro_batch(config: ModelConfig, training: Training, share: int, device: torch.device, precision: str) -> int:
    """Give the most images of a rank's share of the batch that fit, in equal parts."""
    if training.micro_batch is not None:
        return min(training.micro_batch, share)
    sharing = 1 if device.type == "cuda" else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes of this machine
    room = SHARE * free_memory(device) / sharing
    if training.average is not None:
        room -= FULL * parameters(config).total
    parts = 1
    while parts < share and _needed(config, training, -(-share // parts), device, precision) > room:
        parts += 1
    return -(-share // parts)


def _needed(config: ModelConfig, training: Training, batch: int, device: torch.device, precision: str) -> int:
    step = Step(
        kind="train",
        batch=batch,
        precision="bfloat16" if precision == "bfloat16" else "float32",
        optimiser="adam" if isinstance(training.optimiser, Adam) else "sgd",
        device="cuda" if device.type == "cuda" else "cpu",
    )
    return peak_memory(config, step).total


def free_memory(device: torch.device) -> int:
    """Give the bytes that a run may take: of the GPU, or of this machine or what holds this process."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else [8 << 30]
    if MEMINFO.is_file():
        said = dict(line.split(":") for line in MEMINFO.read_text().splitlines())
        free = [int(said["MemAvailable"].split()[0]) * 1024]
    limit, used, parts = (CGROUP / f"memory.{name}" for name in ("max", "current", "stat"))
    if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
        held = dict(line.split() for line in parts.read_text().splitlines()) if parts.is_file() else {}
        cached = int(held.get("inactive_file", 0))  # of files that were read, such as images; given back when needed
        free.append(int(limit.read_text()) - int(used.read_text()) + cached)
    return max(min(free), 1 << 28)
