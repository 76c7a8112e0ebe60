"""What memory a step takes, as `vitrail plan` predicts it and as it is."""

import torch

from vitrail.config import ModelConfig
from vitrail.config.recipe import SGD, Adam, Training
from vitrail.errors import ConfigError
from vitrail.models import build
from vitrail.ops.cost.counts import Step, peak_memory
from vitrail.runtime.machine import keep_memory
from vitrail.runtime.memory import forget_peak, held_memory, peak_memory as peak_held, resident
from vitrail.runtime.step_memory import step_bytes
from vitrail.studies.bench.forward import draw_images
from vitrail.studies.bench.peers import config_of
from vitrail.studies.bench.table import Opened, Shape, StepMemory
from vitrail.train.probe import probe

OPTIMIZERS = {"adam": Adam(learning_rate=1e-4), "sgd": SGD()}
MIB = 1 << 20
TINY = Shape(model="ViT-Ti/16", batch=2, image_size=32, fields={"depth": 1})
TINY_RESNET = Shape(model="BiT-R50x1", batch=2, image_size=32, fields={"units": (1,)})


def open_memory(work: StepMemory, device: torch.device) -> Opened:
    """Predict or measure now: other processes do not change what this one holds."""
    held = predict(work, device) if work.predicted else measure(work, device)
    return Opened(once=lambda: {"value": held / MIB})


def training_of(work: StepMemory) -> Training:
    """Say the training whose step it is; eager, since to compile takes longer than to measure."""
    batch = work.shape.batch
    optimizer, precision = OPTIMIZERS[work.optimizer], work.precision
    return Training(
        optimizer=optimizer, batch_size=batch, micro_batch=batch, steps=1, precision=precision, compile="off"
    )


def predict(work: StepMemory, device: torch.device) -> int:
    """Predict the bytes from the configuration alone."""
    config, kind = config_of(work.shape), device.type
    if work.kind == "train":
        needed = step_bytes(config, training_of(work), work.shape.batch, kind, work.precision)
        return resident(needed, kind, checkpointing=config.checkpointing)
    step = Step(
        kind="infer", batch=work.shape.batch, precision=work.precision, device="cuda" if kind == "cuda" else "cpu"
    )
    return peak_memory(config, step).total


def measure(work: StepMemory, device: torch.device) -> int:
    """Measure the bytes that this process, or its GPU, holds more than before."""
    if work.kind == "train":
        size = {"image_size": (work.shape.image_size,) * 2}
        found = probe(
            work.shape.model, training_of(work), str(device), seconds=0.0, changes={**size, **work.shape.fields}
        )
        if found.memory is None:
            raise ConfigError("this system does not say what a process holds.")
        return found.memory
    for shape in (TINY, TINY_RESNET):  # what the libraries load on first use is no model's
        infer(shape, config_of(shape), work.precision, device)
    keep_memory(give_back=True)
    held = held_memory(device)
    peak = infer(work.shape, config_of(work.shape), work.precision, device)
    if held is None or peak is None:
        raise ConfigError("this system does not say what a process holds.")
    return peak - held


def infer(shape: Shape, config: ModelConfig, precision: str, device: torch.device) -> int | None:
    """Run two forward passes, and give the most bytes that are held in the second."""
    model, images = build(config, seed=0, device=device).eval(), draw_images(shape, device)
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        model(images)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        forget_peak(device)
        model(images)
    return peak_held(device)
