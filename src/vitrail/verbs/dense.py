"""`vitrail.evaluate` of models that segment or detect; which models those are, and what they are not asked."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitrail.checkpoint.run_folder import own_config
from vitrail.config import ViTConfig
from vitrail.config.check import whole
from vitrail.config.dense import DenseTask
from vitrail.config.given import is_checkpoint
from vitrail.data.annotated.check import draw_annotation
from vitrail.data.annotated.open import open_annotated
from vitrail.data.overlays import picture_of, scaled
from vitrail.data.source import Source, Subset
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.dense import (
    DenseMeasured,
    answer_source,
    class_rows,
    coco_documents,
    measure,
    text_of,
)
from vitrail.evaluation.dense_page import LEAST, WIDE, Shown, draw_answer, page_of
from vitrail.evaluation.results import Result, document_of, write_document
from vitrail.files import check_replaceable, home_path, write_bytes, writing
from vitrail.inspection.report import title_of
from vitrail.models import Model
from vitrail.runtime.dense import dense_task
from vitrail.runtime.engines import is_exported, open_engine
from vitrail.runtime.inference import InferenceOptions, computed_in
from vitrail.runtime.optimized import is_optimized
from vitrail.verbs.opening import AnyModel, Measuring, data_name, measuring, model_name, model_source, open_model

FILES = ("evaluation.json", "predictions.json", "annotations.json")
PAGE = "report.html"
SHOWN = 16  # images of a page
WINDOWS = "windows are of models that segment or detect; this one classifies. Leave windows out."


@dataclass(frozen=True, kw_only=True, repr=False)
class DenseEvaluation:
    """How good a model is on pixels or objects: its numbers, and all of what `vitrail evaluate` prints."""

    task: DenseTask
    metrics: Mapping[str, float]  # mean_iou and pixel_accuracy; or ap, ap50, ap75, ap_small, ...
    images: int
    classes: Sequence[Mapping[str, Any]]  # by class: name and its numbers
    worst: Sequence[Mapping[str, Any]]  # the worst images: name, sample and score
    predictions: Sequence[Mapping[str, Any]]  # as COCO's tools take them
    annotations: Mapping[str, Any]  # the truth that they were compared with, as COCO's JSON has it
    found: Mapping[str, Any] = field(repr=False)

    def document(self) -> Mapping[str, Any]:
        """Give what `vitrail evaluate --json` prints."""
        return self.found

    def __repr__(self) -> str:
        return text_of(self.found)


def task_of(model: AnyModel) -> DenseTask | None:
    """Tell what a model says of pixels or objects, without its weights; None of any other model."""
    if isinstance(model, Model):
        return dense_task(model)
    source = model_source(model)
    path = home_path(source)
    if is_exported(source) and path.is_file():
        return dense_task(open_engine(path))
    if is_exported(source) or is_optimized(path) or not (is_checkpoint(source) and path.exists()):
        return None
    config = own_config(source)
    head = config.head if isinstance(config, ViTConfig) else None
    return None if head is None else head.task


def refuse_for_dense(task: DenseTask, asked: Mapping[str, object]) -> None:
    """Refuse what is of classes of images."""
    if said := [name for name, value in asked.items() if value]:
        raise ConfigError(f"the model was trained to {task}, and takes no {' or '.join(said)}. Leave it out.")


def evaluate_dense(
    model: AnyModel,
    data: object,
    task: DenseTask,
    *,
    split: str | None,
    worst: int,
    windows: bool,
    image_size: int | tuple[int, int] | None,
    out: str | os.PathLike[str] | None,
    page: str | os.PathLike[str] | None,
    choose: Callable[..., tuple[Source, str, list[str]]],
    verb: Callable[..., object],
    options: Measuring,
) -> DenseEvaluation:
    """Measure a model on images with masks or boxes, each once."""
    whole("worst", worst, least=0)
    name, said_data = model_name(model), data_name(data)
    out, page = (None if folder is None else home_path(folder) for folder in (out, page))
    if page is not None:
        check_replaceable(page, overwrite=True, ours=(*FILES, PAGE), mark=FILES[0])
    splits = open_annotated(data, task)  # of whose masks few are read, where no file names their classes
    with measuring(verb, model, options) as how:
        opened = open_model(model, image_size, how.group.device, {**options})
        source, said, doubts = choose(splits, [model], said_data, split)
        said = "; ".join([said, *doubts])
        for doubt in doubts:
            how.report.note(doubt)
        _check_classes(opened, source)
        showing = how.showing(f"evaluating {name}")
        found = measure(opened, source, showing, windows=windows)
        writes = how.group.is_main
        document = _document(opened, source, found, how, worst)
        document |= {"split": said, "data": said_data, "run": name, "windows": windows}
        if writes and page is not None:
            shown = _shown(opened, source, found, how, windows=windows)
            with writing(page):
                page.mkdir(parents=True, exist_ok=True)
            write_bytes(page / PAGE, page_of(title_of(name), document, shown))
    metrics = document["metrics"]
    rows = [
        Result(task="evaluate", model=name, data=said_data, metric=metric, value=value, images=document["images"])
        for metric, value in metrics.items()
    ]
    whole_document = document_of("evaluate", rows, **document, title=title_of(name))
    predictions, annotations = coco_documents(source, found)
    for folder in {out, page} - {None} if writes else ():
        assert folder is not None
        write_document(folder / FILES[0], whole_document)
        for file, rows_of in zip(FILES[1:], (predictions, annotations), strict=True):
            write_bytes(folder / file, (json.dumps(rows_of) + "\n").encode())
    return DenseEvaluation(
        task=task,
        metrics=metrics,
        images=document["images"],
        classes=document["classes"],
        worst=document["worst"]["images"],
        predictions=predictions,
        annotations=annotations,
        found=whole_document,
    )


def _check_classes(model: Model, source: Source) -> None:
    """Refuse images of other classes than the model's."""
    names = model.card.class_names
    if names is not None and tuple(names) != tuple(source.class_names):
        raise DataError(
            f"the model's classes are not the data's: {', '.join(names[:6])} against "
            f"{', '.join(source.class_names[:6])}. Name them alike, in classes.json or in the document's categories."
        )
    if names is None and model.config.classes != len(source.class_names):
        raise DataError(f"the model has {model.config.classes} classes, the data {len(source.class_names)}.")


