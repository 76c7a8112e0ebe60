"""VTAB-1k: 19 tasks of 1,000 training images each, all trained alike (Section 4.1, Tables 4 and 9)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.config import suggest
from vitrail.config.fields import encode
from vitrail.config.recipe import Training
from vitrail.config.recipes import adjust, recipe
from vitrail.data.joined import Joined
from vitrail.data.open import open_data
from vitrail.data.source import Source, Subset
from vitrail.data.splits import VTAB, split, vtab_split
from vitrail.errors import ConfigError, DataError, VitrailError
from vitrail.evaluation.results import Result, document_of, over_seeds
from vitrail.evaluation.transfer import Score, carry_out, check_seeds, leader_first, make_folder, setting_of
from vitrail.runtime.machine import Group, joined
from vitrail.runtime.reporter import SILENT, Reporter
from vitrail.train.gaps import check_classes
from vitrail.train.task import CUT, DEV_SEED, Task, remember_cut

RECIPE = "finetune/vtab"
PAPER = ("H/14 JFT", "L/16 JFT", "L/16 I21k")  # the rows of Table 9 that are ViTs


class VtabTask(NamedTuple):
    """A task: the folder of its data, its name in the paper, group and classes, and Table 9's accuracies in percent."""

    key: str
    title: str
    group: str
    classes: int
    paper: tuple[float, float, float]


TASKS = (
    VtabTask("caltech101", "Caltech101", "natural", 102, (95.3, 95.4, 90.8)),
    VtabTask("cifar100", "CIFAR-100", "natural", 100, (85.5, 81.9, 84.1)),
    VtabTask("dtd", "DTD", "natural", 47, (75.2, 74.3, 74.1)),
    VtabTask("flowers102", "Flowers102", "natural", 102, (99.7, 99.7, 99.3)),
    VtabTask("pets", "Pets", "natural", 37, (97.2, 96.7, 92.7)),
    VtabTask("sun397", "Sun397", "natural", 397, (65.0, 63.5, 61.0)),
    VtabTask("svhn", "SVHN", "natural", 10, (88.9, 87.4, 80.9)),
    VtabTask("camelyon", "Camelyon", "specialized", 2, (83.3, 83.6, 82.5)),
    VtabTask("eurosat", "EuroSAT", "specialized", 10, (96.7, 96.5, 95.6)),
    VtabTask("resisc45", "Resisc45", "specialized", 45, (91.4, 89.7, 85.2)),
    VtabTask("retinopathy", "Retinopathy", "specialized", 5, (76.6, 77.1, 75.3)),
    VtabTask("clevr-count", "Clevr-Count", "structured", 8, (91.7, 86.4, 70.3)),
    VtabTask("clevr-distance", "Clevr-Dist", "structured", 6, (63.8, 63.1, 56.1)),
    VtabTask("dmlab", "DMLab", "structured", 6, (53.1, 49.7, 41.9)),
    VtabTask("dsprites-location", "dSpr-Loc", "structured", 16, (79.4, 74.5, 74.7)),
    VtabTask("dsprites-orientation", "dSpr-Ori", "structured", 16, (63.3, 60.5, 64.9)),
    VtabTask("kitti-distance", "KITTI-Dist", "structured", 4, (84.5, 82.2, 79.9)),
    VtabTask("smallnorb-azimuth", "sNORB-Azim", "structured", 18, (33.2, 36.2, 30.5)),
    VtabTask("smallnorb-elevation", "sNORB-Elev", "structured", 9, (51.2, 51.1, 41.7)),
)
GROUPS = tuple(dict.fromkeys(task.group for task in TASKS))
LAYOUT = "train/CLASS/*.jpg and test/CLASS/*.jpg, or train.parquet and test.parquet"
NAMES = {"train800": "train", "val200": "val", "dev": "val"}  # as VTAB calls its parts
# What may differ from the recipe and still be the paper's setting: it does not change what is learned.
FREE = (
    *("seed", "validation_share", "precision", "compile", "deterministic", "parallel", "augment_on"),
    *("bad_image_limit", "micro_batch", "evaluate_every", "save_every", "probe_every", "log_every", "keep"),
)


