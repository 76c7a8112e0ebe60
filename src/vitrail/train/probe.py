"""A probe of seconds: a few steps of a training, as the loop takes them, on images that are drawn."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from vitrail.config import ModelConfig
from vitrail.config.recipe import Training
from vitrail.config.recipes import adjust
from vitrail.data.source import Source
from vitrail.data.sources.memory import MemorySource
from vitrail.models import create
from vitrail.runtime.machine import joined, keep_memory
from vitrail.runtime.memory import forget_peak, held_memory, peak_memory
from vitrail.runtime.reporter import SILENT
from vitrail.runtime.step_memory import fit_micro_batch
from vitrail.train.loop import Chore, Plan, train
from vitrail.train.prepare import Ready, choose_precision, prepare
from vitrail.train.run import deterministic_algorithms
from vitrail.train.state import State
from vitrail.train.task import Parts, Task, foresee_model

WARM = {"cpu": 2, "cuda": 4}  # steps before any counts: kernels are chosen, models compiled, moments made
WINDOW = {"cpu": 1, "cuda": 4}  # steps that are timed together, as to wait for a GPU takes time
LEAST, MOST = 3, 60  # windows
PARTS = 2  # micro-batches of a step at most
SECONDS = 5.0  # that the windows take, about
STEPS = 100_000  # of a run that is never ended


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What a few steps took."""

    device: torch.device
    precision: str
    config: ModelConfig
    images: int  # of a step
    micro_batch: int
    seconds: float  # of a step, the median
    spread: tuple[float, float]  # the shortest and the longest
    timed: int  # steps
    held: int | None  # bytes before anything was made
    peak: int | None  # bytes at most while steps were timed

    @property
    def memory(self) -> int | None:
        """Bytes that the training took, all in all."""
        return None if self.peak is None or self.held is None else max(self.peak - self.held, 0)


@dataclass
class _Clock(Chore):
    """Times windows of steps once they are warm, and ends the run where there are enough."""

    plan: Plan
    limit: float
    times: list[float] = field(default_factory=list)
    last: float = 0.0
    enough: bool = False

    def do(self, state: State) -> None:
        kind, device = self.plan.group.device.type, self.plan.group.device
        if state.step < WARM[kind] or (state.step - WARM[kind]) % WINDOW[kind]:
            return
        if kind == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        if state.step == WARM[kind]:
            forget_peak(device)
            now = time.perf_counter()
        else:
            self.times.append((now - self.last) / WINDOW[kind])
        self.last = now
        enough = len(self.times) >= LEAST and sum(self.times) * WINDOW[kind] >= self.limit
        self.enough = enough or len(self.times) >= MOST


def _wake(device: torch.device) -> None:
    """Let torch load what it loads on first use, which is no model's memory."""
    model = create("R26+ViT-S/32", image_size=32, depth=1, width=48, mlp_width=48, heads=3, units=(1,), device=device)
    model(torch.zeros(2, 3, 32, 32, device=device)).sum().backward()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    optimizer.step()


def drawn_source(size: tuple[int, int], channels: int, classes: int, count: int = 1) -> Source:
    """Draw images of noise, with labels of so many classes."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, *size, channels), dtype=np.uint8)
    return MemorySource(pixels, np.arange(count) % classes, tuple(f"class {number}" for number in range(classes)))


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A training on drawn images that is ready: its plan and state, and what was held before its model was made."""

    ready: Ready
    device: torch.device
    config: ModelConfig
    images: int  # of a step
    held: int | None


@contextmanager
def drawn_training(
    model: str, training: Training, device: str | None, *, classes: int = 1000, **task: object
) -> Iterator[Drawn]:
    """Build a model as a training would, on its device, with drawn images of at most two micro-batches a step."""
    with (
        joined(device) as group,
        deterministic_algorithms(on=training.deterministic),
        tempfile.TemporaryDirectory(prefix="vitrail-") as folder,
    ):
        asked = Task(
            command="",
            data="drawn",
            splits={"train": drawn_source((1, 1), 3, classes)},
            model=model,
            training=training,
            out=Path(folder),
            device=device,
            **task,  # pyright: ignore[reportArgumentType]
        )
        config = foresee_model(asked)
        keep_memory(give_back=config.checkpointing)
        _wake(group.device)
        held = held_memory(group.device)
        precision = choose_precision(training, group.device)
        micro = fit_micro_batch(config, training, training.batch_size, group.device, precision)
        images = min(micro * PARTS, training.batch_size)
        changes = {"steps": STEPS, "batch_size": images, "micro_batch": micro, "validation_share": 0.0}
        changes |= {"patience": None, "held_out": 0.0, "precision": precision}
        source = drawn_source(config.image_size, config.channels, classes, images)
        asked = replace(asked, training=adjust(training, changes), splits={"train": source})
        ready = prepare(asked, Parts(train=source, val=None, test=None), group, SILENT)
        yield Drawn(ready=ready, device=group.device, config=config, images=images, held=held)


def probe(
    model: str,
    training: Training,
    device: str | None,
    *,
    classes: int = 1000,
    seconds: float | None = None,
    **task: object,
) -> Probed:
    """Time a few steps of a training, of at most two micro-batches of drawn images."""
    with drawn_training(model, training, device, classes=classes, **task) as drawn:
        plan = drawn.ready.plan
        clock = _Clock(1, plan, SECONDS if seconds is None else seconds)
        plan.stopped = lambda: clock.enough
        train(plan, drawn.ready.state, [clock])
        return Probed(
            device=drawn.device,
            precision=drawn.ready.precision,
            config=drawn.config,
            images=drawn.images,
            micro_batch=plan.micro_batch,
            seconds=statistics.median(
                clock.times[len(clock.times) // 2 :] if len(clock.times) > LEAST else clock.times
            ),
            spread=(min(clock.times), max(clock.times)),
            timed=len(clock.times) * WINDOW[drawn.device.type],
            held=drawn.held,
            peak=peak_memory(drawn.device),
        )
