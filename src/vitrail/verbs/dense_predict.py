"""`vitrail.predict` of models that segment or detect: masks or boxes of images, as objects, files and JSON."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.config.check import rate
from vitrail.config.dense import DenseTask
from vitrail.data.annotation import VOID
from vitrail.data.decode import Pixels, encode
from vitrail.data.mask_files import encode_mask
from vitrail.data.overlays import colors_of, picture_of
from vitrail.data.source import Source
from vitrail.errors import DataError, one_line
from vitrail.evaluation.dense import Unannotated, answer_source
from vitrail.evaluation.dense_page import overlay
from vitrail.files import home_path, write_bytes, writing
from vitrail.models import Model
from vitrail.ops.average_precision import FoundBoxes
from vitrail.ops.shapes import Shape
from vitrail.runtime.dense import DenseAnswer, dense_task
from vitrail.runtime.inference import InferenceOptions, computed_in
from vitrail.verbs.predictions import Failed

SHOWN = 10  # images that a printed object shows
JSON = "predictions.json"


class FoundObject(NamedTuple):
    """An object that was found: what it is, how sure that is, and where."""

    label: str
    score: float
    box: tuple[float, float, float, float]  # left, top, right, bottom in pixels of the image
    shape: Shape | None = None  # its pixels, where the model draws them: shape.pixels() is a mask, H W

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON; its pixels as COCO's run lengths."""
        found = {"label": self.label, "score": self.score, "box": self.box}
        return found if self.shape is None else {**found, "segmentation": self.shape.document()}


