"""`vitrail.finetune` and `vitrail.pretrain`: the two recipes of the paper, on one loop."""

import inspect
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, ParamSpec

from vitrail.checkpoint.load import load, of_run
from vitrail.config import read_preprocessing
from vitrail.config.given import check_minutes
from vitrail.config.preprocessing import SAID_IN_TRAINING
from vitrail.config.recipes import adjust
from vitrail.data.annotated.open import open_annotated
from vitrail.data.open import open_data
from vitrail.data.targets import open_task
from vitrail.errors import ConfigError, DataError, VitrailError
from vitrail.evaluation.dense import WORDS
from vitrail.evaluation.features import choose_sets, draw_sets, probe_features
from vitrail.files import home_path, read_json_lines
from vitrail.models import Model
from vitrail.runtime.elastic import check_elastic
from vitrail.runtime.machine import give_memory_back, is_main_process, keep_memory
from vitrail.runtime.reporter import began, harmless, reporting
from vitrail.train.choice import choose_recipe, choose_start, describe_small
from vitrail.train.dense_choice import choose_dense, refuse_masks, start_dense
from vitrail.train.expect import expect
from vitrail.train.journal import LOG
from vitrail.train.pace import steps_within
from vitrail.train.prepare import Probe
from vitrail.train.reading import settle_reading
from vitrail.train.request import TrainRequest, make_task, read_request
from vitrail.train.run import Callback, Outcome, run
from vitrail.train.task import AnyModel, Task, foresee_model, open_start, remember, training_split

# What is said of a task's answers, by the number that no other task has.
LABELS = ("mean_average_precision", "macro_f1", "exact_match")
NUMBERS = ("root_mean_squared_error", "mean_absolute_error", "r2", "correlation")
ORDERED = ("within_one", "accuracy", "mean_absolute_error", "quadratic_kappa")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that ended, or was interrupted (`finished` is False) and can be resumed by the same call.

    `folder` is where it was kept; None without `out`. `metrics` are of the weights that are the result: accuracy, loss,
    images and left_out of the val images, and at the end with test_ before them of the test images; {} where none was
    made yet. `step` is where the run ended, `result_step` the step of the weights: `result` is "best" where val images
    chose them, else "last".
    `history` has every record of the log, dicts with their `kind` (train, evaluation, probe) and `step`. `model` is the
    trained model; functions that take a model take a run too.
    """

    folder: Path | None
    finished: bool
    step: int
    steps: int
    metrics: Mapping[str, float]
    seconds: float
    result: str
    result_step: int
    history: tuple[Mapping[str, Any], ...] = field(repr=False)
    again: bool = False  # it was finished before, and nothing was done now
    labeled: bool = True  # the training images have labels
    held: Model | None = field(default=None, repr=False)

    @cached_property
    def model(self) -> Model:
        """The trained model, to evaluate; opened from the folder on its first use."""
        if self.held is not None:
            return self.held
        return load(self)

    def __fspath__(self) -> str:
        """Give the folder's path, for what takes one."""
        if self.folder is None:
            raise ConfigError("the run has no folder, and no model where it took no step. Run it again, with out=...")
        return str(self.folder)

    def document(self) -> dict[str, Any]:
        """Give how the run ended as plain values, for JSON."""
        ended = {"finished": self.finished, "step": self.step, "steps": self.steps}
        ended |= {"result": self.result, "result_step": self.result_step, "metrics": self.metrics}
        return {"out": str(self.folder), **ended, "seconds": round(self.seconds, 1)}

    def __str__(self) -> str:
        """Say how the run ended, in a few lines."""
        where = "kept in memory" if self.folder is None else str(self.folder)
        how = "finished" if self.finished else f"interrupted at step {self.step:,} of {self.steps:,}"
        return harmless("\n".join([f"{how}: {where}", *(f"  {line}" for line in self.results())]))

    @property
    def answers(self) -> bool:
        """Whether it learned to answer, from labels or other targets, and not from images alone."""
        known = {name.removeprefix("test_") for name in self.metrics}
        return "loss" not in known or bool(known & {"accuracy", LABELS[0], NUMBERS[0]})

    def results(self) -> Iterator[str]:
        """Say what was measured, a line for each split."""
        for part, words in (("", "val images"), ("test_", "test images")):
            count, gone = (self.metrics.get(part + name, 0) for name in ("images", "left_out"))
            lost = f"; {gone:,.0f} could not be decoded" if gone else ""
            if not part and self.finished:
                lost += f"; the {self.result} weights, of step {self.result_step:,} of {self.steps:,}"
                lost += ", chosen by these images: slightly optimistic" if self.result == "best" else ""
            if measured := [name for name in WORDS if part + name in self.metrics]:
                found = ", ".join(f"{WORDS[name]} {self.metrics[part + name]:.3f}" for name in measured)
                yield f"{found} on {count:,.0f} {words}{lost}"
            elif headline := task_headline(self.metrics, part):
                yield f"{headline} on {count:,.0f} {words}{lost}"
            elif part + "accuracy" in self.metrics:
                yield f"{self.metrics[part + 'accuracy']:.2%} of {count:,.0f} {words}{lost}"
            elif part + "loss" in self.metrics:  # learned without labels
                yield f"loss {self.metrics[part + 'loss']:.4f} on {count:,.0f} {words}{lost}"