def _document(model: Model, source: Source, found: DenseMeasured, how: InferenceOptions, worst: int) -> dict[str, Any]:
    result = found.result()
    order = found.worst()[:worst]
    return {
        "task": found.task,
        "metrics": found.metrics(),
        "images": len(found.scores),
        "left_out": len(found.skipped),
        "skipped": [skip._asdict() for skip in found.skipped],
        "classes": class_rows(result, source.class_names, found.tally.shapes_result()),
        "worst": {
            "images": [
                {"name": source.name(sample), "sample": sample, "score": found.scores[sample]} for sample in order
            ]
        },
        "computed": computed_in(model, how),
    }


def _shown(model: Model, source: Source, found: DenseMeasured, how: InferenceOptions, *, windows: bool) -> list[Shown]:
    """Ask again of the worst images, and draw truth and prediction."""
    chosen = found.worst()[:SHOWN]
    made: list[Shown] = []
    part = Subset(source, chosen)
    for rows, _ in answer_source(model, part, how, windows=windows):
        for place, known, answer in rows:
            sample = chosen[place]
            pixels = picture_of(source.read(sample))
            shown, names = scaled(pixels, LEAST, WIDE), source.class_names
            scale = shown.shape[0] / pixels.shape[0]
            truth = draw_annotation(shown, known, names, scale=scale)
            drawn = draw_answer(shown, answer, names, scale=scale)
            made.append(Shown(source.name(sample), found.scores[sample], shown, truth, drawn))
    return made
