"""A run's plan in a line before it starts, its time once a pace is known, and how far off both were at the end."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from vitrail.config import ModelConfig
from vitrail.config.objective import Full, Labels
from vitrail.ops.cost.place import duration
from vitrail.ops.cost.plan import gibibytes
from vitrail.ops.cost.ranks import Ranks
from vitrail.runtime.memory import forget_peak, peak_memory, resident
from vitrail.runtime.reporter import Reporter
from vitrail.runtime.step_memory import step_bytes, step_of
from vitrail.train.chores import ANSWER, Evaluation, Log
from vitrail.train.loop import Chore, Plan
from vitrail.train.state import State

LINES = 2  # of the log, after which the pace counts: the first has what starts


@dataclass
class Forecast(Chore):
    """Says what a run will take, and what it took."""

    plan: Plan
    report: Reporter
    log: Log
    evaluation: Evaluation | None
    images: tuple[int, int]  # that are evaluated: to choose by, and to report on
    held: int | None  # bytes before anything was made
    needed: int | None  # bytes that are predicted beside them
    until: float | None = None  # by time.monotonic, where the run is to end in time
    lines: int = 0
    told: float = 0.0  # when the time was predicted, by time.monotonic
    seconds: float | None = None  # that it was predicted to take from then on
    known: bool = field(default=False)  # the peak counts from the run's beginning

    def begin(self, state: State) -> None:
        """Say the plan."""
        plan, now = self.plan, time.monotonic()
        self.known = forget_peak(plan.group.device)
        share = -(-plan.config.batch_size // plan.group.world_size)
        times = -(-share // plan.micro_batch)
        at_once = f", {plan.micro_batch:,} at a time, {times:,} times" if times > 1 else ""
        ranks = f" on {plan.group.world_size} processes" if plan.group.world_size > 1 else ""
        words = [f"{plan.steps - state.step:,} steps of {plan.config.batch_size:,} images{ranks}{at_once}"]
        if self.needed is not None:
            before = "" if not self.held else f" beside the {gibibytes(self.held)} that are held"
            words.append(f"peak memory {gibibytes(self.needed)}{before}")
        if self.until is None:
            words.append("time: measured after the first steps")
        else:
            self.told, self.seconds = now, max(self.until - now, 0.0)
            words.append(f"time: {duration(self.seconds)}")
        self.report.note(f"plan: {'; '.join(words)}")

    def do(self, state: State) -> None:
        """Predict the time that is left, once, from the pace of the last lines of the log."""
        self.lines += 1
        if self.lines != LINES or self.seconds is not None or self.log.rate <= 0 or state.step >= self.plan.steps:
            return
        steps, each = self.plan.steps - state.step, 1 / self.log.rate
        val, test = self.images
        trained = steps * self.plan.config.batch_size * each
        answered = ANSWER * each * test
        if self.evaluation is not None:
            one = self.evaluation.seconds or ANSWER * each * val
            answered += one * (self.plan.steps // self.evaluation.every - state.step // self.evaluation.every)
        self.told, self.seconds = time.monotonic(), trained + answered
        self.report.note(f"plan: about {duration(self.seconds)} for the {steps:,} steps that are left")

    def tell_end(self) -> None:
        """Say how far off the plan was, of time and of memory, where both are known."""
        words = []
        if self.seconds:
            took = time.monotonic() - self.told
            words.append(f"time {duration(took)}, predicted {duration(self.seconds)} ({off(self.seconds, took)})")
        peak = peak_memory(self.plan.group.device) if self.known else None
        if peak and self.needed is not None and self.held is not None:
            whole = self.held + self.needed
            what = "predicted" if isinstance(self.plan.config.adapt, Full) else "training all weights was predicted at"
            words.append(f"peak memory {gibibytes(peak)}, {what} {gibibytes(whole)} ({off(whole, peak)})")
        if words:
            self.report.note(f"plan: {'; '.join(words)}")


def off(predicted: float, real: float) -> str:
    """Say by how much a prediction was off, of what it really was."""
    return f"{(predicted - real) / real:+.0%}"


def make_forecast(
    plan: Plan,
    config: ModelConfig,
    chores: Sequence[Chore],
    report: Reporter,
    *,
    precision: str,
    images: tuple[int, int],
    held: int | None,
    until: float | None,
) -> Forecast:
    """Make the forecast of a run from the chores that it is timed by."""
    log = next(chore for chore in chores if isinstance(chore, Log))
    evaluation = next((chore for chore in chores if isinstance(chore, Evaluation)), None)
    device, training, world = plan.group.device.type, plan.config, plan.group.world_size
    needed: int | None = step_bytes(config, training, plan.micro_batch, device, precision, objects=plan.objects)
    if world > 1:
        step = step_of(config, training, plan.micro_batch, device, precision, plan.objects)
        ranks = Ranks(config=config, step=step, world=world)
        plain = isinstance(training.objective, Labels) and training.ema is None
        needed = (ranks.fsdp_memory() if training.parallel == "fsdp" else ranks.ddp_memory()) if plain else None
    if needed is not None:
        needed = resident(needed, device, checkpointing=config.checkpointing)
    return Forecast(log.every, plan, report, log, evaluation, images, held, needed, until)
