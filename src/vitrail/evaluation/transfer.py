"""Several runs in one folder, and Table 4's protocol: a rate chosen on images kept back, then all images, by seed."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from vitrail.checkpoint.run_folder import BEGUN, SAVED
from vitrail.config.check import positive, whole
from vitrail.config.fields import encode
from vitrail.config.recipe import Training
from vitrail.config.recipes import adjust
from vitrail.data.joined import Joined
from vitrail.data.source import Source
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.evaluation.results import Result, document_of, over_seeds, write_document
from vitrail.files import writing
from vitrail.runtime.compiled import compiles
from vitrail.runtime.machine import Group, choose_device, is_main_process, joined
from vitrail.runtime.reporter import SILENT, Reporter, harmless, text_table
from vitrail.train.gaps import check_classes
from vitrail.train.guard import DivergedError
from vitrail.train.run import run
from vitrail.train.task import CUT, Task, choose_parts, cut_dev, training_split

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
    """Run a task to its last step, or take what it came to before: on its test images, or else on those to choose by.

    The checkpoints of a finished run are removed: its folder has the weights. One that is interrupted has saved.
    """
    task = replace(task, training=adjust(task.training, {"result": "last"}))
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

    def first() -> None:
        make()

    group.on_main(first)
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


DOCUMENT = "transfer.json"


@dataclass(frozen=True, kw_only=True)
class TransferPlan:
    """What is asked: a run to vary, whose folder is of all runs; the rates to choose from, and the seeds."""

    task: Task
    rates: tuple[float, ...]
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        rates = sorted(positive("rates", rate) for rate in self.rates)
        if not rates or len(set(rates)) < len(rates):
            raise ConfigError(f"expected one or more rates, each once, such as 0.003,0.01; got {list(self.rates)}.")
        object.__setattr__(self, "rates", tuple(rates))
        object.__setattr__(self, "seeds", check_seeds(self.seeds))
        if self.task.training.patience is not None:
            raise ConfigError("patience needs images to choose by; the last runs train on all. Leave patience out.")
        splits = self.task.splits
        if "test" not in splits:
            raise DataError(
                f"{self.task.data} has no test split to report on; there is only {', '.join(splits)}. Put the images "
                "to test on into a split test, beside train."
            )
        check_classes(splits)
        if len(rates) > 1 and self.task.training.validation_share <= 0 and not splits.keys() & {"val", "dev"}:
            raise ConfigError(
                f"{len(rates)} rates need images to choose by: a val split, or validation_share=0.1; got 0 and no val. "
                "Or give one rate."
            )


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A rate of the grid, and its accuracy on the images kept back; None where it diverged."""

    rate: float
    accuracy: float | None


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The rate that was taken, how the others did, and what the last runs came to."""

    plan: TransferPlan
    rate: float
    grid: tuple[Tried, ...]  # none where there was one rate
    dev_images: int
    runs: tuple[Score, ...]

    @property
    def result(self) -> Result:
        """Mean accuracy on the test images, and its deviation over the seeds."""
        task = self.plan.task
        mean, spread = over_seeds([score.accuracy for score in self.runs])
        measured: Any = {"task": "transfer", "model": task.model, "data": task.data, "metric": "accuracy"}
        setting, images = setting_of(task.training, rate=self.rate), self.runs[0].images
        return Result(**measured, value=mean, spread=spread, seeds=self.plan.seeds, images=images, setting=setting)

    def document(self) -> dict[str, Any]:
        """Give the result with the grid and the accuracy of every seed as plain values, for JSON."""
        out = self.plan.task.out
        return document_of(
            "transfer",
            [self.result],
            rate=self.rate,
            grid=[asdict(tried) for tried in self.grid],
            dev_images=self.dev_images,
            runs=[{**asdict(score), "out": score.out.relative_to(out).as_posix()} for score in self.runs],
        )

    def __str__(self) -> str:
        lines: list[str] = []
        if self.grid:
            found = ["diverged" if tried.accuracy is None else f"{tried.accuracy:.2%}" for tried in self.grid]
            marks = ["<-" if tried.rate == self.rate else "" for tried in self.grid]
            rows = list(zip((f"{tried.rate:g}" for tried in self.grid), found, marks, strict=True))
            lines += text_table(f"Chosen by {self.dev_images:,} images kept back", ("rate", "accuracy", ""), rows)
        scores = [(f"{score.seed}", f"{score.accuracy:.2%}") for score in self.runs]
        lines += text_table(f"Rate {self.rate:g}, all training images", ("seed", "accuracy"), scores)
        result = self.result
        spread = "" if result.spread is None else f" ± {100 * result.spread:.2f}"
        over = f", {len(self.runs)} seeds" if len(self.runs) > 1 else ""
        lines.append(f"{100 * result.value:.2f}{spread} % of {result.images:,} test images{over}")
        return harmless("\n".join([*lines, f"All of it: {self.plan.task.out}"]))


def transfer(plan: TransferPlan, report: Reporter = SILENT) -> Transfer:
    """Choose a rate, train with it on all training images for every seed, and measure each on the test images."""
    task = plan.task
    make_folder(task.out)
    with joined(task.device) as group:
        rate, grid, dev_images = plan.rates[0], (), 0
        if len(plan.rates) > 1:
            grid, dev_images = try_rates(plan, group, report)
            rate = best_of(grid)
        runs = last_runs(plan, rate, report)
        found = Transfer(plan=plan, rate=rate, grid=grid, dev_images=dev_images, runs=runs)
        group.on_main(lambda: write_document(task.out / DOCUMENT, found.document()))
    return found


def last_runs(plan: TransferPlan, rate: float, report: Reporter) -> tuple[Score, ...]:
    """Train with a rate on all training images, once with each seed, and measure the test images."""
    task, runs = plan.task, []
    splits = {"train": all_training(task.splits), "test": task.splits["test"]}
    for seed in plan.seeds:
        training = adjust(task.training, {"learning_rate": rate, "validation_share": 0.0, "seed": seed})
        out = task.out / "final" / f"seed-{seed}"
        report.note(f"seed {seed}, rate {rate:g}, all {len(splits['train']):,} images: {out}")
        runs.append(carry_out(replace(task, splits=splits, training=training, out=out), report))
    return tuple(runs)


def try_rates(plan: TransferPlan, group: Group, report: Reporter) -> tuple[tuple[Tried, ...], int]:
    """Train once with each rate on the same images; give how each did on the same images kept back, and their number.

    The test images are not among what these runs get.
    """
    task, grid = plan.task, []
    splits = leader_first(group, lambda: kept_apart(task, task.out / CUT, report))
    for rate in plan.rates:
        out = task.out / "grid" / f"rate-{rate}"
        report.note(f"rate {rate:g}, {len(splits['train']):,} images: {out}")
        training = adjust(task.training, {"learning_rate": rate})
        try:
            accuracy = carry_out(replace(task, splits=splits, training=training, out=out), report).accuracy
        except DivergedError as error:
            report.note(f"rate {rate:g} is out: {error}")
            accuracy = None
        grid.append(Tried(rate=rate, accuracy=accuracy))
    return tuple(grid), len(splits["val"])


def kept_apart(task: Task, kept: Path, report: Reporter) -> dict[str, Source]:
    """Give the images to try rates on and those to choose by: the val split, or a part cut off once for all rates."""
    progress = partial(report.progress, "reading images")
    cut = cut_dev(task.splits, task.training.validation_share, kept, progress=progress)
    parts = choose_parts(task.splits, cut)
    if parts.val is None:
        raise DataError(
            f"{task.training.validation_share:.0%} of {len(parts.train):,} training images is none to choose by. "
            "Keep more back (validation_share=0.2), or give one learning rate."
        )
    return {"train": parts.train, "val": parts.val}


def all_training(splits: Mapping[str, Source]) -> Source:
    """Join the training images and those of the val split, where there is one."""
    whole, val = training_split(splits), splits.get("val", splits.get("dev"))
    return whole if val is None else Joined((whole, val))


def best_of(grid: Sequence[Tried]) -> float:
    """Give the rate of the highest accuracy; of equals the lowest, which is the least likely to diverge."""
    sound = [(tried.accuracy, -tried.rate) for tried in grid if tried.accuracy is not None]
    if not sound:
        rates = ", ".join(f"{tried.rate:g}" for tried in grid)
        raise DivergedError(f"training diverged at every rate: {rates}. Give lower rates and another folder.")
    return -max(sound)[1]
