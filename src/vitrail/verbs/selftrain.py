"""`vitrail.selftrain`: a teacher labels images without labels, a noised student learns from them, and teaches next."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.checkpoint.load import load, of_run
from vitrail.config import BiTConfig, row
from vitrail.config.check import not_negative, share, truth, whole
from vitrail.config.given import read_fields
from vitrail.config.recipe import RandAugment, Training
from vitrail.config.recipes import RECIPES
from vitrail.data.joined import Joined
from vitrail.data.open import open_data
from vitrail.data.pseudo import PseudoLabeled, choose_pseudo
from vitrail.data.source import Source
from vitrail.data.sources.remote import RemoteShards
from vitrail.data.splits import content_hashes
from vitrail.errors import ConfigError, DataError, some_of
from vitrail.evaluation.answers import answers, check_classifier
from vitrail.evaluation.cached import digest_of
from vitrail.files import fingerprint_of, home_path, read_arrays, replacing, write_bytes
from vitrail.models import Model
from vitrail.runtime.inference import choose_model, inference_options
from vitrail.runtime.machine import is_main_process, joined
from vitrail.runtime.reporter import Reporter, reporting, text_table
from vitrail.train.task import CUT, NAMED, choose_parts, cut_dev, known_config, open_start
from vitrail.verbs.opening import AnyModel, data_name, open_model
from vitrail.verbs.training import Callback, Run, finetune

LABELS, SUMMARY = "pseudo_labels.npz", "selftrain.json"
STOCHASTIC_DEPTH = 0.1  # of the student, where nothing is said of it


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round: the images that were labelled and taken, their mean confidence, and how good its student is."""

    number: int
    labeled: int  # by the teacher
    taken: int  # of those
    shown: int  # in an epoch: some of few of a class come several times
    confidence: float  # mean, of what was taken
    correct: float | None  # share of those taken whose own label it is, where the images have labels
    metrics: Mapping[str, float]
    folder: str


@dataclass(frozen=True, kw_only=True)
class SelfTraining:
    """Rounds of self-training, or those so far where it was interrupted; the last student is the result."""

    folder: Path
    teacher: Mapping[str, float]  # the first one's metrics; {} where it was given
    rounds: tuple[Round, ...]
    finished: bool

    @cached_property
    def model(self) -> Model:
        """The last student, to evaluate."""
        return load(self)

    def __fspath__(self) -> str:
        """Give the last student's folder, for what takes a run."""
        if not self.rounds:
            raise ConfigError("no student is trained yet. Call selftrain again with the same arguments: it resumes.")
        return self.rounds[-1].folder

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        rounds = [asdict(each) | {"metrics": dict(each.metrics)} for each in self.rounds]
        found = {"folder": str(self.folder), "finished": self.finished, "teacher": dict(self.teacher)}
        return found | {"rounds": rounds}

    def __str__(self) -> str:
        rows = [("teacher", "", "", "", "", *_accuracies(self.teacher))] if self.teacher else []
        rows += [
            (
                f"student {each.number}",
                f"{each.taken:,} of {each.labeled:,}",
                f"{each.shown:,}",
                f"{each.confidence:.1%}",
                "" if each.correct is None else f"{each.correct:.1%}",
                *_accuracies(each.metrics),
            )
            for each in self.rounds
        ]
        heads = ("", "images taken", "in an epoch", "confidence", "right", "val", "test")
        ended = f"the last student is {os.fspath(self)}" if self.rounds and self.finished else "interrupted, and saved"
        return "\n".join([*text_table(f"Self-training in {self.folder}", heads, rows), ended])


