"""What a training step needs of memory, and how many images therefore go through at once."""

import os
from dataclasses import replace
from typing import assert_never

import torch

from vitrail.config import ModelConfig, ViTConfig
from vitrail.config.objective import Labels, MaskedAutoencoder, MaskedPatches, NextPixels, Objective, count_of
from vitrail.config.recipe import SGD, Adam, Muon, Training
from vitrail.models.objectives import decoder_config, outputs_of
from vitrail.ops.cost.counts import FULL, MOMENTS, Optimizer, Step, parameters
from vitrail.ops.cost.fit import SHARE, equal_parts, largest
from vitrail.ops.cost.ranks import Ranks
from vitrail.runtime.compiled import compiles
from vitrail.runtime.machine import free_memory

OPTIMIZERS: dict[Optimizer, type] = {"muon": Muon, "adam": Adam, "sgd": SGD}  # Muon is an Adam with more


def fit_micro_batch(
    config: ModelConfig,
    training: Training,
    share: int,
    device: torch.device,
    precision: str,
    ranks: int = 1,
    objects: int = 0,
) -> int:
    """Give the most images of a rank's share of the batch that fit, in equal parts; an image has so many objects."""
    if training.micro_batch is not None:
        return min(training.micro_batch, share)
    sharing = 1 if device.type == "cuda" else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes of this machine
    room = SHARE * free_memory(device) / sharing

    def fits(batch: int) -> bool:
        return step_bytes(config, training, batch, device.type, precision, ranks, objects) <= room

    most = largest(fits, share)
    return equal_parts(share, most)


def step_bytes(
    config: ModelConfig, training: Training, batch: int, device: str, precision: str, ranks: int = 1, objects: int = 0
) -> int:
    """Predict the peak of a training step of so many images at once: of every network of the objective, and of EMA.

    Of a rank that shares them out with others it is that of its part, and of the block that is whole.
    """
    step = step_of(config, training, batch, device, precision, objects)
    parts, world = networks(config, training.objective), ranks if training.parallel == "fsdp" else 1
    whole = sum(Ranks(config=network, step=step, world=world).fsdp_memory() for network in parts)
    average = 0 if training.ema is None else FULL * sum(parameters(network).total for network in parts) // world
    return whole + prediction_bytes(config, training.objective, step) + average


def step_of(config: ModelConfig, training: Training, batch: int, device: str, precision: str, objects: int = 0) -> Step:
    """Say a step of a training as its memory is counted by; an image has at most so many objects (0: not known)."""
    plain = isinstance(config, ViTConfig) and config.reads_class_token_alone and not config.attention_dropout
    return Step(
        kind="train",
        batch=batch,
        precision="bfloat16" if precision == "bfloat16" else "float32",
        optimizer=next(word for word, kind in OPTIMIZERS.items() if isinstance(training.optimizer, kind)),
        device="cuda" if device == "cuda" else "cpu",
        compiled=device == "cuda" and compiles(training, torch.device(device)),
        objects=objects,
        class_token_alone=plain and isinstance(training.objective, Labels),
    )


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
