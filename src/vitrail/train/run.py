"""A run from beginning to end: begun or resumed, trained, finished."""

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from vitrail.checkpoint.lora_files import LORA_FILE, write_lora
from vitrail.checkpoint.run_folder import renew_run, write_documents
from vitrail.config import encode
from vitrail.config.objective import Labels, LoRA
from vitrail.config.recipe import Result
from vitrail.data.near import LARGEST
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.files import writing
from vitrail.runtime.machine import Group, joined
from vitrail.runtime.memory import held_memory
from vitrail.runtime.reporter import Reporter
from vitrail.runtime.tracking import send_rest
from vitrail.train.chores import Evaluation, check_finite
from vitrail.train.folder import (
    DONE,
    LEFT_OUT,
    RESOLVED,
    begin,
    check,
    make_folder,
    numeric_environment,
    read_done,
    read_into,
    run_lock,
    staying,
)
from vitrail.train.forecast import make_forecast
from vitrail.train.gaps import check_classes, describe_gaps, describe_held_out, describe_uneven
from vitrail.train.journal import LOG
from vitrail.train.loop import train
from vitrail.train.prepare import Probe, Ready, prepare
from vitrail.train.state import unmerged
from vitrail.train.task import (
    CUT,
    Parts,
    Task,
    choose_parts,
    cut_dev,
    keep_classes,
    training_split,
)

Callback = Callable[[Mapping[str, Any]], object]  # sees every record of the log; ends the run by what is true
SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO = 1.0  # seconds in which a signal is the same once more: `timeout` and schedulers tell the process and its group


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    out: Path
    finished: bool
    step: int
    steps: int
    metrics: Mapping[str, float]
    result: Result = "last"  # which weights are the result: the best of the evaluations, or the last
    result_step: int = 0  # the step that they are of
    seconds: float = 0.0
    labeled: bool = True  # the training images
    again: bool = False  # it was finished before
    interrupted: bool = False  # it was asked to end, perhaps too late to


class _Watched(Reporter):
    """A reporter that shows callbacks every record, and remembers whether one of them asks to end the run."""

    def __init__(self, report: Reporter, callbacks: Sequence[Callback]) -> None:
        self.report, self.callbacks, self.stop = report, callbacks, threading.Event()
        self.note, self.progress = report.note, report.progress

    def record(self, record: Mapping[str, Any]) -> None:
        self.report.record(record)
        for callback in self.callbacks:
            if callback(record):
                self.stop.set()


def run(task: Task, report: Reporter, probe: Probe | None = None, callbacks: Sequence[Callback] = ()) -> Outcome:
    """Train as the task says, or resume where an earlier run of it stopped."""
    start = time.perf_counter()
    with joined(task.device) as group, ExitStack() as stack:

        def claim() -> None:
            make_folder(task.out)
            if not (task.out / DONE).is_file():
                stack.enter_context(run_lock(task.out, report))
            begin(task)

        group.on_main(claim)
        labeled = bool(training_split(task.splits).class_names)
        if (done := read_done(task.out)) is not None:
            if group.is_main:
                send_rest(task.track, task.out, report)
            return Outcome(out=task.out, finished=True, **done, seconds=0.0, labeled=labeled, again=True)
        stack.enter_context(deterministic_algorithms(on=task.training.deterministic))
        # In a frame of its own: what holds the group must be gone before it ends, else torch may wait for ever.
        with staying(task.out):
            outcome = _train(task, group, _Watched(report, callbacks if group.is_main else ()), probe)
    return replace(outcome, labeled=labeled, seconds=time.perf_counter() - start)


