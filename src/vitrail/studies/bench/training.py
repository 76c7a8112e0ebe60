"""Training: the loop's own step, that of other libraries as they are used, and whole runs."""

import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from vitrail.config.recipe import Adam, Training
from vitrail.data.sources.memory import MemorySource
from vitrail.data.sources.packed import pack
from vitrail.errors import VitrailError
from vitrail.studies.bench.forward import draw_images, make_any, stir
from vitrail.studies.bench.peers import CLASSES
from vitrail.studies.bench.table import Opened, TrainLoop, TrainStep
from vitrail.studies.bench.timing import Clock, held_now, peak_of
from vitrail.train.loop import train_step
from vitrail.train.probe import drawn_training
from vitrail.verbs.training import pretrain

RATE, DECAY = 1e-4, 0.1
WARM = 3
Step = Callable[[], object]


def open_training(work: TrainStep, clock: Clock) -> Opened:
    """Make ready to train, and say what a step holds."""
    with ExitStack() as stack:
        step, held = own_step(work, clock, stack) if work.by == "vitrail" else (peer_step(work, clock.device))
        for _ in range(WARM):
            step()
        about = peak_of(step, clock.device, held)
        return Opened(once=clock.times(step, work.shape.batch), about=about, close=stack.pop_all().close)


def own_step(work: TrainStep, clock: Clock, stack: ExitStack) -> tuple[Step, int]:
    """Give the training loop's step on a batch that lies on the device, and what was held before."""
    batch = work.shape.batch
    training = Training(
        optimizer=Adam(learning_rate=RATE, weight_decay=DECAY),
        batch_size=batch,
        micro_batch=batch,
        steps=1,
        compile="auto" if work.compiled else "off",
    )
    changes = {"image_size": (work.shape.image_size,) * 2, **work.shape.fields}
    drawn = stack.enter_context(
        drawn_training(work.shape.model, training, str(clock.device), classes=CLASSES, changes=changes)
    )
    plan, state = drawn.ready.plan, drawn.ready.state
    with closing(plan.feed.stream(start=0)) as batches:
        images = next(batches)

    def step() -> None:
        train_step(plan, state, images)
        if plan.micro_batch < batch:
            raise VitrailError(f"{batch} images do not fit at once beside what else is in memory.")

    return step, drawn.held or 0


def peer_step(work: TrainStep, device: torch.device) -> tuple[Step, int]:
    """Give another library's step: forward, cross-entropy, backward, update, and nothing else; and what was held."""
    held, gpu = held_now(device), device.type == "cuda"
    layout = torch.channels_last if gpu else torch.contiguous_format
    model: Any = stir(make_any(work.by, work.shape, device)).train().to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    forward = torch.compile(model, dynamic=False) if gpu and work.compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
    images = draw_images(work.shape, device)
    labels = torch.arange(work.shape.batch, device=device) % CLASSES

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            loss = F.cross_entropy(forward(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        raise VitrailError("its weights are not finite after a step.")
    return step, held


def open_loop(work: TrainLoop, clock: Clock) -> Opened:
    """Pack images that are drawn, and run once, which compiles what is compiled."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vitrail-bench-")))
        pack_images(work, folder / "data")
        numbers = count()

        def once() -> dict[str, float]:
            return {"value": run_rate(work, folder / "data", folder / f"run-{next(numbers)}", str(clock.device))}

        once()
        return Opened(once=once, close=stack.pop_all().close)


def pack_images(work: TrainLoop, folder: Path) -> None:
    """Draw images in blocks of pixels, and pack them."""
    side, block = work.shape.image_size, 8 if work.shape.image_size % 8 == 0 else 1
    small = np.random.default_rng(0).integers(0, 256, (work.images, side // block, side // block, 3), dtype=np.uint8)
    images = small.repeat(block, axis=1).repeat(block, axis=2)
    names = tuple(f"{number}" for number in range(CLASSES))
    pack(MemorySource(images, np.arange(work.images) % CLASSES, names), folder, side, overwrite=False)


def run_rate(work: TrainLoop, data: Path, out: Path, device: str) -> float:
    """Run once; give the images a second that the second half of its log says, in the middle."""
    fields: dict[str, Any] = {f"model.{name}": value for name, value in work.shape.fields.items()}
    fields |= {"steps": work.steps, "batch_size": work.shape.batch, "image_size": work.shape.image_size}
    fields |= {"save_every": work.steps, "validation_share": 0.0, "log_every": max(work.steps // 20, 1)}
    how: dict[str, Any] = {"model": work.shape.model, "recipe": work.recipe, "device": device, "quiet": True}
    run = pretrain(data, out=out, **how, **fields, **work.training)
    rates = [record["time"]["images_per_second"] for record in run.history if record["kind"] == "train"]
    return statistics.median(rates[len(rates) // 2 :])
