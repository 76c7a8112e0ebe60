"""What is done beside the training, every so many steps: log, evaluate, probe, save; and how a model is measured."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.checkpoint.run_folder import read_document, write_documents
from vitrail.config.check import whole
from vitrail.config.recipe import MOST_STEPS
from vitrail.errors import CheckpointError, DataError
from vitrail.ops.task_metrics import CHOSEN_BY
from vitrail.runtime.memory import peak_memory
from vitrail.runtime.reporter import OF_DENSE, Reporter
from vitrail.train.folder import PACE, Checkpoints, numeric_environment
from vitrail.train.guard import DivergedError
from vitrail.train.journal import Journal
from vitrail.train.loop import Chore, Plan, Turn
from vitrail.train.sharded import ShardWriter, saves_shards
from vitrail.train.state import DAMAGE, Best, State

PARTS = 20  # of the time, after each of which the end is planned anew
WINDOW = 5  # parts whose pace counts
SPARE = 0.02  # of the time, for what is written at the end
CLOSE = 0.02  # of the steps that are left: a plan that is so near stays
ANSWER = 1 / 3  # what an image costs that is evaluated, of one that is trained on
Evaluate = Callable[[], Mapping[str, float]]  # on every rank; the same numbers on all


@dataclass
class _Noting(Chore):
    """A chore that leaves a record in the log."""

    plan: Plan
    journal: Journal
    report: Reporter
    last = -1  # step at which it was done

    def __call__(self, state: State, *, ends: bool, interrupted: bool) -> None:
        """Do it where it is due, once a step."""
        if self.last != state.step and (ends or not state.step % self.every):
            self.last = state.step
            self.do(state)

    def note(self, record: Mapping[str, Any]) -> None:
        """Write a record and tell it."""
        if self.plan.group.is_main:
            self.journal.write(record)
        self.report.record(record)


@dataclass
class Log(_Noting):
    """Loss, accuracy, learning rate and speed since the last line."""

    clock: float = 0.0
    before: float = 0.0
    rate: float = 0.0  # images a second of the last line

    def begin(self, state: State) -> None:
        """Start the clock; what an earlier run counted is not of its time."""
        self.clock = time.perf_counter()
        self.before = self.plan.group.all_reduce_sum(state.tally).tolist()[2]

    def do(self, state: State) -> None:
        """Write a line."""
        self.plan.guard.read_verdict()
        loss, correct, images = self.plan.group.all_reduce_sum(state.tally).tolist()
        state.tally.zero_()
        now = time.perf_counter()
        seconds, self.clock = max(now - self.clock, 1e-9), now
        count = max(images, 1)
        record: dict[str, Any] = {"kind": "train", "step": state.step, "epoch": state.epoch, "loss": loss / count}
        if self.plan.objective.counts:
            record["accuracy"] = correct / count
        record |= {"learning_rate": state.rate, "grad_norm": float(state.norm)}
        record |= {"images": int(images), "left_out": len(state.bad)}
        self.rate = (images - self.before) / seconds
        record["time"] = {
            "images_per_second": self.rate,
            "memory": peak_memory(self.plan.group.device),
            "clock": time.time(),
        }
        self.before = 0.0
        self.note(record)


def check_finite(metrics: Mapping[str, float], step: int) -> None:
    """Refuse a model that gives numbers that are not finite."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise DivergedError(
                f"evaluation after step {step:,}: {name} is {value}, so the model has diverged. Begin another run "
                "with a lower learning_rate, more warmup_steps, or clip_norm=1."
            )


@dataclass
class _Measuring(_Noting):
    """Measures the weights that count: their average, where there is one."""

    log: Log
    evaluate: Evaluate
    seconds: float = 0.0  # that the last one took

    def measured(self, state: State) -> tuple[dict[str, float], dict[str, float]]:
        """Give the numbers, and the time that they took, which is not the training's."""
        self.plan.guard.read_verdict()
        start = time.perf_counter()
        try:
            with state.to_evaluate():
                metrics = dict(self.evaluate())
        finally:
            self.seconds = time.perf_counter() - start
            self.log.clock += self.seconds
        return metrics, {"seconds": self.seconds, "clock": time.time()}


class Evaluation(_Measuring):
    """Accuracy, or what a task goes by, on images that are not trained on; the best is remembered.

    Of equals it is that of the least loss.
    """

    def do(self, state: State) -> None:
        """Evaluate."""
        metrics, took = self.measured(state)
        check_finite(metrics, state.step)
        by, larger = chosen_by(self.plan, state, metrics)
        value = metrics[by] if larger else -metrics[by]  # the larger the better
        state.metrics = metrics
        best, loss = state.best, metrics.get("loss")
        better = best is None or value > best.value
        state.stale = 0 if better else state.stale + 1
        before = None if best is None or value != best.value else best.loss
        if best is None or better or (loss is not None and before is not None and loss < before):
            best = state.best = Best(state.step, value, loss)
        record = {"kind": "evaluation", "step": state.step, **metrics, "best_step": best.step}
        record |= {} if state.model.card.outputs is None and by not in OF_DENSE else {"by": by}
        self.note(record | {"best": best.value if larger else -best.value, "time": took})


def chosen_by(plan: Plan, state: State, metrics: Mapping[str, float]) -> tuple[str, bool]:
    """Say by which number the best evaluation is chosen, and whether the larger is the better."""
    outputs = state.model.card.outputs
    usual = ("balanced_accuracy" if plan.config.corrections else "accuracy", True)
    by, larger = usual if outputs is None else CHOSEN_BY[type(outputs)]
    by = next((name for name in OF_DENSE if name in metrics), by)
    return (by, larger) if by in metrics else ("loss", False)


