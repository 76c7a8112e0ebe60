"""A run from beginning to end: begun or gone on with, trained, finished."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch

from vitrail.checkpoint.run_folder import BEGUN, RUN_FILES, read_document, renew_run, write_documents
from vitrail.config import encode
from vitrail.config.objective import Labels
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.files import writing
from vitrail.runtime.group import Group, joined
from vitrail.train.begin import begin
from vitrail.train.checkpoints import check, read_into
from vitrail.train.chores import Log, Tell, check_finite
from vitrail.train.interrupt import listening
from vitrail.train.loop import train
from vitrail.train.prepare import Probe, Ready, card_of, numeric_environment, prepare
from vitrail.train.task import (
    CUT,
    DONE,
    Parts,
    Task,
    check_classes,
    choose_parts,
    cut_dev,
    describe_held_out,
    keep_classes,
    training_split,
)

RESOLVED, LEFT_OUT, LOCK = "resolved.json", "left_out.json", ".lock"
# What a killed run leaves of a file that it was writing.
STEMS = "|".join(Path(name).stem for name in (*RUN_FILES, BEGUN, DONE, CUT, RESOLVED, LEFT_OUT))
HALF = re.compile(rf"\.({STEMS})\.[0-9a-f]{{12}}(\.\w+)?")
PATIENCE = 10.0  # seconds until a run that was killed is gone


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    out: Path
    finished: bool
    step: int
    steps: int
    metrics: Mapping[str, float]
    seconds: float
    labeled: bool = True  # the training images
    again: bool = False  # it was finished before
    interrupted: bool = False  # it was asked to end, perhaps too late to


def run(task: Task, tell: Tell, probe: Probe | None = None) -> Outcome:
    """Train as the task says, or go on where an earlier run of it stopped."""
    labels = isinstance(task.training.objective, Labels)

    def say(text: str) -> None:
        tell({"kind": "note", "text": text})

    start = time.perf_counter()
    with ExitStack() as stack:
        group = stack.enter_context(joined(task.device))
        with group.main_process_only() as leads:
            if leads:
                make_folder(task.out)
                if not (task.out / DONE).is_file():
                    stack.enter_context(alone(task.out, say))
                begin(task)
        done = read_done(task.out)
        labeled = bool(training_split(task.splits).class_names)
        if done is not None:
            return replace(done, labeled=labeled)
        splits, cut = keep_classes(task.splits, task.training.held_out), None
        if labels:
            check_classes(splits)
        with group.main_process_only() as leads:
            if leads:
                cut = cut_dev(splits, task.training.validation_share, task.out / CUT, progress=reading(tell))
        parts = choose_parts(splits, group.broadcast(cut))
        if task.training.held_out:
            say(describe_held_out(task.splits, parts))
        if labels and len(parts.train.class_names) == 1:
            say("there is one class alone: nothing to learn from it")
        if parts.val is None and task.training.patience is not None:
            raise ConfigError("patience needs images to choose by: a val split, or --set dev=0.1. There are none.")
        if parts.val is None and task.training.validation_share > 0:
            say("there are too few images to keep any back: nothing to choose by")
        stack.enter_context(deterministic_algorithms(on=task.training.deterministic))
        ready = prepare(task, parts, group, tell, probe)
        for text in ready.said:
            say(text)
        resume(ready, group, say)
        with group.main_process_only() as leads:
            if leads:
                write_documents(task.out, {RESOLVED: resolved(ready)})
        plan, state = ready.plan, ready.state
        plan.interrupted = stack.enter_context(listening(say))
        for chore in ready.chores:
            if isinstance(chore, Log):
                chore.begin(state)
        tell({"kind": "begin", "step": state.step, "steps": plan.steps, "batch": plan.config.batch_size})
        finished = train(plan, state, ready.chores)
        metrics = finish(task, ready, parts, group, say) if finished else state.metrics
        ready.journal.close()
        seconds = time.perf_counter() - start
        return Outcome(
            out=task.out,
            finished=finished,
            step=state.step,
            steps=plan.steps,
            metrics=metrics,
            seconds=seconds,
            labeled=labeled,
            interrupted=plan.interrupted(),
        )


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


def make_folder(out: Path) -> None:
    """Make the run's folder; or refuse one that is somebody else's."""
    ours = not out.exists() or (out.is_dir() and ((out / BEGUN).exists() or all(map(is_half, out.iterdir()))))
    if not ours:
        raise CheckpointError(f"{out} exists and is no run. Give another --out.")
    if not out.exists():
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)


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


def is_half(path: Path) -> bool:
    """Tell what a killed run leaves before it has begun, or of a file that it was writing."""
    return path.name == LOCK or HALF.fullmatch(path.name) is not None


@contextmanager
def alone(out: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Have the folder for this process, which removes what killed ones left; refuses one where a run goes on."""
    with ExitStack() as stack:
        with writing(out):
            file = stack.enter_context((out / LOCK).open("a"))
            patience, waited = time.monotonic() + PATIENCE, False
            while not lock(file):
                if not waited:
                    say(f"another process trains in {out}: waiting for it to end")
                waited = True
                if time.monotonic() > patience:
                    raise CheckpointError(
                        f"another process trains in {out}. Wait for it or end it, or give another --out."
                    )
                time.sleep(0.1)
            for path in out.iterdir():
                if HALF.fullmatch(path.name):
                    path.unlink(missing_ok=True)
        yield