@dataclass(frozen=True, kw_only=True)
class VtabPlan:
    """What is asked: a run to vary, whose folder is of all runs; the tasks with their splits, and the seeds."""

    task: Task
    tasks: Mapping[VtabTask, Mapping[str, Source]]
    seeds: tuple[int, ...]
    select: bool = False  # train on 800, measure on 200, leave the test images alone

    def __post_init__(self) -> None:
        object.__setattr__(self, "seeds", check_seeds(self.seeds))
        if self.task.training.patience is not None:
            raise ConfigError("VTAB trains as long on every task. Leave patience out.")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A task, what each seed came to, and how many images it was trained on."""

    task: VtabTask
    scores: tuple[Score, ...]
    trained_on: int


def choose_tasks(names: Sequence[str] = ()) -> tuple[VtabTask, ...]:
    """Give the tasks of these names or groups in the paper's order; all where none is named."""
    known = (*(task.key for task in TASKS), *GROUPS)
    for name in names:
        if name not in known:
            raise ConfigError(f"VTAB has no task or group {name!r}.{suggest(name, known)}")
    return tuple(task for task in TASKS if not names or {task.key, task.group} & {*names})


def find_tasks(
    folder: Path, tasks: Sequence[VtabTask], *, select: bool = False
) -> tuple[dict[VtabTask, Mapping[str, Source]], list[VtabTask]]:
    """Open the splits of the tasks that a folder has, checked, and list those that it lacks."""
    found, missing = {}, []
    for task in tasks:
        place = folder / task.key
        if not place.is_dir() or not any(not path.name.startswith(".") for path in place.iterdir()):
            missing.append(task)
            continue
        try:
            found[task] = _checked(open_data(place), select=select)
        except VitrailError as error:
            raise DataError(f"{place}: {error} Expected {LAYOUT}.") from error
    return found, missing


def _checked(opened: Mapping[str, Source], *, select: bool) -> Mapping[str, Source]:
    """Call the splits train, val and test, as everywhere; refuses what cannot be trained on or measured."""
    own = {"train800", "val200"} <= opened.keys()  # then another train is all that these were drawn from
    splits = {NAMES.get(name, name): part for name, part in opened.items() if not own or name not in ("train", "val")}
    if lacking := [name for name in ("train", "test")[: 1 if select else 2] if name not in splits]:
        raise DataError(f"there is no split {lacking[0]}, only {', '.join(opened)}.")
    check_classes(splits)
    return splits


def departures(training: Training) -> list[str]:
    """Say where the training is not the paper's."""
    ours, papers = (_flat(encode(each)) for each in (training, recipe(RECIPE).training))
    differing = [name for name in {**papers, **ours} if name not in FREE and ours.get(name) != papers.get(name)]
    return [f"{name} {_words(ours.get(name))} instead of {_words(papers.get(name))}" for name in differing]


def odd_data(measured: Sequence[Measured], plan: VtabPlan) -> list[str]:
    """Say where the images are not VTAB's: fewer to train on, or of other classes."""
    wanted, said = VTAB["train"] if plan.select else sum(VTAB.values()), []
    for one in measured:
        if one.trained_on < wanted:
            said.append(f"{one.task.key}: {one.trained_on:,} training images instead of {wanted:,}")
        classes = len(plan.tasks[one.task]["train"].class_names)
        if classes != one.task.classes:
            said.append(f"{one.task.key}: {classes} classes instead of {one.task.classes}")
    return said


def vtab(plan: VtabPlan, report: Reporter = SILENT) -> tuple[Measured, ...]:
    """Train and measure every task with every seed."""
    make_folder(plan.task.out)
    with joined(plan.task.device) as group:
        return tuple(measure_task(plan, task, group, report) for task in plan.tasks)


def measure_task(plan: VtabPlan, task: VtabTask, group: Group, report: Reporter) -> Measured:
    """Train and measure a task with every seed, on the same images."""
    splits, folder, scores = plan.tasks[task], plan.task.out / task.key, []
    make_folder(folder)
    progress = partial(report.progress, "reading images")
    few, held = leader_first(group, lambda: draw_thousand(splits, folder / CUT, progress))
    if plan.select and not len(held):
        raise DataError(f"{task.key} has {len(few):,} training images: too few to keep any back to select by.")
    used = {"train": few, "val": held} if plan.select else {"train": Joined((few, held)), "test": splits["test"]}
    number = f"{[*plan.tasks].index(task) + 1} of {len(plan.tasks)}"
    for seed in plan.seeds:
        out = folder / f"{'select' if plan.select else 'seed'}-{seed}"
        report.note(f"{task.title} ({number}), seed {seed}: {out}")
        training = adjust(plan.task.training, {"validation_share": 0.0, "seed": seed})
        one = replace(plan.task, data=f"{plan.task.data}/{task.key}", splits=used, training=training, out=out)
        scores.append(carry_out(one, report))
    return Measured(task=task, scores=tuple(scores), trained_on=len(used["train"]))


