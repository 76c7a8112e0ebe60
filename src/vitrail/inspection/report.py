"""A folder of figures, their numbers, and one page that opens offline."""

import base64
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail import __version__
from vitrail.config import PatchStem, ViTConfig
from vitrail.config.outputs import NumberOutputs, OrderedOutputs, Outputs
from vitrail.config.parts import reads_token
from vitrail.data.decode import decode, encode
from vitrail.errors import DataError
from vitrail.figures import size_of_png
from vitrail.files import check_replaceable, new_folder, read_json
from vitrail.inspection.drawing import Drawing, drawings, numbers
from vitrail.inspection.page import render_page, to_levels, url_of
from vitrail.inspection.study import FIRST, Attention, Inspected
from vitrail.models import Model
from vitrail.ops.cost.counts import parameters
from vitrail.ops.metrics import log_probabilities
from vitrail.ops.task_losses import median_class
from vitrail.ops.task_metrics import answers_of
from vitrail.runtime.reporter import SILENT, Reporter, harmless

PAGE, NUMBERS, FIGURES = "report.html", "inspection.json", "figures"
OURS = (PAGE, NUMBERS, FIGURES)
QUALITY = 80  # of photographs in a figure
MOST_IMAGES = 256  # of a page


class Measured(NamedTuple):
    """What was measured of a model, to be shown before what is inside it."""

    headline: Mapping[str, str] | None = None  # a value, its words and its interval
    drawings: Sequence[Drawing] = ()
    tables: Sequence[Mapping[str, Any]] = ()