class Probing(_Measuring):
    """What frozen features are worth on labelled images; nothing of the run depends on it."""

    def do(self, state: State) -> None:
        """Probe; images that cannot be probed with are no reason to lose the run."""
        try:
            metrics, took = self.measured(state)
        except DataError as error:
            self.report.note(f"step {state.step:,} was not probed: {error}")
            return
        self.note({"kind": "probe", "step": state.step, **metrics, "time": took})


@dataclass
class Tempo(_Noting):
    """Ends a run in time: its end is planned anew by the clock; each plan is kept, and followed by a resumed run."""

    folder: Path
    until: float  # by time.monotonic
    total: float  # seconds
    images: tuple[int, int]  # that are evaluated at the end: to choose by, and to report on
    evaluation: Evaluation | None
    turns: list[Turn] = field(default_factory=list)
    passed: int = 0  # parts of the time
    marks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))  # times and their steps

    def begin(self, state: State) -> None:
        """Take up what was planned before, and the time that it took."""
        if (self.folder / PACE).is_file():
            said = read_document(self.folder / PACE)
            try:
                turns = [
                    (whole("step", step, least=0), float(at), whole("steps", end)) for step, at, end in said["turns"]
                ]
                self.until -= float(said["used"])
            except DAMAGE as error:
                raise CheckpointError(f"{self.folder / PACE} is damaged. Remove it: time is planned anew.") from error
            self.turns = [Turn(*turn) for turn in turns]
        for turn in self.turns:
            if turn.step <= state.step:
                self.plan.take_turn(turn)

    def __call__(self, state: State, *, ends: bool, interrupted: bool) -> None:
        """Follow the plan; make another where a part of the time has passed, or none is left."""
        ahead = [turn for turn in self.turns if turn.step >= state.step]
        now = time.monotonic()
        left = self.until - SPARE * self.total - now
        if ahead:
            if ahead[0].step == state.step:
                self._turn(ahead[0])
        elif not ends:
            self._plan_anew(state, now, left)
        if interrupted:
            self._keep(now)

    def _plan_anew(self, state: State, now: float, left: float) -> None:
        part = int(PARTS * (1 - left / self.total))
        before, step = self.marks[0] if self.marks else (now, state.step)
        pace = (now - before) / max(state.step - step, 1)
        left -= self._at_the_end(pace)
        due = part > self.passed and pace > 0
        if due or not self.marks:  # from the end of the first step on: workers start in it
            self.passed = part
            self.marks.append((now, state.step))
        steps = state.step + (min(int(left / pace), MOST_STEPS) if due and left > 0 else 0)
        other = abs(steps - self.plan.steps) > max(CLOSE * (self.plan.steps - state.step), 1)
        if left <= 0 or (due and other):
            self.turns.append(Turn(state.step, self.plan.place(state.step), steps))
            self._keep(now)
            self._turn(self.turns[-1])

    def _turn(self, turn: Turn) -> None:
        self.plan.take_turn(turn)
        self.note({"kind": "plan", "step": turn.step, "steps": turn.steps})

    def _keep(self, now: float) -> None:
        used = self.total - (self.until - now)
        write_documents(self.folder, {PACE: {"used": used, "turns": [list(turn) for turn in self.turns]}})

    def _at_the_end(self, pace: float) -> float:
        """Give the seconds that the last evaluations take: as the last one did, or a share of a step's for an image.

        An image costs no more than one that is trained on; what is left of the last one's time started it.
        """
        val, test = self.images
        trained = pace / self.plan.config.batch_size
        if self.evaluation is None or not self.evaluation.seconds or not val:
            return ANSWER * trained * (val + test)
        each = min(self.evaluation.seconds / val, trained)
        starting = self.evaluation.seconds - each * val
        return starting * (1 + (test > 0)) + each * (val + test)


@dataclass
class Save(_Noting):
    """A checkpoint every so many steps, of the best, at the end and when the run is interrupted."""

    checkpoints: Checkpoints
    writer: ShardWriter | None = None  # of a large model that is shared out

    def __call__(self, state: State, *, ends: bool, interrupted: bool) -> None:
        """Save where it is due."""
        best = state.best is not None and state.best.step == state.step
        super().__call__(state, ends=ends or interrupted or best, interrupted=interrupted)
        if ends or interrupted:
            self.settle(state)

    def settle(self, state: State) -> None:
        """Wait for the checkpoint that is being written, and remove those that are not kept."""
        path = None if self.writer is None else self.writer.wait()
        if path is not None:
            self.plan.group.on_main(lambda: self.checkpoints.prune(state))
            self.report.record({"kind": "save", "step": int(path.name[5:]), "path": str(path)})

    def do(self, state: State) -> None:
        """Save; the log is on the disk first, as a checkpoint counts on it."""
        self.plan.guard.read_verdict()
        if self.writer is not None or saves_shards(state, self.plan.group):
            self.writer = self.writer or ShardWriter(self.plan.group)
            self.settle(state)
            size = self.plan.group.on_main(lambda: (self.journal.fsync(), self.journal.size)[1])
            extra = {**numeric_environment(self.plan), "journal": size}
            if not self.plan.group.on_main(self.checkpoints.at(state.step).exists):  # a step has one state
                self.writer.begin(state, self.checkpoints.at(state.step), extra)
            return
        tensors = state.tensors(keeps=self.plan.group.is_main)

        def write() -> Path:
            self.journal.fsync()
            extra = {**numeric_environment(self.plan), "journal": self.journal.size}
            return self.checkpoints.write(state, tensors, extra)

        path = self.plan.group.on_main(write)
        self.report.record({"kind": "save", "step": state.step, "path": str(path)})