def _train(task: Task, group: Group, report: _Watched, probe: Probe | None) -> Outcome:
    """Train in the task's folder, which is this run's alone."""
    held = held_memory(group.device)
    parts = cut_parts(task, group, report)
    ready = prepare(task, parts, group, report, probe)
    with closing(ready.journal):
        resume(ready, group, report)
        group.on_main(lambda: write_documents(task.out, {RESOLVED: resolved(ready)}))
        plan, state = ready.plan, ready.state
        forecast = make_forecast(
            plan,
            state.model.config,
            ready.chores,
            report,
            precision=ready.precision,
            images=(len(parts.val or ()), len(parts.test or ())),
            held=held,
            until=task.until,
        )
        with listening(report) as interrupted:
            plan.interrupted, plan.stopped = interrupted, report.stop.is_set
            report.record({"kind": "begin", "step": state.step, "steps": plan.steps, "batch": plan.config.batch_size})
            finished = train(plan, state, (*ready.chores, forecast))
            if group.world_size == 1 and report.stop.is_set() and state.step < plan.steps:
                measure_last(ready)
            ended = {"step": state.step, "steps": plan.steps, "result_step": state.step, "metrics": state.metrics}
            if finished:
                ended = finish(task, ready, parts, group, report)
                forecast.tell_end()
            ready.journal.finished = finished
            return Outcome(out=task.out, finished=finished, interrupted=plan.interrupted(), **ended)


def measure_last(ready: Ready) -> None:
    """Measure what a run keeps that a callback ended between two evaluations."""
    for chore in ready.chores:
        if isinstance(chore, Evaluation):
            chore(ready.state, ends=True, interrupted=False)


def cut_parts(task: Task, group: Group, report: Reporter) -> Parts:
    """Divide the images by what they are for; those to choose by are cut by content where there is no split of them."""
    training = task.training
    labels = isinstance(training.objective, Labels) and task.objective is None and training.dense_task is None
    splits = keep_classes(task.splits, training.held_out)
    if labels or training.dense_task is not None:
        check_classes(splits)

    def progress(done: int, total: int) -> None:
        report.progress("reading images, to keep some back by content", done, total)

    cut = group.on_main(lambda: cut_dev(splits, training.validation_share, task.out / CUT, progress=progress))
    parts = choose_parts(splits, cut)
    if cut is not None and len(training_split(splits)) > LARGEST:
        report.note(
            f"over {LARGEST:,} images: those to choose by are drawn without reading any, so that copies may be on both "
            "sides; vitrail data check finds them"
        )
    if training.held_out:
        report.note(describe_held_out(task.splits, parts))
    counted = labels and parts.train.targets is None
    for text in (*describe_gaps(parts), *describe_uneven(training, parts.train)) if counted else ():
        report.note(text)
    if parts.val is None and training.patience is not None:
        raise ConfigError("patience needs images to choose by: a val split, or validation_share=0.1. There are none.")
    if parts.val is None and training.validation_share > 0:
        report.note("there are too few images to keep any back: nothing to choose by")
    return parts


@contextmanager
def deterministic_algorithms(*, on: bool) -> Iterator[None]:
    """Make a GPU give the same bits again."""
    if not on:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=before)


@contextmanager
def listening(report: Reporter) -> Iterator[Callable[[], bool]]:
    """Hear Ctrl-C and SIGTERM: the first asks the run to save and end, the second ends it at once.

    Gives a function that tells whether the run was asked to end; outside the main thread nothing is heard.
    """
    asked, first = threading.Event(), 0.0

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if asked.is_set():
            if now - first > ECHO:
                raise KeyboardInterrupt
            return
        first = now
        asked.set()
        # By another thread, as this one may be in the middle of saying something else.
        text = f"{signal.Signals(number).name}: saving after this step; once more to stop at once."
        _thread.start_new_thread(report.note, (text,))

    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return
    before = {number: signal.signal(number, hear) for number in SIGNALS}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def resolved(ready: Ready) -> dict[str, Any]:
    """Give every value as it is used, those that were chosen or derived too."""
    plan = ready.plan
    return {
        "steps": plan.steps,
        "training": encode(plan.config),
        "model": encode(ready.state.model.config),
        "preprocessing": encode(ready.state.model.card.preprocessing),
        **numeric_environment(plan),
    }