def draw_thousand(
    splits: Mapping[str, Source], kept: Path, progress: Callable[[int, int], None] | None = None
) -> tuple[Source, Source]:
    """Give the 800 images to train on and the 200 to select by: as they come, or drawn by content, the same each time.

    Where there are fewer than 1,000 in all, they are shared out as 4 to 1.
    """
    train, val = splits["train"], splits.get("val")
    if val is not None and (len(train), len(val)) == tuple(VTAB.values()):
        return train, val
    pool, count = train if val is None else Joined((train, val)), sum(VTAB.values())
    share = VTAB["dev"] / count

    def draw() -> Mapping[str, Subset]:
        if len(pool) >= count:
            return vtab_split(pool, DEV_SEED, progress=progress)
        return split(pool, {"train": 1 - share, "dev": share}, seed=DEV_SEED, progress=progress)

    few, held = remember_cut(pool, share, kept, draw)
    return Subset(pool, few), Subset(pool, held)


def _flat(document: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Give every value by the path to it."""
    found: dict[str, Any] = {}
    for name, value in document.items():
        found |= _flat(value, f"{where}{name}.") if isinstance(value, dict) else {f"{where}{name}": value}
    return found


def _words(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


ALL = "all tasks"


class Mean(NamedTuple):
    """A mean over the tasks of a group, or of all, that ran; the paper's are over the same tasks, in percent."""

    what: str
    ran: int
    of: int
    value: float
    spread: float | None
    paper: tuple[float, ...]

    @property
    def title(self) -> str:
        """Say whether all of its tasks are there."""
        return "mean" if self.ran == self.of else f"mean of {self.ran} of {self.of}"


def means(measured: Sequence[Measured]) -> list[Mean]:
    """Give the means of the groups that have tasks, then that of all; each seed's first, then over the seeds."""
    found = []
    for what in (*GROUPS, ALL):
        some = [one for one in measured if what in (one.task.group, ALL)]
        if not some:
            continue
        seeds = zip(*([score.accuracy for score in one.scores] for one in some), strict=True)
        value, spread = over_seeds([over_seeds(each)[0] for each in seeds])
        paper = tuple(over_seeds([one.task.paper[row] for one in some])[0] for row in range(len(PAPER)))
        of = sum(what in (task.group, ALL) for task in TASKS)
        found.append(Mean(what, len(some), of, value, spread, paper))
    return found


def vtab_document(plan: VtabPlan, measured: Sequence[Measured]) -> dict[str, Any]:
    """Give the document of the command; means are results only where all their tasks ran."""
    common: dict[str, Any] = {"task": "vtab", "model": plan.task.model, "seeds": plan.seeds}
    more = {"rate": plan.task.training.optimizer.learning_rate, "measured_on": "val" if plan.select else "test"}
    setting = setting_of(plan.task.training, **more)
    rows = []
    for one in measured:
        value, spread = over_seeds([score.accuracy for score in one.scores])
        own: Any = {"data": one.task.key, "metric": "accuracy", "images": one.scores[0].images}
        trained = {**setting, "group": one.task.group, "training_images": one.trained_on}
        rows.append(Result(**common, **own, value=value, spread=spread, setting=trained))
    found = means(measured)
    rows += [
        Result(**common, data=mean.what, metric="mean accuracy", value=mean.value, spread=mean.spread, setting=setting)
        for mean in found
        if mean.ran == mean.of
    ]
    return document_of(
        "vtab",
        rows,
        means=[mean._asdict() for mean in found],
        paper={one.task.key: dict(zip(PAPER, one.task.paper, strict=True)) for one in measured},
        departures=[*departures(plan.task.training), *odd_data(measured, plan)],
    )