NOTHING = Measured()


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was written, and where."""

    folder: Path
    page: Path
    figures: tuple[Path, ...]
    numbers: Mapping[str, Any]  # those of inspection.json
    images: int
    bytes: int  # of the page

    def document(self) -> dict[str, Any]:
        """Give the report as plain values, for JSON."""
        names = [str(path) for path in self.figures]
        return {"page": str(self.page), "figures": names, "images": self.images, "bytes": self.bytes}

    def __str__(self) -> str:
        return harmless(
            f"{len(self.figures)} figures in {self.folder / FIGURES}\n"
            f"page: {self.page} ({self.bytes / 1e6:.1f} MB; opens offline)"
        )


def write_report(
    folder: Path,
    subject: Inspected,
    *,
    other: Inspected | None = None,
    between: Float[Tensor, "L L2"] | None = None,
    mistakes: Sequence[int] = (),
    measured: Measured = NOTHING,
    beside: Mapping[str, bytes] = MappingProxyType({}),
    command: str = "",
    report: Reporter = SILENT,
) -> Report:
    """Draw every picture, write the numbers, and put all of it into one page.

    `mistakes` are places of images that it was sure of and wrong; `measured` is shown before all else; `beside` are
    files of the same folder. An earlier report of the same model is replaced, whole, at the end.
    """
    check_folder(folder, subject.title, beside)
    drawn: list[dict[str, Any]] = []
    files = dict(beside)
    every = [*measured.drawings, *drawings(subject, other, between)]
    for done, drawing in enumerate(every, start=1):
        light, dark = drawing.draw("light"), drawing.draw("dark")
        files[f"{FIGURES}/{drawing.name}.png"] = light
        drawn.append(_figure(drawing, light, dark) | {"measured": done <= len(measured.drawings)})
        report.progress("drawing figures", done, len(every))
    named = answers(subject)
    document = {
        "title": subject.title,
        "subtitle": in_words(subject.model),
        "command": command,
        "version": __version__,
        "headline": measured.headline,
        "figures": drawn,
        "tables": [*({**table, "measured": True} for table in measured.tables), *_tables(subject)],
        "images": list(_images(subject, named, set(mistakes))),
    }
    said = {"title": subject.title, "subtitle": in_words(subject.model), "command": command, **_numbers(subject, named)}
    if other is not None:
        said["other"] = {"title": other.title, "subtitle": in_words(other.model), **_numbers(other, answers(other))}
    if between is not None:
        said["layers_against"] = numbers(between)
    files[NUMBERS] = (json.dumps(said, indent=1) + "\n").encode("utf-8", "replace")
    files[PAGE] = render_page(document).encode("utf-8", "replace")
    with new_folder(folder, overwrite=True, ours=(*OURS, *beside), mark=NUMBERS) as temporary:
        (temporary / FIGURES).mkdir()
        for name, data in files.items():
            (temporary / name).write_bytes(data)
    figures = tuple(folder / name for name in files if name.startswith(f"{FIGURES}/"))
    return Report(
        folder=folder,
        page=folder / PAGE,
        figures=figures,
        numbers=said,
        images=len(document["images"]),
        bytes=len(files[PAGE]),
    )


def check_folder(folder: Path, title: str, beside: Collection[str] = ()) -> None:
    """Refuse a place that is taken by anything but an earlier report of the same model."""
    check_replaceable(folder, overwrite=True, ours=(*OURS, *beside), mark=NUMBERS)
    try:
        before = read_json(folder / NUMBERS).get("title")
    except (OSError, ValueError, AttributeError):
        return
    if before != title:
        raise DataError(
            f"{folder} holds a report of {before!r}, which would be lost. Give another folder, or remove it."
        )


def title_of(checkpoint: str) -> str:
    """Give a short name of a checkpoint, to show."""
    return Path(checkpoint.rstrip("/")).stem.replace(":", "-") or "model"


def in_words(model: Model) -> str:
    """Say what a model is, in a line."""
    config, count = model.config, parameters(model.config).total
    height, width = config.image_size
    size = f"{count / 1e6:.1f} million parameters, {height}x{width} pixels"
    if not isinstance(config, ViTConfig):
        return f"BiT ResNet, {size}"
    kind, side = "ViT" if isinstance(config.stem, PatchStem) else "hybrid", config.stem.stride
    return f"{kind}, {side}x{side} patches, {config.layers} layers of {config.heads} heads, {size}"


def answers(subject: Inspected) -> list[list[dict[str, Any]]]:
    """Name the first five answers to every image, with their probabilities; none of a model without classes."""
    found, names = subject.found, names_of(subject)
    if found is None:
        return []
    if not subject.model.config.classes:
        return [[] for _ in found.logits]
    if (outputs := subject.model.card.outputs) is not None:
        return [_answers_of_task(row, outputs, names) for row in answers_of(outputs, found.logits.float().cpu())]
    shares = log_probabilities(found.logits, subject.model.card.temperature).exp()
    best = shares.topk(min(FIRST, shares.shape[1]), dim=1)
    return [
        [
            {"name": str(number) if names is None else names[number], "probability": round(share, 6)}
            for share, number in zip(shares, found_numbers, strict=True)
        ]
        for shares, found_numbers in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def _answers_of_task(found: Tensor, outputs: Outputs, names: Sequence[str] | None) -> list[dict[str, Any]]:
    """Name the likeliest labels, all numbers, or the median of ordered classes and the likeliest others."""
    words = names or [str(number) for number in range(len(found))]
    if isinstance(outputs, NumberOutputs):
        values = zip(words, found.tolist(), strict=True)
        return [{"name": f"{name}: {value:.6g}", "probability": None} for name, value in values]
    order = found.argsort(descending=True, stable=True).tolist()
    if isinstance(outputs, OrderedOutputs):
        median = int(median_class(found[None])[0])
        order = [median, *(number for number in order if number != median)]
    return [{"name": words[number], "probability": round(float(found[number]), 6)} for number in order[:FIRST]]


def names_of(subject: Inspected) -> Sequence[str] | None:
    """Give the names of the model's classes: its own, or those that it was given."""
    return subject.model.card.class_names or subject.class_names


def _figure(drawing: Drawing, light: bytes, dark: bytes) -> dict[str, Any]:
    width, height = size_of_png(light)
    return {
        "id": drawing.name,
        "title": drawing.title,
        "caption": drawing.caption,
        "src": _carried(light, lossy=drawing.photographic),
        "dark": _carried(dark, lossy=drawing.photographic),
        "width": width,
        "height": height,
        "alt": drawing.caption,
    }


