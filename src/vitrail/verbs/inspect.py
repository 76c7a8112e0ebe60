"""`vitrail.inspect`: every picture of the paper, of any model, in a folder and on one page."""

import os
import re
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from torch import Tensor

from vitrail.checkpoint.load import of_run
from vitrail.config.check import whole
from vitrail.config.dense import DenseTask
from vitrail.data.annotated.open import kind_of, open_annotated
from vitrail.data.decode import from_library
from vitrail.data.open import choose_split, open_data, open_images
from vitrail.data.source import Source
from vitrail.data.sources.folder import loose_images
from vitrail.errors import ConfigError
from vitrail.files import home_path
from vitrail.inspection.layers import compare_layers
from vitrail.inspection.learning import read_log
from vitrail.inspection.predictions import open_objective, predict
from vitrail.inspection.report import MOST_IMAGES, Report, check_folder, title_of, write_report
from vitrail.inspection.study import draw_images, drawn_count, look_at
from vitrail.inspection.views import choose_images
from vitrail.models import Model
from vitrail.runtime.engines import EngineModel
from vitrail.runtime.reporter import SILENT, Reporter
from vitrail.verbs.dense import refuse_for_dense, task_of
from vitrail.verbs.dense_inspect import inspect_queries
from vitrail.verbs.images import gather_images
from vitrail.verbs.opening import (
    AnyModel,
    FileHints,
    ImageSize,
    check_options,
    hints_of,
    model_name,
    model_source,
    open_model,
    run_of,
)
from vitrail.verbs.tasks import card_of, is_of_targets, open_for


def inspect(
    model: AnyModel,
    images: object = None,
    *,
    against: AnyModel | None = None,
    out: str | os.PathLike[str] | None = None,
    split: str | None = None,
    image_size: ImageSize | None = None,
    count: int = 16,
    search: int = 64,
    drawn: int | None = None,
    bias: bool = True,
    device: str | None = None,
    allow_pipe: bool = False,
    command: str = "",
    report: Reporter = SILENT,
    **hints: Unpack[FileHints],
) -> Report | Any:  # noqa: ANN401  # QueryReport of a model that segments or detects
    """Look inside a model: write its filters, positions, attention, mistakes and layers as figures, numbers and a page.

    `model` is a name, a file, a run folder or a model in memory, and so is `against`, which is shown beside it.
    `images` are a file, a folder, images in memory, or any data: `count` of them are shown, spread over all, and of
    those with labels the most confident mistakes among `search` come first. Without images, the page shows what the
    weights show. `bias` also moves images, and drops and exchanges their patches: those of `drawn` images, as few as
    12 of a large model and up to 64 of a small one, drawn at random from all, by which layers are compared too. `out`
    is the folder to write, runs/inspect-NAME where it is left out; an earlier report of the same model is replaced.
    Of a model that segments or detects the page shows what each query attends to (docs/dense.md).
    `command` is printed on the page. `hints` are what the files leave open, heads, grid, activation, epsilon, and how
    `model` reads images: preprocessing, mean, deviation, resize, crop_share, interpolation, as in `vitrail.load`. The
    result has `folder`, `page`, `figures` and `numbers`, and prints what was written.
    """
    check_options(inspect, FileHints, hints)
    whole("count of images", count, most=MOST_IMAGES)
    whole("search", search, least=0)
    if drawn is not None:
        whole("drawn", drawn)
    if images is None and split is not None:
        raise ConfigError(f"split {split!r} is of images, and there are none. Give images.")
    model, against = of_run(model), of_run(against)
    titles = titles_of(model, against)
    folder = home_path(out or f"runs/inspect-{slug_of(model)}")
    if (task := task_of(model)) is not None and images is not None:
        refuse_for_dense(task, {"against": against})
        source = _open_any(images, split, task, report, allow_pipe=allow_pipe)
        with report.working(f"loading {titles[0]}"):
            opened = open_model(model, image_size, device, hints).plain
        return inspect_queries(titles[0], opened, source, count, folder, command, report)
    check_folder(folder, titles[0])
    if (card := card_of(model)) is not None and is_of_targets(images):
        splits = open_for(card, images)
        source = splits[choose_split(splits, str(images), split)]
    else:
        source = None if images is None else _open(images, split, report, allow_pipe=allow_pipe)
    with report.working(f"loading {' and '.join(titles)}"):
        opened = open_model(model, image_size, device, hints).plain
        other = None if against is None else open_model(against, image_size, device, hints_of(hints)).plain
    if any(isinstance(each, EngineModel) for each in (opened, other)):
        raise ConfigError("an exported file gives logits and features alone. Look inside the checkpoint it came from.")
    chosen, mistakes = ([], []) if source is None else choose_images(opened, source, count, search, report)
    if source is None:
        random = []
    else:
        models = [opened] if other is None else [opened, other]
        random = draw_images(source, drawn_count(*models) if drawn is None else drawn)
    subject, wrong = look_at(titles[0], opened, source, chosen, mistakes, drawn=random, bias=bias, report=report)
    place = run_of(model)
    subject = subject._replace(log=read_log(place if isinstance(place, Path) else None))
    objective = None if isinstance(model, Model) or subject.found is None else open_objective(model, opened)
    if subject.found is not None and objective is not None:
        with report.working("predicting what is hidden"):
            subject = subject._replace(predictions=predict(objective, subject.found.views.images))
    beside, between = None, None
    if other is not None:
        shifts = None if subject.found is None else subject.found.shifts
        asked: Any = {"drawn": random, "bias": bias, "shifts": shifts, "report": report}
        beside, _ = look_at(titles[1], other, source, chosen, maps=False, **asked)
        if subject.found is not None and beside.found is not None and subject.found.layers is not None:
            between = compare_layers(subject.found.grams, beside.found.grams)
    return write_report(folder, subject, other=beside, between=between, mistakes=wrong, command=command, report=report)