def task_headline(metrics: Mapping[str, float], part: str) -> str:
    """Say the numbers of a task of several labels, numbers or ordered classes; nothing where it is another."""
    for names in (LABELS, NUMBERS, ORDERED):
        if part + names[0] in metrics:
            known = [(name, metrics[part + name]) for name in names if part + name in metrics]
            return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in known)
    return ""


def finetune(
    data: object,
    *,
    model: AnyModel | None = None,
    out: str | os.PathLike[str] | None = None,
    recipe: str | None = None,
    minutes: float | None = None,
    probe: object = None,
    callbacks: Callback | Sequence[Callback] | None = (),
    settings: str | Sequence[str] = (),
    workers: int | None = None,
    device: str | None = None,
    track: str | Sequence[str] = (),
    tensorboard: bool = False,
    elastic: bool = False,
    allow_pipe: bool = False,
    quiet: bool = False,
    command: str = "",
    **fields: Any,  # noqa: ANN401
) -> Run:
    """Train on labelled images: from a checkpoint with a new head, or a fresh model by its name.

    `data` is a folder with a folder for each class, anything else that `vitrail data check` reads, a torch map-style
    dataset of (image, label), arrays (images, labels), or a mapping from split to these. `model` is a name such as
    ViT-B/16, a file, a run folder, or a model in memory, which stays as it is; where none is given, the one in the box
    for fewer than 10,000 images, or a fresh one. What is left open is chosen for the data, and said. Any field of the
    training is a keyword: `learning_rate=1e-3, epochs=5, batch_size=64, mixup=0.2`; a field of a part by
    `**{"optimizer.betas": (0.9, 0.95)}`, of the model by `**{"model.dropout": 0.1}`, and as texts by
    `settings=["learning_rate=1e-3"]`. Images are read as the checkpoint says, or as you say: `preprocessing=`,
    `mean=`, `deviation=`, `resize=`, `crop_share=` as in `vitrail.load`. With `out` the run is kept there, and the
    same call resumes it; without, nothing is kept on disk. `minutes` takes as many steps as fit. Each of `callbacks`,
    or the only one, sees every record of the log as a dict, and ends the run by returning True, or anything that is
    true. `objective` may be an object of your own: docs/training.md. `track=["wandb", "mlflow", "tensorboard"]` shows
    the log there too; `tensorboard=True` is one of them. `elastic=True` checks that torchrun begins
    processes anew where one dies or joins, which costs at most `save_every` steps.
    """
    return _train("finetune", **locals())


Arguments = ParamSpec("Arguments")


def _arguments_of(other: Callable[Arguments, Run]) -> Callable[[Callable[..., Run]], Callable[Arguments, Run]]:
    """Give a function the arguments of another, for people who ask for them and for their editors."""

    def give(function: Callable[..., Run]) -> Callable[Arguments, Run]:
        vars(function)["__signature__"] = inspect.signature(other)
        return function

    return give


@_arguments_of(finetune)
def pretrain(*arguments: Any, **options: Any) -> Run:  # noqa: ANN401
    """Train a fresh model by its name, as the paper pre-trains: `model="ViT-B/16", recipe="i1k"`.

    With `objective="masked-patch"`, "mae" or "next-pixel" images need no labels: any folder of them will do. All other
    arguments are those of `vitrail.finetune`; `probe` are labelled images on which features are measured meanwhile.
    """
    given = inspect.signature(finetune).bind(*arguments, **options)
    given.apply_defaults()
    return _train("pretrain", **given.arguments)