def selftrain(
    data: object,
    unlabeled: object,
    *,
    model: AnyModel,
    out: str | os.PathLike[str],
    teacher: AnyModel | None = None,
    rounds: int = 2,
    confidence: float = 0.3,
    balance: bool = True,
    per_class: int | None = None,
    noise: bool = True,
    recipe: str | None = None,
    callbacks: Callback | Sequence[Callback] | None = (),
    settings: str | Sequence[str] = (),
    workers: int | None = None,
    device: str | None = None,
    allow_pipe: bool = False,
    quiet: bool = False,
    command: str = "",
    **fields: Any,  # noqa: ANN401
) -> SelfTraining:
    """Train a student on labelled images and on others that a teacher labels (Noisy Student, Xie et al., 2020).

    `data` has labels, `unlabeled` are any images; both are given as to `vitrail.finetune`. Without a `teacher`, a run
    or any classifier of the same classes, `model` is fine-tuned on the labelled images first. The teacher answers
    without noise; what it is as sure of as `confidence` is taken, `balance`d by class: the surest of large classes,
    those of small ones again, `per_class` or the mean of each. The student, `model` again, learns from all of it with
    `noise`: RandAugment and stochastic depth of 0.1 where recipe and fields say nothing of them. It is the teacher of
    the next of the `rounds`. `recipe`, `settings` and other fields are those of `vitrail.finetune`, of teacher and
    students. Images to choose by are cut from the labelled ones, and copies of them and of test images are not taken.
    In `out` every run and every round's labels are kept: the same call resumes, and the last student is the result.
    """
    whole("rounds", rounds, most=100)
    share("confidence", confidence)
    for name, value in (("balance", balance), ("noise", noise)):
        truth(name, value)
    if per_class is not None:
        whole("per_class", per_class)
    texts = [settings] if isinstance(settings, str) else settings
    named = model if isinstance(model, str) else None
    ours, theirs = read_fields(named, recipe, texts, fields)
    asked = {**ours, **{f"model.{name}": value for name, value in theirs.items()}}
    held_back = not_negative("validation_share", asked.pop("validation_share", Training(steps=1).validation_share))
    if "objective" in asked and asked["objective"] != "labels":
        raise ConfigError("self-training learns labels. Leave objective out; pre-train first, and give that as model.")
    folder = home_path(out)
    how: dict[str, Any] = {"recipe": recipe, "workers": workers, "device": device, "quiet": quiet}
    how |= {"callbacks": callbacks, "command": command, "validation_share": 0.0}
    with reporting(quiet=quiet or not is_main_process()) as report:
        splits = open_data(data, allow_pipe=allow_pipe, progress=report.progress)
        others = _only(open_data(unlabeled, allow_pipe=allow_pipe, unlabeled=True, progress=report.progress), unlabeled)
        if any(isinstance(source, RemoteShards) for source in (others, *splits.values())):
            raise ConfigError("self-training reads images more than once, and of a stream it cannot. Fetch the shards.")
        folder.mkdir(parents=True, exist_ok=True)
        parts = choose_parts(splits, cut_dev(splits, held_back, folder / CUT))
        train, tests = parts.train, {"val": parts.val, "test": parts.test}
        tests = {name: source for name, source in tests.items() if source is not None}
        free = np.flatnonzero(~_copied(others, [*tests.values()]))
        if gone := len(others) - len(free):
            report.note(f"left out {gone:,} of the images without labels: copies of val or test images")
        metrics: Mapping[str, float] = {}
        if teacher is None:
            report.note("training the teacher on the labelled images")
            first = finetune({"train": train, **tests}, model=model, out=folder / "teacher", **how, **asked)
            if not first.finished:
                return _kept(folder, first.metrics, [], report, finished=False)
            _know_cut(folder, folder / "teacher")
            teacher, metrics = folder / "teacher", first.metrics
        student = {**_noise(recipe, asked, model, wanted=noise), **asked}
        done: list[Round] = []
        for number in range(1, rounds + 1):
            here = folder / f"round-{number}"
            labels, sure = label_images(of_run(teacher), train, others, here / LABELS, how, report)
            if lost := int((labels[free] < 0).sum()):
                report.note(f"left out {lost:,} of the images without labels: they cannot be read")
            places = choose_pseudo(
                labels[free],
                sure[free],
                len(train.class_names),
                least=confidence,
                balanced=balance,
                per_class=per_class,
            )
            if not len(places):
                raise DataError(
                    f"the teacher is sure of none of {len(free):,} images. Lower confidence={confidence:g}, "
                    "or train it for longer."
                )
            taken = free[places]
            report.note(f"round {number}: {len(np.unique(taken)):,} of {len(free):,} images have a label to learn from")
            learned = Joined([train, PseudoLabeled(others, taken, labels[taken], train.class_names)])
            run = finetune({"train": learned, **tests}, model=model, out=here / "student", **how, **student)
            if not run.finished:
                return _kept(folder, metrics, done, report, finished=False)
            _know_cut(folder, here / "student")
            done.append(_round(number, run, others, taken, labels, sure, train, len(free)))
            teacher = here / "student"
    return _kept(folder, metrics, done, report, finished=True)


