"""An evaluation as a page shows it: how good, what is taken for what, how sure, class by class."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.figures import measured as figures
from vitrail.inspection.drawing import Drawing
from vitrail.inspection.report import Measured
from vitrail.ops.metrics import wilson

MOST = 30  # confusions of a page; the file has more
MATRIX = 200  # classes up to which their matrix is drawn


def measured_of(document: Mapping[str, Any]) -> Measured:
    """Give what a page shows of an evaluation, in its order."""
    return Measured(_headline(document), list(_drawings(document)), list(_tables(document)))


def _headline(document: Mapping[str, Any]) -> dict[str, str]:
    low, high = document["interval"]
    return {
        "value": _percent(document["accuracy"]),
        "words": f"accuracy on {document['images']:,} images of {document['data']} ({document['split']})",
        "interval": f"95 % interval {100 * low:.1f} to {_percent(high)}",
    }


def _drawings(document: Mapping[str, Any]) -> Iterator[Drawing]:
    names = [row["name"] for row in document["classes"]]
    matrix = (document.get("confusion") or {}).get("matrix")
    if matrix is not None and 1 < len(names) <= MATRIX:
        counts = np.asarray(matrix, dtype=np.float64)
        which = "" if figures.label_size(names) else " Classes are numbered as in the table below."
        yield Drawing(
            "confusion",
            "What it takes for what",
            f"Of the images of each class (a row), the share that is given each answer (a column).{which}",
            lambda theme: figures.draw_confusion(counts, names, theme),
        )
    if "calibration" in document:
        found = document["calibration"]
        bins = [part for part in found["bins"] if part["images"]]
        points = [(part["confidence"], part["accuracy"], part["images"]) for part in bins]
        ends = [wilson(round(right * images), images) for _, right, images in points]
        yield Drawing(
            "reliability",
            "Whether it is as good as it is sure",
            "Accuracy of the answers by how sure the model is of them, with intervals of 95 %, and how many there are. "
            f"On the line confidence is earned; below, it is too sure. Calibration error {_percent(found['error'])}.",
            lambda theme: figures.draw_reliability(points, ends, theme),
        )


def _tables(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    rows = [_with_interval("accuracy", document["accuracy"], document["interval"])]
    if (copies := document.get("near_copies")) and copies["images"]:
        apart = f"accuracy without {copies['images']:,} near-copies of training images"
        rows.append(_with_interval(apart, copies["without"]["accuracy"], copies["without"]["interval"]))
    if "top5" in document:
        rows.append(_with_interval("top-5 accuracy", document["top5"], document["top5_interval"]))
    if "balanced_accuracy" in document:
        rows.append(["balanced accuracy", _percent(document["balanced_accuracy"]), ""])
        rows.append(["macro F1", _percent(document["macro_f1"]), ""])
    if "loss" in document:
        rows.append(["loss", f"{document['loss']:.4f}", ""])
    if "calibration" in document:
        rows.append(["calibration error", _percent(document["calibration"]["error"]), ""])
    yield {
        "id": "accuracy",
        "title": "How good it is",
        "caption": f"On {document['images']:,} images of {document['data']} ({document['split']}); intervals of 95 %.",
        "columns": ["", "value", "interval"],
        "rows": rows,
    }
    if largest := (document.get("confusion") or {}).get("largest"):
        yield {
            "id": "confusions",
            "sortable": True,
            "title": "Its most frequent mistakes",
            "caption": "Classes that it takes for others.",
            "columns": ["class", "taken for", "images"],
            "rows": [[str(row["class"]), str(row["answer"]), str(row["images"])] for row in largest[:MOST]],
        }
    known = [(number, row) for number, row in enumerate(document["classes"], start=1) if row["images"]]
    yield {
        "id": "classes",
        "sortable": True,
        "title": "Class by class",
        "caption": "Accuracy on the images of a class, the share of the answers naming it that are right (precision), "
        "and what it is mistaken for most; the weakest first. A column's head sorts by it.",
        "columns": ["class", "no.", "images", "accuracy", "precision", "mistaken for"],
        "rows": [
            [
                row["name"],
                str(number),
                str(row["images"]),
                _percent(row["accuracy"]),
                "" if row.get("precision") is None else _percent(row["precision"]),
                row.get("mistaken_for") or "",
            ]
            for number, row in sorted(known, key=lambda each: each[1]["accuracy"])
        ],
    }


def _with_interval(what: str, value: float, interval: Sequence[float]) -> list[str]:
    return [what, _percent(value), f"{_percent(interval[0])} to {_percent(interval[1])}"]


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
