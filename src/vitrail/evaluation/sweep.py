"""Several runs under one folder: each goes on by itself, and what it came to is collected."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from vitrail.checkpoint.run_folder import BEGUN, SAVED
from vitrail.config.check import whole
from vitrail.config.codec import encode
from vitrail.config.recipe import Training
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.files import writing
from vitrail.runtime.group import Group, choose_device, is_main_process
from vitrail.runtime.reporter import Reporter
from vitrail.train.prepare import compiles
from vitrail.train.run import run
from vitrail.train.task import Task

Made = TypeVar("Made")
SAID = ("recipe", "steps", "epochs", "batch_size", "image_size")  # of the training, beside a result


@dataclass(frozen=True, kw_only=True)
class Score:
    """What one run came to."""

    seed: int
    accuracy: float
    images: int  # that it was measured on
    out: Path


def carry_out(task: Task, report: Reporter) -> Score:
    """Run a task to its end, or take what it came to before: on its test images, or else on those to choose by.

    The checkpoints of a finished run are removed: its folder has the weights. One that is interrupted has saved.
    """
    outcome = run(task, report)
    if not outcome.finished:
        raise KeyboardInterrupt(f"interrupted at step {outcome.step:,} of {outcome.steps:,} in {task.out}, and saved.")
    if is_main_process():
        shutil.rmtree(task.out / SAVED, ignore_errors=True)
    if outcome.interrupted:  # in its last step, or while it was measured
        raise KeyboardInterrupt(f"interrupted once {task.out} was finished.")
    if not outcome.again and compiles(task.training, choose_device(task.device)):
        torch.compiler.reset()  # else the models of many runs reach the limit of one code's compilations
    prefix = "test_" if "test" in task.splits else ""
    if f"{prefix}accuracy" not in outcome.metrics:
        raise DataError(
            f"{task.out} is trained, and has no accuracy: too many of its {prefix.strip('_') or 'val'} images cannot "
            "be read. Repair them (vitrail data check lists them), remove that folder, and say the same again."
        )
    accuracy, images = (outcome.metrics[f"{prefix}{name}"] for name in ("accuracy", "images"))
    return Score(seed=task.training.seed, accuracy=accuracy, images=int(images), out=task.out)


def leader_first(group: Group, make: Callable[[], Made]) -> Made:
    """Let the leader make something that it keeps in a file, then have every process take it from there."""
    with group.main_process_only() as leads:
        if leads:
            make()
    return make()


def make_folder(out: Path) -> None:
    """Make the folder of the runs; or refuse one that is a run itself."""
    if (out / BEGUN).exists() or (out.exists() and not out.is_dir()):
        what = "a run itself" if out.is_dir() else "a file"
        raise CheckpointError(f"expected a folder for several runs; {out} is {what}. Give another folder.")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)


def check_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """Read seeds: whole numbers, one or more, each once."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"expected one or more seeds, each once, such as 0,1,2; got {list(seeds)}.")
    return tuple(whole("seeds", seed, least=0) for seed in seeds)


def setting_of(training: Training, **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Give what a result says of the training."""
    document = encode(training)
    return {name: document[name] for name in SAID if document[name] is not None} | more
