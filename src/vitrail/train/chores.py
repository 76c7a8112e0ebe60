"""What is done beside the training: log, evaluate, probe, save; each every so many steps."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail.config import Card
from vitrail.errors import DataError
from vitrail.runtime.group import Group
from vitrail.runtime.reporter import Reporter
from vitrail.train.checkpoints import Checkpoints, Journal
from vitrail.train.optimizer import DivergedError, Guard
from vitrail.train.state import Best, State

Evaluate = Callable[[], Mapping[str, float]]  # on every rank; the same numbers on all


@dataclass
class Log:
    """Loss, accuracy, learning rate and speed since the last line."""

    every: int
    journal: Journal
    group: Group
    report: Reporter
    guard: Guard
    counts: bool = True  # whether answers are correct or not
    clock: float = 0.0
    before: float = 0.0

    def begin(self, state: State) -> None:
        """Start the clock; what an earlier run counted is not of its time."""
        self.clock = time.perf_counter()
        self.before = self.group.all_reduce_sum(state.tally).tolist()[2]

    def __call__(self, state: State, *, ends: bool, interrupted: bool) -> None:
        """Write a line where it is due."""
        if state.step % self.every and not ends:
            return
        self.guard.read_verdict()
        loss, correct, images = self.group.all_reduce_sum(state.tally).tolist()
        state.tally.zero_()
        seconds = max(time.perf_counter() - self.clock, 1e-9)
        self.clock = time.perf_counter()
        record: dict[str, Any] = {"kind": "train", "step": state.step, "epoch": state.epoch}
        count = max(images, 1)
        record["loss"] = loss / count
        if self.counts:
            record["accuracy"] = correct / count
        record |= {"learning_rate": state.rate, "grad_norm": float(state.norm)}
        record |= {"images": int(images), "left_out": len(state.bad)}
        record["time"] = {
            "images_per_second": (images - self.before) / seconds,
            "memory": peak_memory(self.group.device),
            "clock": time.time(),
        }
        self.before = 0.0
        if self.group.is_main:
            self.journal.write(record)
        self.report.record(record)


def check_finite(metrics: Mapping[str, float], step: int) -> None:
    """Refuse a model that gives numbers that are not finite."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise DivergedError(
                f"evaluation after step {step:,}: {name} is {value}, so the model has diverged. Begin another run "
                "with a lower learning_rate, more warmup_steps, or clip_norm=1."
            )


def peak_memory(device: torch.device) -> int | None:
    """Give the most bytes that were held: of the GPU by tensors, else by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@dataclass
class _Measuring:
    """Measures the weights that count every so many steps: their average, where there is one."""

    every: int
    evaluate: Evaluate
    journal: Journal
    group: Group
    report: Reporter
    log: Log
    guard: Guard

    def measured(self, state: State) -> tuple[dict[str, float], dict[str, float]]:
        """Give the numbers, and the time that they took, which is not the training's."""
        self.guard.read_verdict()
        start = time.perf_counter()
        try:
            with state.to_evaluate():
                metrics = dict(self.evaluate())
        finally:
            seconds = time.perf_counter() - start
            self.log.clock += seconds
        return metrics, {"seconds": seconds, "clock": time.time()}

    def note(self, record: Mapping[str, Any]) -> None:
        """Write a record and tell it."""
        if self.group.is_main:
            self.journal.write(record)
        self.report.record(record)


class Evaluation(_Measuring):
    """Accuracy on images that are not trained on; the best is remembered."""

    def __call__(self, state: State, *, ends: bool, interrupted: bool) -> None:
        """Evaluate where it is due."""
        if state.step % self.every and not ends:
            return
        metrics, took = self.measured(state)
        check_finite(metrics, state.step)
        value = metrics["accuracy"] if "accuracy" in metrics else -metrics["loss"]  # the larger the better
        state.metrics = metrics
        if state.best is None or value > state.best.value:
            state.best, state.stale = Best(state.step, value), 0
        else:
            state.stale += 1
        record = {"kind": "evaluation", "step": state.step, **metrics, "best_step": state.best.step}
        self.note(record | {"best": abs(state.best.value), "time": took})


class Probing(_Measuring):
    """What frozen features are worth on labelled images; nothing of the run depends on it."""

    def __call__(self, state: State, *, ends: bool, interrupted: bool) -> None:
        """Probe where it is due; images that cannot be probed with are no reason to lose the run."""
        if state.step % self.every and not ends:
            return
        try:
            metrics, took = self.measured(state)
        except DataError as error:
            self.report.note(f"step {state.step:,} was not probed: {error}")
            return
        self.note({"kind": "probe", "step": state.step, **metrics, "time": took})


@dataclass
class Save:
    """A checkpoint every so many steps, of the best, at the end and when the run is interrupted."""

    every: int
    checkpoints: Checkpoints
    journal: Journal
    group: Group
    card: Callable[[State], Card]
    report: Reporter
    guard: Guard
    extra: Callable[[], Mapping[str, Any]]

    def __call__(self, state: State, *, ends: bool, interrupted: bool) -> None:
        """Save where it is due."""
        best = state.best is not None and state.best.step == state.step
        if state.step % self.every and not (ends or interrupted or best):
            return
        self.guard.read_verdict()
        weights, own, others = state.tensors(keeps=self.group.is_main)
        path: Path | None = None
        with self.group.main_process_only() as leads:
            if leads:
                self.journal.fsync()
                extra = {**self.extra(), "journal": self.journal.size}
                path = self.checkpoints.write(state, weights, own, others, self.card(state), extra)
        self.report.record({"kind": "save", "step": state.step, "path": None if path is None else str(path)})
