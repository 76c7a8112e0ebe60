"""`vitrail.evaluate` of a model of several labels, numbers or ordered classes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitrail.config import Card
from vitrail.errors import ConfigError
from vitrail.evaluation.results import write_document
from vitrail.files import home_path, write_bytes
from vitrail.runtime.inference import choose_model
from vitrail.verbs import tasks
from vitrail.verbs.evaluate import FILES, Evaluation, choose_images, evaluate, is_measured
from vitrail.verbs.opening import (
    AnyModel,
    Measuring,
    change_passes,
    data_name,
    hints_of,
    measuring,
    model_name,
    open_model,
)


@dataclass(frozen=True, kw_only=True, repr=False)
class TaskEvaluation(Evaluation):
    """How good a model of several labels, numbers or ordered classes is: `metrics` has its numbers by name.

    `accuracy` is the share of images whose labels are all right, or of the right class; NaN of numbers. `classes` has
    a row for each label, number or class.
    """

    metrics: Mapping[str, float]

    def __repr__(self) -> str:
        return tasks.text_of(self.found)


def evaluate_task(
    model: AnyModel,
    data: object,
    card: Card,
    asked: Mapping[str, Any],
    image_size: int | tuple[int, int] | None,
    options: Measuring,
    *,
    allow_pipe: bool,
) -> TaskEvaluation:
    """Measure a model of several labels, numbers or ordered classes."""
    if is_measured(options):
        raise ConfigError("preprocessing=measure goes by accuracy, which is of one class. Leave it out.")
    name, said_data, out, other = model_name(model), data_name(data), asked["out"], asked["against"]
    models = [model] if other is None else [model, other]
    splits = tasks.open_for(card, data, allow_pipe=allow_pipe)
    source, said, doubts = choose_images(splits, models, said_data, asked["split"])
    said = "; ".join([said, *doubts])
    with measuring(evaluate, model, options) as how:
        for doubt in doubts:
            how.report.note(doubt)
        found: list[tasks.Asked] = []
        for each, way in zip(models, [options, hints_of(options)], strict=False):
            opened = open_model(each, image_size, how.group.device, way)
            opened = choose_model(opened, len(source), how)
            if each is model:
                opened = change_passes(opened, asked["passing"], precision=how.precision, images=len(source))
            found.append(tasks.ask(model_name(each), opened, source, how))
        writes = how.group.is_main
    first, against = found[0], found[1] if other is not None else None
    report = tasks.named(tasks.report_of(first, worst=asked["worst"], against=against), source)
    setting = {
        "split": said,
        "precision": how.precision,
        **{key: value for key, value in asked["passing"].items() if value},
    }
    document = tasks.document_for(report, name, said_data, said, setting)
    document["time"] = {"seconds": round(first.seconds, 2), "reused": first.reused}
    lines = tasks.predictions_of(first, source)
    if writes and out is not None:
        write_document(home_path(out) / FILES[0], document)
        write_bytes(home_path(out) / FILES[1], lines)
    metrics = report["metrics"]
    accuracy = metrics.get("accuracy", metrics.get("exact_match", float("nan")))
    none: dict[str, Any] = dict.fromkeys(("top5", "balanced_accuracy", "macro_f1", "confusion"))
    none |= {"accuracy": accuracy, "interval": (float("nan"), float("nan")), "loss": metrics["loss"]}
    none |= {"macro_f1": metrics.get("macro_f1"), "images": report["images"], "classes": report["each"]}
    return TaskEvaluation(**none, worst=report["worst"]["images"], predictions=lines, found=document, metrics=metrics)