@dataclass(frozen=True, eq=False, kw_only=True)
class DensePrediction:
    """What a model says of the pixels or the objects of one image."""

    name: str
    size: tuple[int, int]  # rows and columns of the image
    class_names: Sequence[str]
    score: float  # from which on an object is among `objects`
    source: Source = field(repr=False)
    sample: int = field(repr=False)
    mask: NDArray[np.uint8] | None = field(default=None, repr=False)  # the class of every pixel, where it segments
    found: FoundBoxes | None = field(default=None, repr=False)  # every box, however unsure, where it detects
    shapes: Sequence[Shape] | None = field(default=None, repr=False)  # of these, where it draws objects

    @property
    def objects(self) -> list[FoundObject]:
        """The boxes that are sure enough, the surest first."""
        if self.found is None:
            return []
        shapes = [None] * len(self.found.boxes) if self.shapes is None else self.shapes
        rows = zip(self.found.classes, self.found.scores, self.found.boxes, shapes, strict=True)
        return [
            FoundObject(self.class_names[number], float(score), tuple(round(edge, 2) for edge in box.tolist()), shape)  # pyright: ignore[reportArgumentType]
            for number, score, box, shape in rows
            if score >= self.score
        ]

    @property
    def shares(self) -> dict[str, float]:
        """The share of the pixels that each class has, of those that are there; the largest first."""
        if self.mask is None:
            return {}
        counts = np.bincount(self.mask.ravel(), minlength=VOID + 1)
        order = np.argsort(-counts, kind="stable")
        names = list(self.class_names)
        return {names[number]: float(counts[number] / self.mask.size) for number in order.tolist() if counts[number]}

    def pixels(self) -> Pixels:
        """Read the image again, to draw over it."""
        return picture_of(self.source.read(self.sample))

    def overlay(self) -> Pixels:
        """Draw the mask or the boxes over the image; a small one is shown larger, in whole steps, so that names fit."""
        mask = None if self.mask is None else torch.from_numpy(self.mask)
        return overlay(self.pixels(), DenseAnswer(mask, self.found, self.shapes), self.class_names, least=self.score)

    def document(self) -> dict[str, Any]:
        """Give it as plain values, for JSON."""
        found = {"name": self.name, "height": self.size[0], "width": self.size[1]}
        if self.mask is not None:
            return {**found, "classes": [{"label": label, "share": part} for label, part in self.shares.items()]}
        return {**found, "objects": [each.document() for each in self.objects]}

    def __str__(self) -> str:
        if self.mask is not None:
            said = ", ".join(f"{one_line(label)} {part:.1%}" for label, part in self.shares.items())
        else:
            rows = (f"{one_line(each.label)} {each.score:.0%}" for each in self.objects)
            said = ", ".join(rows) or f"nothing from {self.score:.0%} on"
        return f"{one_line(self.name)}: {said}"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class DensePredictions(Sequence[DensePrediction]):
    """What a model says of every image that could be read, in the order given; the others are in `failed`."""

    task: DenseTask
    class_names: Sequence[str]
    rows: Sequence[DensePrediction]
    failed: Sequence[Failed] = ()
    computed: Mapping[str, Any] = field(default_factory=dict)  # engine, precision and device

    @property
    def names(self) -> list[str]:
        """The names of the images that could be read."""
        return [row.name for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> DensePrediction: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[DensePrediction]: ...
    def __getitem__(self, index: int | slice) -> DensePrediction | Sequence[DensePrediction]:
        """Give that of one image, or those of a slice."""
        return self.rows[index]

    def document(self) -> dict[str, Any]:
        """Give all as plain values, for JSON."""
        rows = [row.document() for row in self.rows]
        failed = [each._asdict() for each in self.failed]
        said = {"task": self.task, "classes": list(self.class_names)}
        return {**said, "predictions": rows, "failed": failed, "computed": dict(self.computed)}

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the masks as indexed PNGs, all drawn over their images, and predictions.json; give the paths.

        A mask is NAME.png, whose numbers are the classes; NAME.overlay.jpg shows masks or boxes over the image.
        """
        place = home_path(folder)
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
        document, made = self.document(), list[Path]()
        for row, said, stem in zip(self.rows, document["predictions"], self._stems(), strict=True):
            if row.mask is not None:
                said["mask"] = f"{stem}.png"
                made.append(place / said["mask"])
                write_bytes(made[-1], encode_mask(row.mask, colors_of(self.class_names)))
            said["overlay"] = f"{stem}.overlay.jpg"
            made.append(place / said["overlay"])
            write_bytes(made[-1], encode(row.overlay(), "JPEG"))
        made.append(place / JSON)
        write_bytes(made[-1], (json.dumps(document, indent=2) + "\n").encode())
        return made

    def _stems(self) -> Iterator[str]:
        """Give each image a name of a file; a number too, where two would have one."""
        seen: dict[str, int] = {}
        for row in self.rows:
            stem = PurePath(row.name).stem.replace(os.sep, "-") or "image"
            seen[stem] = seen.get(stem, 0) + 1
            yield stem if seen[stem] == 1 else f"{stem}-{seen[stem]}"

    def table(self, shown: int | None = None) -> Iterator[str]:
        """Give a line for each image."""
        yield from map(str, self.rows[:shown])

    def __repr__(self) -> str:
        lines = [*self.table(SHOWN)]
        lines += [f"... {len(self):,} images in all"] if len(self) > SHOWN else []
        lines += [f"failed: {one_line(name)}: {one_line(reason)}" for name, reason in self.failed[:SHOWN]]
        return "\n".join(lines)


def predict_dense(
    model: Model, source: Source, options: InferenceOptions, *, score: float, windows: bool
) -> DensePredictions:
    """Say of every image that can be read what is in it, and where."""
    task, least = dense_task(model), rate("score", score)
    assert task is not None
    names = model.card.class_names or tuple(f"class {number}" for number in range(model.config.classes or 0))
    rows: dict[int, DensePrediction] = {}
    failed: list[tuple[int, Failed]] = []
    for found, skipped in answer_source(model, Unannotated(source), options, windows=windows):
        failed += [(skip.sample, Failed(source.name(skip.sample), skip.reason)) for skip in skipped]
        for sample, known, answer in found:
            if known.size is None:
                raise DataError(f"{source.name(sample)}: its size is not known.")
            rows[sample] = DensePrediction(
                name=source.name(sample),
                size=known.size,
                class_names=names,
                score=least,
                source=source,
                sample=sample,
                mask=None if answer.mask is None else answer.mask.cpu().numpy(),
                found=answer.found,
                shapes=answer.shapes,
            )
        if len(source) > options.batch_size:
            options.report.progress("predicting", len(rows) + len(failed), len(source))
    return DensePredictions(
        task=task,
        class_names=names,
        rows=[rows[sample] for sample in sorted(rows)],
        failed=[each for _, each in sorted(failed)],
        computed=computed_in(model, options),
    )
