"""Memory of the machine: how much is free, how many images fit into it at once, and keeping what the process has."""

import ctypes
import os
from dataclasses import replace
from pathlib import Path
from typing import assert_never

import torch

from vitrail.config import ModelConfig, ViTConfig
from vitrail.config.objective import Labels, MaskedAutoencoder, MaskedPatches, NextPixels, Objective, count_of
from vitrail.config.recipe import Adam, Training
from vitrail.models.mae import decoder_config
from vitrail.models.masked import outputs_of
from vitrail.ops.cost.counts import parameters
from vitrail.ops.cost.memory import FULL, MOMENTS, Step, peak_memory

SHARE = 0.8  # of the memory that is free
MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
TRIM, MAP = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
LARGEST = 1 << 30


def fit_micro_batch(config: ModelConfig, training: Training, share: int, device: torch.device, precision: str) -> int:
    """Give the most images of a rank's share of the batch that fit, in equal parts."""
    if training.micro_batch is not None:
        return min(training.micro_batch, share)
    sharing = 1 if device.type == "cuda" else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes of this machine
    room = SHARE * free_memory(device) / sharing
    if training.ema is not None:
        room -= FULL * sum(parameters(network).total for network in networks(config, training.objective))
    parts = 1
    while parts < share and _needed(config, training, -(-share // parts), device, precision) > room:
        parts += 1
    return -(-share // parts)


def _needed(config: ModelConfig, training: Training, batch: int, device: torch.device, precision: str) -> int:
    step = Step(
        kind="train",
        batch=batch,
        precision="bfloat16" if precision == "bfloat16" else "float32",
        optimizer="adam" if isinstance(training.optimizer, Adam) else "sgd",
        device="cuda" if device.type == "cuda" else "cpu",
    )
    whole = sum(peak_memory(network, step).total for network in networks(config, training.objective))
    return whole + prediction_bytes(config, training.objective, step)


def networks(config: ModelConfig, objective: Objective) -> tuple[ModelConfig, ...]:
    """Give what a step runs: the model; or, of a masked autoencoder, that of the visible patches and the decoder."""
    if not isinstance(objective, MaskedAutoencoder):
        return (config,)
    assert isinstance(config, ViTConfig)
    rows, cols = config.grid
    seen, side = rows * cols - count_of(objective.masked, rows * cols), config.stem.stride
    return replace(config, image_size=(side, seen * side)), decoder_config(config, objective)  # as if in a row


def prediction_bytes(config: ModelConfig, objective: Objective, step: Step) -> int:
    """Count what predicts patches of images, and what it predicts: the numbers, their loss, and gradients of both."""
    if isinstance(objective, Labels):
        return 0
    assert isinstance(config, ViTConfig)
    patches, width = config.grid[0] * config.grid[1], config.width
    match objective:
        case MaskedPatches():
            asked, each = count_of(objective.corrupted, patches), outputs_of(config, objective)
        case MaskedAutoencoder():
            asked, each = count_of(objective.masked, patches), config.stem.stride**2 * config.channels
            width = decoder_config(config, objective).width
        case NextPixels():
            asked, each = patches, objective.colors
        case _:
            assert_never(objective)
    held = each * (step.item + 3 * FULL) + width * FULL
    return step.batch * asked * held + (width + 1) * each * FULL * (2 + MOMENTS[step.optimizer])


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


def keep_memory() -> bool:
    """Ask glibc not to give freed memory back to the system after every step; tells whether there was one to ask.

    Activations are as large in every step: to get their pages anew takes a tenth of a small model's time.
    """
    try:
        library = ctypes.CDLL(None)
        return bool(library.mallopt(TRIM, LARGEST)) and bool(library.mallopt(MAP, LARGEST))
    except (OSError, AttributeError, TypeError):  # another library, another system
        return False
