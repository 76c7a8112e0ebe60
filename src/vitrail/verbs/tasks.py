"""How good a model of several labels, numbers or ordered classes is: what `vitrail.evaluate` gives of one."""

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.checkpoint.load import of_run
from vitrail.checkpoint.run_folder import locate, read_document, read_run_card
from vitrail.config import Card, decode
from vitrail.config.model import ModelConfig
from vitrail.config.outputs import TASK_OF, LabelOutputs, NumberOutputs, OrderedOutputs, Outputs
from vitrail.data.source import Source
from vitrail.data.sources.table import LINES
from vitrail.data.targets import open_known
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.evaluation.cached import cached_outputs
from vitrail.evaluation.results import Result, document_of, table_of
from vitrail.files import home_path
from vitrail.models import Model
from vitrail.ops.task_losses import label_loss, median_class, order_loss
from vitrail.ops.task_metrics import answers_of, measure
from vitrail.runtime.engines import is_exported, open_engine
from vitrail.runtime.inference import InferenceOptions
from vitrail.runtime.reporter import harmless
from vitrail.verbs.opening import AnyModel, model_source

SHOWN = 20  # labels, numbers or classes of a table
OUTPUTS = "outputs.json"
SHORT = {"mean_absolute_error": "MAE", "root_mean_squared_error": "RMSE", "r2": "R2", "correlation": "r"}
SHORT |= {"rank_correlation": "rank r", "average_precision": "AP"}


def card_of(model: AnyModel) -> Card | None:
    """Give the card of a model whose outputs are no logits of one class, before any weight is read; None of others."""
    model = of_run(model)
    if isinstance(model, Model):
        return model.card if model.card.outputs is not None else None
    source = model_source(model)
    if is_exported(source):
        path = home_path(source)
        card = open_engine(path).card if path.is_file() else Card()
        return card if card.outputs is not None else None
    try:
        folder = locate(source).run
    except CheckpointError:
        return None  # which whoever opens it says
    if folder is None or not (folder / OUTPUTS).is_file():
        return None
    config: ModelConfig = decode(read_document(folder / "config.json")["model"])
    return read_run_card(folder, config.classes)


def refuse_other(card: Card, given: Mapping[str, object]) -> None:
    """Refuse options that are of one class an image."""
    assert card.outputs is not None
    if said := [name for name, value in given.items() if value is not None]:
        raise ConfigError(
            f"{', '.join(said)}: of one class an image alone, and the model's task is {TASK_OF[type(card.outputs)]}. "
            f"Leave {'it' if len(said) == 1 else 'them'} out."
        )


def open_for(card: Card, data: object, *, allow_pipe: bool = False) -> Mapping[str, Source]:
    """Open images to measure a model by; refuses those of other labels, numbers or classes."""
    splits = open_known(data, card, allow_pipe=allow_pipe)
    for source in splits.values():
        if card.class_names is not None and source.class_names != card.class_names:
            raise DataError(
                f"what is known of these images is not what the model answers: {', '.join(source.class_names[:4])} "
                f"against {', '.join(card.class_names[:4])}. Measure it by data of the same labels, numbers or classes."
            )
    return splits


def is_of_targets(data: object) -> bool:
    """Tell a table, which may say several labels or numbers of each image."""
    return isinstance(data, str | os.PathLike) and Path(data).suffix.lower() in (*LINES, ".parquet")


@dataclass(frozen=True)
class Asked:
    """A model that was asked, and its raw outputs, in the order of the samples."""

    name: str
    outputs: Outputs
    names: Sequence[str]
    samples: NDArray[np.int64]
    raw: Tensor
    targets: Tensor
    skipped: Sequence[tuple[str, str]]
    seconds: float
    reused: int


def ask(name: str, model: Model, source: Source, options: InferenceOptions) -> Asked:
    """Ask a model of every image."""
    outputs, card = model.card.outputs, model.card
    if outputs is None:
        raise ConfigError(f"{name} names one class an image, and cannot be compared with a model of another task.")
    rows = cached_outputs(model, source, "task-outputs", _read, options.showing(f"evaluating {harmless(name)}"))
    raw = torch.from_numpy(rows.values["raw"])
    return Asked(
        name=name,
        outputs=outputs,
        names=card.class_names or source.class_names,
        samples=rows.samples,
        raw=raw,
        targets=torch.from_numpy(targets_of(source, outputs.size)[rows.samples]),
        skipped=[(skip.name, skip.reason) for skip in rows.skipped],
        seconds=rows.seconds,
        reused=rows.reused,
    )