def _train(
    kind: Literal["finetune", "pretrain"],
    data: object,
    *,
    model: AnyModel | None,
    out: str | os.PathLike[str] | None,
    recipe: str | None,
    minutes: float | None,
    probe: object,
    callbacks: Callback | Sequence[Callback] | None,
    settings: str | Sequence[str],
    allow_pipe: bool,
    quiet: bool,
    elastic: bool,
    fields: Mapping[str, Any],
    **how: Any,  # noqa: ANN401
) -> Run:
    """Read what is asked, choose what is open, run it, and give the run; `make_task` takes the rest."""
    start_time, model = began.get() or time.monotonic(), of_run(model)
    watching = [callbacks] if callable(callbacks) else callbacks or ()
    if not isinstance(watching, Sequence) or not all(map(callable, watching)):
        raise ConfigError(f"callbacks must be functions of a record of the log; got {callbacks!r:.100}.")
    lives = check_elastic(os.environ) if elastic else None
    if elastic and out is None:
        raise ConfigError("elastic needs a folder, where what was trained is found again. Give out=...")
    settings = [settings] if isinstance(settings, str) else settings
    said, fields = take_preprocessing(fields)
    request = read_request(kind, data, model, recipe, settings, fields)
    if minutes is not None:
        request = for_minutes(request, minutes)
    start = open_start(model)
    if start is not None and request.model_fields:
        head = {"classes": 1} if request.needs_labels else {}  # any number: there will be a new one
        start.configure(**request.model_fields, **head)  # refuses what weights decide, before any image is read
    with ExitStack() as stack:
        report = stack.enter_context(reporting(quiet=quiet or not is_main_process()))
        labels = request.needs_labels
        opening = partial(open_task, task=request.task) if labels else partial(open_data, unlabeled=True)
        if kind == "finetune" and labels and "task" not in request.fields and recipe is None:
            refuse_masks(data)
        if (dense := request.dense_task) is not None:
            splits = open_annotated(data, dense, progress=partial(report.progress, "reading classes of masks"))
        else:
            splits = opening(data, allow_pipe=allow_pipe, progress=report.progress)
        # Where nothing is to be kept, a folder that is gone afterwards.
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vitrail-")), "run")
        folder = home_path(folder)
        begins, why = choose_start(request, splits, folder) if dense is None else start_dense(request)
        if begins is not request.model:
            request, start = replace(request, model=begins), open_start(begins)
        choice = choose_recipe(request, splits, start) if dense is None else choose_dense(request, splits, start, dense)
        task = replace(make_task(request, choice, splits, start, out=folder, **how), preprocessing=said)
        probing, said = open_probe(probe, allow_pipe=allow_pipe)
        model_config = foresee_model(task)
        keep_memory(give_back=model_config.checkpointing)
        small = describe_small(training_split(splits), model_config)
        task, read = settle_reading(task, request, training_split(splits))
        for reason in (*([lives] if lives else ()), *why, *choice.reasons, *expect(task), *small, *read, *said):
            report.note(reason)
        if minutes is not None:
            report.note("measuring how long a step takes")
            steps, reason = steps_within(task, 60 * minutes, probing, since=start_time)
            give_memory_back()  # else the run's memory would be said to be needed beside the same
            training = adjust(task.training, {"steps": steps})
            task = replace(task, training=training, until=start_time + 60 * minutes, seconds=60 * minutes)
            report.note(reason)
        if out:
            report.note(f"writing to {folder}")
        return _ended(run(task, report, probing, watching), task, kept=bool(out))


def _ended(outcome: Outcome, task: Task, *, kept: bool) -> Run:
    history = tuple(read_json_lines(outcome.out / LOG))
    held = load(outcome.out) if outcome.step > 0 and not kept and is_main_process() else None
    if held is not None:
        held.trained_on = remember(task)
    same = {name: value for name, value in vars(outcome).items() if name not in ("out", "interrupted")}
    return Run(folder=outcome.out if kept else None, history=history, held=held, **same)


def take_preprocessing(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part what is said of the preprocessing, read, from the fields of the training and of the model."""
    said = {word: value for word, value in fields.items() if word in SAID_IN_TRAINING}
    return read_preprocessing(said), {name: value for name, value in fields.items() if name not in said}


def open_probe(probe: object, *, allow_pipe: bool) -> tuple[Probe | None, list[str]]:
    """Draw the images to probe features with; refuses those that have no labels to tell apart. Says what it drew."""
    if probe is None:
        return None, []
    try:
        sets, said = choose_sets(open_data(probe, allow_pipe=allow_pipe), None)
        drawn = draw_sets(sets)
    except VitrailError as error:
        raise DataError(f"features are probed with labelled images. {probe}: {error}") from error
    counts = f"{len(drawn[0]):,} and {len(drawn[1]):,} images"
    return partial(probe_features, drawn), [f"features are probed with {counts} of {probe}: {said}"]


def for_minutes(request: TrainRequest, minutes: float) -> TrainRequest:
    """Leave a run's length open until it is measured; refuse what says it too, and runs of several processes."""
    check_minutes(minutes, request.fields)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("minutes are measured by one process alone. Give steps or epochs with torchrun.")
    return replace(request, fields={**request.fields, "steps": 1})