def _images(subject: Inspected, named: Sequence[Sequence[Any]], mistakes: set[int]) -> Iterator[dict[str, Any]]:
    found = subject.found
    if found is None:
        return
    views = found.views
    for number, top in enumerate(named):
        label, picture = views.labels[number], found.pictures[number]
        known = bool(top) and label in (names_of(subject) or ())  # else the classes are others
        right = top[0]["name"] == label if known else None
        yield {
            "name": views.names[number],
            "src": picture.url,
            "width": picture.width,
            "height": picture.height,
            "label": label,
            "right": views.verdicts[number] if views.verdicts else right,
            "top": top,
            "mistake": number in mistakes,
            "attention": None if found.attention is None else attention_document(found.attention, number),
        }


def attention_document(found: Attention, number: int) -> dict[str, Any]:
    """Give the attention to one image as a page reads it: a byte a weight, and what the largest of each map is."""
    maps, weights = found.maps[number], found.pooled[number]
    heads = maps.levels.shape[1]
    if heads == 1:  # the page shows the mean of the heads alone
        weights = weights.mean(dim=1, keepdim=True)
    pooled, pooled_peaks = to_levels(weights, found.plan.cell)
    rolled, rolled_peak = to_levels(found.rollout[number], found.plan.cell)
    return {
        "rows": maps.grid[0],
        "cols": maps.grid[1],
        "layers": maps.levels.shape[0],
        "heads": heads,
        "all_heads": heads == found.pooled.shape[2],
        "class_token": reads_token(found.pooling),
        "maps": _text(maps.levels),
        "peaks": _text(maps.peaks),
        "pooled": _text(pooled.numpy()),
        "pooled_peaks": _text(pooled_peaks.numpy()),
        "rollout": _text(rolled.numpy()),
        "rollout_peak": float(rolled_peak),
    }


def _tables(subject: Inspected) -> Iterator[dict[str, Any]]:
    if subject.found is not None and subject.found.attention is not None:
        far = subject.found.attention.distance.mean(dim=0)  # L h
        yield {
            "id": "distances",
            "title": "Mean attention distance in pixels",
            "caption": "Over all images; of the heads of a layer.",
            "columns": ["layer", "nearest head", "mean", "farthest head"],
            "rows": [
                [str(layer + 1), *(f"{value:.1f}" for value in (float(row.min()), float(row.mean()), float(row.max())))]
                for layer, row in enumerate(far)
            ],
        }


def _numbers(subject: Inspected, named: Sequence[Sequence[Any]]) -> dict[str, Any]:
    found = subject.found
    if found is None:
        return {}
    rows = zip(found.views.names, found.views.labels, named, strict=True)
    said: dict[str, Any] = {"images": [{"name": name, "label": label, "top": top} for name, label, top in rows]}
    if (guessed := subject.predictions) is not None:
        values = {"losses": guessed.losses, "right": guessed.right}
        said["predictions"] = {name: numbers(value) for name, value in values.items() if value is not None}
    if found.attention is not None:
        said["attention_distance"] = numbers(found.attention.distance.mean(dim=0))
        said["attention_distance_normalised"] = numbers(found.attention.normalized_distance.mean(dim=0))
    for name, places, agreement in (
        ("shifts", {"pixels": list(found.shifts)}, found.moved),
        ("dropped", {"shares": list(found.shares)}, found.dropped),
        ("shuffled", {"shares": list(found.shares)}, found.shuffled),
    ):
        if agreement is not None:
            parts = {part: numbers(values) for part, values in agreement._asdict().items()}
            said[name] = {**places, "images": found.drawn, **parts}
    if found.layers is not None:
        said["layers_images"] = found.drawn
        said["layers"] = numbers(found.layers)
    return said


def _carried(png: bytes, *, lossy: bool) -> str:
    return url_of(encode(decode(png), "JPEG", QUALITY), "jpeg") if lossy else url_of(png, "png")


def _text(values: NDArray[np.generic]) -> str:
    little_endian = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return base64.b64encode(little_endian.tobytes()).decode()