def _read(model: Model, images: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
    return {"raw": model(images).float()}


def targets_of(source: Source, size: int) -> NDArray[np.float32]:
    """Give what is known of every image; of ordered classes a row of 0 with a 1 at its class."""
    if source.targets is not None:
        return source.targets
    labels = np.asarray(source.labels)
    hot = np.zeros((len(labels), size), dtype=np.float32)
    hot[np.flatnonzero(labels >= 0), labels[labels >= 0]] = 1
    return hot


def report_of(asked: Asked, *, worst: int, against: Asked | None) -> dict[str, Any]:
    """Say all that is known of the answers."""
    sound = ~asked.raw.isnan().any(dim=1)
    whole, rows = measure(asked.outputs, asked.raw[sound], asked.targets[sound], asked.names)
    found: dict[str, Any] = {"task": TASK_OF[type(asked.outputs)], "metrics": whole, "each": rows}
    found |= {"images": int(sound.sum()), "no_answer": int((~sound).sum()), "left_out": len(asked.skipped)}
    found["skipped"] = [{"name": name, "reason": reason} for name, reason in asked.skipped]
    found["worst"] = {"images": []}
    if against is not None:
        theirs, _ = measure(against.outputs, against.raw, against.targets, against.names)
        found["against"] = {"other": against.name, "metrics": theirs}
    return found | {"worst": {"images": _worst(asked, sound, worst)}}


def _worst(asked: Asked, sound: Tensor, most: int) -> list[dict[str, Any]]:
    """Name the images whose answer is farthest from the truth, by the outputs as they are trained."""
    match asked.outputs:
        case LabelOutputs():
            losses = label_loss(asked.raw, asked.targets)
        case NumberOutputs(mean=mean, deviation=deviation):
            scaled = (asked.targets.double() - torch.tensor(mean, dtype=torch.float64)) / torch.tensor(deviation)
            losses = (asked.raw - scaled.float()).abs().mean(dim=1)
        case OrderedOutputs():
            losses = order_loss(asked.raw, asked.targets)
    order = torch.where(sound, losses, -1).argsort(descending=True, stable=True)[:most].tolist()
    return [{"sample": int(asked.samples[row]), "loss": float(losses[row])} for row in order if sound[row]]


def results_of(found: Mapping[str, Any], *, run: str, data: str, setting: Mapping[str, Any]) -> list[Result]:
    """Give a row for every number, for pages that collect them."""
    rest: Any = {"task": "evaluate", "model": run, "data": data, "setting": setting, "images": found["images"]}
    return [Result(**rest, metric=metric, value=value) for metric, value in found["metrics"].items()]


def document_for(
    found: Mapping[str, Any], run: str, data: str, split: str, setting: Mapping[str, Any]
) -> dict[str, Any]:
    """Give the document of an evaluation."""
    rows = results_of(found, run=run, data=data, setting=setting)
    return document_of("evaluate", rows, run=run, data=data, split=split, **found)


def predictions_of(asked: Asked, source: Source) -> bytes:
    """Write a line of CSV for each image: what is true, and what is said, of every label, number or class."""
    found, text = answers_of(asked.outputs, asked.raw).double().numpy(), io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if isinstance(asked.outputs, OrderedOutputs):
        lines.writerow(("name", "label", "answer", "probability"))
        answers = median_class(torch.from_numpy(found)).tolist()
        for row, answer in enumerate(answers):
            known = bool(asked.targets[row].sum())
            label = asked.names[int(asked.targets[row].argmax())] if known else ""
            lines.writerow((_name(asked, source, row), label, asked.names[answer], f"{found[row, answer]:.6g}"))
        return text.getvalue().encode("utf-8", "surrogateescape")
    lines.writerow(("name", *(f"{name}{end}" for name in asked.names for end in ("", " answer"))))
    for row in range(len(found)):
        pairs = zip(asked.targets[row].tolist(), found[row].tolist(), strict=True)
        lines.writerow((_name(asked, source, row), *(f"{value:.6g}" for pair in pairs for value in pair)))
    return text.getvalue().encode("utf-8", "surrogateescape")


def _name(asked: Asked, source: Source, row: int) -> str:
    return source.name(int(asked.samples[row]))


def text_of(document: Mapping[str, Any]) -> str:
    """Say an evaluation for people."""
    return "\n".join(_lines(document))


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    said = ", ".join(f"{_words(name)} {value:.4f}" for name, value in document["metrics"].items())
    yield f"{document['task']}, {document['images']:,} images ({document['split']}): {said}"
    if document["no_answer"]:
        yield f"{document['no_answer']:,} images have no answer, as the outputs are NaN: they do not count"
    if document["left_out"]:
        yield f"{document['left_out']:,} images could not be decoded"
    if against := document.get("against"):
        theirs = ", ".join(f"{_words(name)} {value:.4f}" for name, value in against["metrics"].items())
        yield f"against {harmless(against['other'])}: {theirs}"
    rows = document["each"][:SHOWN]
    heads = [*rows[0]] if rows else []
    if heads:
        yield ""
        cells = [[f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
        yield from table_of("of each", [SHORT.get(head, _words(head)) for head in heads], cells)
        if len(document["each"]) > SHOWN:
            yield f"and {len(document['each']) - SHOWN:,} more: --json"
    if worst := document["worst"]["images"]:
        yield ""
        yield from table_of("farthest off", ("name", "loss"), [[row["name"], f"{row['loss']:.4f}"] for row in worst])


def _words(name: str) -> str:
    return name.replace("_", " ")


def named(found: dict[str, Any], source: Source) -> dict[str, Any]:
    """Give the report with the names of the images that are farthest off."""
    rows = [{"name": source.name(row["sample"]), **row} for row in found["worst"]["images"]]
    return {**found, "worst": {"images": rows}}
