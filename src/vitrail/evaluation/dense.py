"""How good a model is on pixels or objects: by class, by size, the worst images; and rows as of COCO's JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from vitrail.config.dense import DenseTask
from vitrail.config.engine import EIGHT
from vitrail.data.annotated.coco_rows import CocoNames
from vitrail.data.annotated.feed import annotated_feed
from vitrail.data.annotation import Annotation, checked, of_boxes
from vitrail.data.decode import ImageError, OpenImage
from vitrail.data.source import Skip, Source, Subset, check_limit
from vitrail.data.transforms.annotated import known_shapes
from vitrail.errors import ConfigError
from vitrail.models import Model, eval_mode
from vitrail.ops.average_precision import FoundBoxes, Precisions, box_overlaps
from vitrail.ops.pixel_metrics import PixelCounts
from vitrail.runtime.dense import DenseAnswer, DenseTally, dense_task, draws_objects, go_through, truth_of
from vitrail.runtime.inference import InferenceOptions
from vitrail.runtime.reporter import harmless, text_table
from vitrail.runtime.windows import answer_windows

Row = tuple[int, Annotation, DenseAnswer]
SURE, RIGHT = 0.5, 0.5  # score from which a box is said, and overlap from which it is right, where images are ranked
WORDS = {"mean_iou": "mean IoU", "pixel_accuracy": "pixel accuracy", "ap": "AP", "ap50": "AP50", "ap75": "AP75"}
WORDS |= {"ap_small": "AP small", "ap_medium": "AP medium", "ap_large": "AP large"}
WORDS |= {f"mask_{name}": f"mask {word}" for name, word in WORDS.items() if word.startswith("AP")}


@dataclass
class DenseMeasured:
    """What was measured of every image of a source."""

    task: DenseTask
    tally: DenseTally
    scores: dict[int, float] = field(default_factory=dict)  # of each image, by its number: how right it is
    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # of predictions
    truths: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    skipped: list[Skip] = field(default_factory=list)

    def result(self) -> PixelCounts | Precisions:
        """Give what is measured of all."""
        return self.tally.result(self.task)

    def metrics(self) -> dict[str, float]:
        """Give all numbers by their names."""
        return self.tally.metrics(self.task)

    def worst(self) -> list[int]:
        """Number the images, the worst first."""
        return sorted(self.scores, key=lambda sample: (self.scores[sample], sample))


def measure(model: Model, source: Source, options: InferenceOptions, *, windows: bool) -> DenseMeasured:
    """Ask a model of every image of a source once, whole or in windows, and compare with what is known."""
    task, classes, group = dense_task(model), model.config.classes or 0, options.group
    assert task is not None
    made, names, done = DenseMeasured(task, DenseTally(classes)), CocoNames(source), 0
    for rows, skipped in answer_source(model, source, options, windows=windows):
        made.skipped += skipped
        for sample, known, answer in rows:
            counts = made.tally.add(sample, known, answer)
            if counts is not None:
                made.scores[sample] = PixelCounts(confusion=counts).mean_iou
                made.rows[sample] = [*names.masks(sample, answer.mask.cpu().numpy())] if answer.mask is not None else []
            elif answer.found is not None:
                made.scores[sample] = agreement(known, answer.found)
                made.rows[sample] = [*names.boxes(sample, *answer.found, answer.shapes)]
            made.truths[sample] = [*names.truths(sample, known)]
            assert known.size is not None
            made.sizes[sample] = known.size
        done += (len(rows) + len(skipped)) * group.world_size
        options.progress(min(done, len(source)), len(source))
    found = joined(task, group.all_gather(made))
    some = [(skip.name, skip.reason) for skip in found.skipped[:5]]
    check_limit(some, len(found.skipped), len(source), options.bad_image_limit)
    return found


def answer_source(
    model: Model, source: Source, options: InferenceOptions, *, windows: bool
) -> Iterator[tuple[list[Row], Sequence[Skip]]]:
    """Give what is known of this process's images and what the model says of them, some at a time."""
    group = options.group
    if options.precision in EIGHT or options.engine == "fast":
        raise ConfigError("masks and boxes are computed by the plain model, in float32 or bfloat16. Leave engine out.")
    if windows:
        with eval_mode(model):
            for sample in range(group.rank, len(source), group.world_size):
                yield _through_windows(model, source, sample)
        return
    feed = annotated_feed(
        source,
        model.config.image_size,
        preprocessing=model.card.preprocessing,
        channels=model.config.channels,
        batch=options.batch_size * group.world_size,
        workers=options.workers,
        rank=group.rank,
        ranks=group.world_size,
        device=group.device,
        shapes=draws_objects(model),
    )
    feed.bad_image_limit = 1.0  # the whole is checked after it
    half = partial(torch.autocast, group.device.type, torch.bfloat16, enabled=options.precision == "bfloat16")
    for batch, rows in go_through(model, feed.epoch(0), autocast=half):
        yield rows, batch.skipped


def _through_windows(model: Model, source: Source, sample: int) -> tuple[list[Row], Sequence[Skip]]:
    try:
        data = source.read(sample)
        if isinstance(data, bytes):
            image = OpenImage(data)
            size = image.height, image.width
        else:
            size = data.shape[0], data.shape[1]
        known = checked(source.annotation(sample), *size)._replace(size=size)
        known = known_shapes(known, *size) if draws_objects(model) else known._replace(shapes=None)
        return [(sample, known, answer_windows(model, data))], ()
    except ImageError as error:
        return [], (Skip(sample, source.name(sample), str(error)),)