def label_images(
    teacher: AnyModel, train: Source, others: Source, path: Path, how: Mapping[str, Any], report: Reporter
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Let a teacher label images without noise: classes, -1 where there is no answer, and how sure it is of them.

    What it said of the same images before is read again.
    """
    with joined(how["device"]) as group:
        opened = open_model(teacher, None, group.device)
        count, names = check_classifier(opened), opened.card.class_names
        if count != len(train.class_names) or names not in (None, train.class_names):
            raise DataError(
                f"the teacher tells other classes apart than the labelled images have: {count:,} "
                f"({some_of([*names], NAMED) if names else 'without names'}), not {len(train.class_names):,} "
                f"({some_of([*train.class_names], NAMED)}). Give one of theirs, in their order."
            )
        options = inference_options(group, workers=how["workers"], bad_image_limit=0.5, report=report)
        key = fingerprint_of(digest_of(opened), others.fingerprint, f"{opened.card.temperature:.9g}")
        if (before := group.on_main(lambda: _read_labels(path, key, len(others)))) is not None:
            return before
        model = choose_model(opened, len(others), options)
        found = answers(model, others, options.showing("labelling images"), labeled=False)
        labels, sure = np.full(len(others), -1, np.int64), np.zeros(len(others), np.float32)
        labels[found.samples], sure[found.samples] = found.answer, np.nan_to_num(found.confidence)

        def keep() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                np.savez(temporary, labels=labels, confidence=sure, key=np.array(key))

        group.on_main(keep)
    return labels, sure


def _read_labels(path: Path, key: str, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
    try:
        held = read_arrays(path)
        same = str(held["key"]) == key and len(held["labels"]) == len(held["confidence"]) == count
        return (held["labels"].astype(np.int64), held["confidence"].astype(np.float32)) if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _only(splits: Mapping[str, Source], data: object) -> Source:
    """Take the images to label: those to train on, or the only split."""
    for name in ("unlabeled", "train", "all"):
        if name in splits:
            return splits[name]
    if len(splits) == 1:
        return next(iter(splits.values()))
    raise DataError(f"{data_name(data)}: which split has no labels is not said. There are: {', '.join(splits)}.")


def _know_cut(folder: Path, run: Path) -> None:
    """Let a run know which of the labelled images were kept back, so that it is measured on those alone."""
    if is_main_process() and (folder / CUT).is_file():
        write_bytes(run / CUT, (folder / CUT).read_bytes())


def _copied(source: Source, tests: Sequence[Source]) -> NDArray[np.bool_]:
    """Tell which images are the same, pixel by pixel, as one to choose by or to test on."""
    if not tests:
        return np.zeros(len(source), np.bool_)
    kept = {row.tobytes() for test in tests for row in content_hashes(test, reuse=True)}
    return np.array([row.tobytes() in kept for row in content_hashes(source, reuse=True)], np.bool_)


def _noise(recipe: str | None, asked: Mapping[str, Any], model: AnyModel, *, wanted: bool) -> dict[str, Any]:
    """Give the student's noise, where neither the recipe nor a field says something of it."""
    said = {name.partition(".")[0] for name in asked} | {name.rpartition(".")[2] for name in asked}
    usual = RECIPES[recipe].training if recipe in RECIPES else None
    found: dict[str, Any] = {}
    if not wanted:
        return found
    if not said & {"randaugment", "three_augment", "layers", "magnitude"} and not (
        usual and (usual.augmentation.randaugment or usual.augmentation.three_augment)
    ):
        found["randaugment"] = RandAugment()
    if not said & {"stochastic_depth"} and not (usual and usual.stochastic_depth) and not _is_resnet(model, asked):
        found["stochastic_depth"] = STOCHASTIC_DEPTH
    return found


def _is_resnet(model: AnyModel, asked: Mapping[str, Any]) -> bool:
    """Tell a BiT, by its name or by what a checkpoint holds: it has no stochastic depth."""
    model = of_run(model)
    config = known_config(open_start(model), {name.removeprefix("model."): value for name, value in asked.items()})
    return (row(str(model))[0] if config is None else type(config)) is BiTConfig


def _round(
    number: int,
    run: Run,
    others: Source,
    taken: NDArray[np.int64],
    labels: NDArray[np.int64],
    sure: NDArray[np.float32],
    train: Source,
    count: int,
) -> Round:
    """Say how a round went; its labels are compared with the images' own where they have such."""
    once = np.unique(taken)
    own = others.labels[once]
    known = own >= 0 if others.class_names == train.class_names else np.zeros(len(once), np.bool_)
    return Round(
        number=number,
        labeled=count,
        taken=len(once),
        shown=len(taken),
        confidence=float(sure[once].mean()),
        correct=float((own == labels[once])[known].mean()) if known.any() else None,
        metrics=run.metrics,
        folder=os.fspath(run),
    )


def _kept(
    folder: Path, teacher: Mapping[str, float], rounds: Sequence[Round], report: Reporter, *, finished: bool
) -> SelfTraining:
    """Keep how far it is beside the runs."""
    made = SelfTraining(folder=folder, teacher=teacher, rounds=tuple(rounds), finished=finished)
    if is_main_process():
        write_bytes(folder / SUMMARY, (json.dumps(made.document(), indent=2) + "\n").encode())
    if not finished:
        report.note("interrupted: the same again resumes")
    return made


def _accuracies(metrics: Mapping[str, float]) -> tuple[str, str]:
    val, test = (metrics.get(name) for name in ("accuracy", "test_accuracy"))
    return tuple("" if value is None else f"{value:.2%}" for value in (val, test))  # pyright: ignore[reportReturnType]