def lock(file: IO[str]) -> bool:
    """Lock a file until it is closed or the process ends, however it ends; tells whether nobody else has."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process alone: not of the workers that it forks
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True


def resume(ready: Ready, group: Group, say: Callable[[str], None]) -> None:
    """Take up the newest whole checkpoint where there is one; else begin, with an empty log."""
    plan, state = ready.plan, ready.state
    path: Path | None = None
    with group.main_process_only() as leads:
        if leads:
            path = ready.checkpoints.newest(say)
    path = group.broadcast(path)
    saved = None if path is None else read_into(state, path)
    with group.main_process_only() as leads:
        if leads:
            missing = ready.journal.cut(0 if saved is None else saved["journal"], state.step)
            if missing:
                say(f"{ready.journal.path.name} lacks its last {missing:,} bytes before step {state.step:,}: going on")
            if saved is not None:
                ready.checkpoints.prune(state)
    if saved is None:
        return
    plan.feed.loader.note(tuple(state.bad))
    say(f"going on from step {state.step:,} of {plan.steps:,}")
    if plan.config.micro_batch is None and saved["processes"] == group.world_size:
        plan.micro_batch = saved["images at a time"]  # whatever is free now
    now = numeric_environment(plan)
    if changed := [f"{name} {now[name]}, where it was {saved[name]}" for name in now if saved[name] != now[name]]:
        say(f"{'; '.join(changed)}: the result will be the same to rounding, not to the bit")


def finish(task: Task, ready: Ready, parts: Parts, group: Group, say: Callable[[str], None]) -> Mapping[str, float]:
    """Take the weights that count, measure them on the test split, and write them where everybody looks."""
    plan, state = ready.plan, ready.state
    if plan.config.patience is not None and state.best is not None and state.best.step != state.step:
        take_best(ready, state.best.step, group, say)
    metrics = dict(state.metrics)
    if parts.test is not None:
        with state.to_evaluate():
            try:
                metrics |= {f"test_{name}": value for name, value in ready.evaluate(parts.test).items()}
            except DataError as error:  # which is no reason to lose the run
                say(f"the test images were not measured: {error}")
    check_finite(metrics, state.step)
    weights, own, _ = state.tensors(keeps=group.is_main)
    with group.main_process_only() as leads:
        if leads:
            with writing(task.out):
                predictor = ready.checkpoints.predictor(own)
                renew_run(task.out, state.model.config, weights, card_of(state, metrics), predictor)
                if state.bad:
                    write_documents(task.out, {LEFT_OUT: [skip._asdict() for skip in state.bad]})
                    say(f"{len(state.bad):,} training images could not be decoded: {LEFT_OUT} lists them")
                write_documents(task.out, {DONE: {"step": state.step, "steps": plan.steps, "metrics": metrics}})
    return metrics


def take_best(ready: Ready, step: int, group: Group, say: Callable[[str], None]) -> None:
    """Become the checkpoint that was best, where it is whole."""
    path, reason = ready.checkpoints.at(step), None
    if group.is_main:
        try:
            check(path)
        except CheckpointError as error:
            reason = str(error)
    reason = group.broadcast(reason)
    if reason is None:
        say(f"the best was at step {step:,}: taking it")
        read_into(ready.state, path)
    else:
        say(f"the best was at step {step:,}, which cannot be used; taking the last: {reason}")


def read_done(out: Path) -> Outcome | None:
    """Give how a run ended that is finished."""
    if not (out / DONE).is_file():
        return None
    said = read_document(out / DONE)
    try:
        step, steps, metrics = said["step"], said["steps"], dict(said["metrics"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{out / DONE} is damaged. Remove it: the same command then finishes anew.") from error
    return Outcome(out=out, finished=True, step=step, steps=steps, metrics=metrics, seconds=0.0, again=True)


def reading(tell: Tell) -> Callable[[int, int], None]:
    """Tell how far the hashing of the images is."""
    return lambda done, total: tell({"kind": "reading", "done": done, "total": total})