def joined(task: DenseTask, parts: Sequence[DenseMeasured]) -> DenseMeasured:
    """Give what all processes measured as one."""
    made = DenseMeasured(task, parts[0].tally.join([part.tally for part in parts]))
    for part in parts:
        for name in ("scores", "rows", "truths", "sizes"):
            getattr(made, name).update(getattr(part, name))
        made.skipped += part.skipped
    return made


def agreement(known: Annotation, found: FoundBoxes) -> float:
    """Give twice the right boxes over those that are there and those that are said (F1), of the sure ones."""
    truth = truth_of(known)
    sure = found.scores >= SURE
    boxes, classes, left = found.boxes[sure], found.classes[sure], ~truth.crowd
    shared = box_overlaps(boxes, truth.boxes, truth.crowd)
    right = passed = 0
    for place, number in enumerate(classes):
        worth = np.where(left & (truth.classes == number), shared[place], 0.0)
        if len(worth) and worth.max() >= RIGHT:
            left[int(worth.argmax())] = False
            right += 1
        elif (truth.crowd & (truth.classes == number) & (shared[place] >= RIGHT)).any():
            passed += 1
    asked = int((~truth.crowd).sum()) + len(classes) - passed
    return 2 * right / asked if asked else 1.0


def class_rows(
    found: PixelCounts | Precisions, names: Sequence[str], drawn: Precisions | None = None
) -> list[dict[str, Any]]:
    """Give the numbers of every class, of masks of objects too; None where there is nothing to measure."""

    def plain(value: float) -> float | None:
        return None if np.isnan(value) else float(value)

    if isinstance(found, PixelCounts):
        pixels = found.confusion.sum(axis=1)
        rows = zip(names, found.iou, found.recall, pixels, strict=True)
        return [
            {"name": name, "iou": plain(iou), "accuracy": plain(recall), "pixels": int(count)}
            for name, iou, recall, count in rows
        ]
    columns: dict[str, Any] = {}
    for word, each in (("", found), ("mask_", drawn)):
        if each is not None:
            for name, threshold in (("ap", None), ("ap50", 0.5), ("ap75", 0.75)):
                columns[word + name] = [plain(value) for value in each.of_classes(threshold=threshold)]
    columns["objects"] = found.objects.tolist()
    return [
        {"name": name, **dict(zip(columns, row, strict=True))}
        for name, *row in zip(names, *columns.values(), strict=True)
    ]


def coco_documents(source: Source, found: DenseMeasured) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Give predictions as COCO's tools take them, and the truth that they are compared with."""
    samples = sorted(found.rows)
    names = CocoNames(source)
    sizes = [found.sizes.get(sample, (0, 0)) for sample in range(len(source))]
    truth = names.document(sizes)
    truth["images"] = [truth["images"][sample] for sample in samples]
    every = (row for sample in samples for row in found.truths[sample])
    truth["annotations"] = [{"id": number, **row} for number, row in enumerate(every, start=1)]
    predictions = [row for sample in samples for row in found.rows[sample]]
    return [row if "score" in row else {**row, "score": 1.0} for row in predictions], truth


def text_of(document: Mapping[str, Any]) -> str:
    """Say an evaluation of pixels or objects for people."""
    first, *others = [(WORDS[name], value) for name, value in document["metrics"].items()]
    lines = [f"{first[0]} {first[1]:.4f} on {document['images']:,} images ({document['split']})"]
    boxes, masks = ([pair for pair in others if pair[0].startswith("mask ") == drawn] for drawn in (False, True))
    lines += [", ".join(f"{name} {value:.4f}" for name, value in part) for part in (boxes, masks) if part]
    heads, *rows = _table(document)
    lines += ["", *text_table("by class", heads, rows, most=80)]
    if worst := document["worst"]["images"]:
        rows = [[harmless(row["name"]), f"{row['score']:.3f}"] for row in worst]
        how = "mean IoU" if document["task"] == "segment" else "F1 of boxes"
        lines += ["", *text_table("worst images", ("image", how), rows, most=80)]
    if document["left_out"]:
        lines.append(f"{document['left_out']:,} images could not be read, such as")
        lines += [f"  {harmless(skip['name'])}: {harmless(skip['reason'])}" for skip in document["skipped"][:3]]
    return "\n".join(lines)


def _table(document: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    numbers = ("iou", "accuracy") if document["task"] == "segment" else ("ap", "ap50", "ap75", "mask_ap", "mask_ap50")
    numbers = [name for name in numbers if any(name in row for row in document["classes"])]
    count = "pixels" if document["task"] == "segment" else "objects"
    yield ("class", *("IoU" if name == "iou" else WORDS.get(name, name) for name in numbers), count)
    for row in document["classes"]:
        cells = ("" if row[name] is None else f"{row[name]:.4f}" for name in numbers)
        yield (harmless(row["name"]), *cells, f"{row[count]:,}")


class Unannotated(Subset):
    """Images of which nothing is known."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, np.arange(len(source)))
        self._labels = np.full(len(source), -1, dtype=np.int64)

    def annotation(self, index: int) -> Annotation:
        """Give none."""
        return of_boxes([], [])