def resume(ready: Ready, group: Group, report: Reporter) -> None:
    """Take up the newest whole checkpoint where there is one; else begin, with an empty log."""
    plan, state = ready.plan, ready.state
    path = group.on_main(lambda: ready.checkpoints.newest(report))
    saved = None if path is None else read_into(state, path)
    missing = group.on_main(lambda: ready.journal.cut(0 if saved is None else saved["journal"], state.step))
    if missing:
        report.note(f"{LOG} lacks its last {missing:,} bytes before step {state.step:,}: resuming")
    if saved is None:
        return
    group.on_main(lambda: ready.checkpoints.prune(state))
    plan.feed.note(tuple(state.bad))
    report.note(f"resuming from step {state.step:,} of {plan.steps:,}")
    if plan.config.micro_batch is None and saved.get("processes") == group.world_size:
        plan.micro_batch = saved["images at a time"]  # whatever is free now
    now = numeric_environment(plan)
    if changed := [
        f"{name} {now[name]}, where it was {saved.get(name)}" for name in now if saved.get(name) != now[name]
    ]:
        report.note(f"{'; '.join(changed)}: the result will be the same to rounding, not to the bit")


def finish(task: Task, ready: Ready, parts: Parts, group: Group, report: Reporter) -> dict[str, Any]:
    """Take the weights that count, measure them on the test split, and write them where everybody looks.

    Gives how the run ended, as it is kept in summary.json.
    """
    plan, state = ready.plan, ready.state
    ended: dict[str, Any] = {"step": state.step, "steps": plan.steps}
    ended["result"] = take_result(ready, group, report)
    ended["result_step"] = state.step
    metrics = dict(state.metrics)
    if ready.tune is not None and parts.val is not None:
        with state.to_evaluate():
            metrics |= ready.tune(parts.val)
        report.note("the probability from which on each label is said was chosen by the F1 of the val images")
    if parts.test is not None:
        with state.to_evaluate():
            try:
                metrics |= {f"test_{name}": value for name, value in ready.evaluate(parts.test).items()}
            except DataError as error:  # which is no reason to lose the run
                report.note(f"the test images were not measured: {error}")
    check_finite(metrics, state.step)
    ended["metrics"] = metrics
    weights, own, others = state.tensors(keeps=group.is_main)

    def write() -> None:
        with writing(task.out):
            predictor = ready.checkpoints.predictor(own)
            renew_run(task.out, state.model.config, weights, state.card(metrics), predictor)
            if isinstance(adapt := plan.config.adapt, LoRA):
                kept = unmerged(state, weights, others)
                write_lora(task.out / LORA_FILE, state.model, kept, adapt, state.card(metrics), task.model)
            if state.bad:
                write_documents(task.out, {LEFT_OUT: [skip._asdict() for skip in state.bad]})
            write_documents(task.out, {DONE: ended})

    group.on_main(write)
    if state.bad:
        report.note(f"{len(state.bad):,} training images could not be decoded: {LEFT_OUT} lists them")
    return ended


def take_result(ready: Ready, group: Group, report: Reporter) -> Result:
    """Become the weights that are the result, and say which: the best where there were images to choose by."""
    config, state = ready.plan.config, ready.state
    if state.best is None:
        report.note(f"the weights are those of step {state.step:,}, the last: there were no val images to choose by")
        return "last"
    best = state.best.step
    if config.result == "last" and config.patience is None:
        why = "" if best == state.step else f"; the best was at step {best:,}: result=best takes it"
        report.note(f"the weights are those of step {state.step:,}, the last, as result=last says{why}")
        return "last"
    if best == state.step:
        report.note(f"the last step, {best:,}, was the best: its weights are the result")
        return "best"
    return "best" if take_best(ready, best, group, report) else "last"


def take_best(ready: Ready, step: int, group: Group, report: Reporter) -> bool:
    """Become the checkpoint that was best, where it is whole; tells whether it was."""
    path, reason = ready.checkpoints.at(step), None
    if group.is_main:
        try:
            check(path)
        except CheckpointError as error:
            reason = str(error)
    reason = group.broadcast(reason)
    if reason is None:
        report.note(f"the best was at step {step:,}: taking it")
        read_into(ready.state, path)
    else:
        report.note(f"the best was at step {step:,}, which cannot be used; taking the last: {reason}")
    return reason is None