def _open_any(images: object, split: str | None, task: DenseTask, report: Reporter, *, allow_pipe: bool) -> Source:
    """Open images to look at, with or without masks or boxes beside them."""
    if isinstance(images, str | os.PathLike) and (kind_of(images) is not None or os.fspath(images) == "synthetic"):
        splits = open_annotated(images, task)
        return splits[choose_split(splits, str(images), split)]
    return _open(images, split, report, allow_pipe=allow_pipe)


def _open(images: object, split: str | None, report: Reporter, *, allow_pipe: bool) -> Source:
    """Open the images to look at, and say which are left aside."""
    if not isinstance(images, str | os.PathLike):
        first = images[0] if isinstance(images, list | tuple) and images else images
        in_memory = (
            isinstance(first, str | os.PathLike | bytes | np.ndarray | Tensor) or from_library(first) is not None
        )
        if in_memory and (first is images or getattr(first, "ndim", 3) < 4):  # else arrays of (images, labels)
            return gather_images(images, report)
        splits = open_data(images, unlabeled=True)
        return splits[choose_split(splits, "the data", split)]
    splits = open_images(images, allow_pipe=allow_pipe)
    path = home_path(images)
    if path.is_dir() and any(entry.is_dir() for entry in path.iterdir()) and (loose := loose_images(path)):
        report.note(f"{len(loose):,} images that lie beside the folders of classes are not looked at")
    return splits[choose_split(splits, str(images), split)]


def titles_of(model: AnyModel, against: AnyModel | None) -> list[str]:
    """Name two models shortly, unless that is one name."""
    both = [model] if against is None else [model, against]
    short = [title_of(source) if (source := model_source(each)) else model_name(each) for each in both]
    return short if len({*short}) == len(short) else [model_name(each) for each in both]


def slug_of(model: AnyModel) -> str:
    """Give a name for a folder, which holds the folder of a path too."""
    parts = Path(model_name(model).rstrip("/")).with_suffix("").parts[-2:]
    return re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(parts)).strip("-") or "model"
