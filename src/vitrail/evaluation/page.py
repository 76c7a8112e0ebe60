"""An evaluation as a page shows it: how good, what is taken for what, how sure, class by class."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.evaluation.results import published_rows, short_names
from vitrail.figures import measured as figures
from vitrail.figures.studies import Panel, Series, draw_panels
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

    if "corruptions" in document:
        yield from _corrupted_drawings(document["corruptions"])


def _corrupted_drawings(document: Mapping[str, Any]) -> Iterator[Drawing]:
    models, severities = document["models"], document["severities"]
    names = ["clean", *(_spaced(name) for name in models[0]["corruptions"])]
    dots, errors, calibrations = list[Series](), list[Series](), list[Series]()
    for name, model in zip(short_names(document), models, strict=True):
        found = [part["severities"] for part in model["corruptions"].values()]
        levels = [[model["clean"]], *([part[place] for part in found] for place in range(len(severities)))]
        every = [[100 * each["error"] for each in part] for part in ([model["clean"]], *found)]
        means, least, most = [sum(part) / len(part) for part in every], [*map(min, every)], [*map(max, every)]
        dots.append(Series(name=name, x=[*range(len(names))], y=means, low=least, high=most))
        for lines, word in ((errors, "error"), (calibrations, "calibration")):
            lines.append(Series(name=name, x=[0, *severities], y=[_mean_percent(level, word) for level in levels]))
    some = Panel(title="", x_label="wrong answers, %", y_label="", series=dots, categories=names)
    yield Drawing(
        "corruptions",
        "What it does not see through",
        f"Wrong answers by corruption: the mean over severities {', '.join(map(str, severities))}, and the lines from "
        "the least to the most.",
        lambda theme: draw_panels([some], theme),
    )
    over = [
        Panel(title="", x_label="severity (0: clean)", y_label=label, series=series)
        for label, series in (("wrong answers, %", errors), ("calibration error, %", calibrations))
    ]
    yield Drawing(
        "severities",
        "How far it falls",
        "Wrong answers, and calibration error, by severity: means over the corruptions.",
        lambda theme: draw_panels(over, theme),
    )


def _mean_percent(points: Sequence[Mapping[str, Any]], word: str) -> float:
    known = [100 * point[word] for point in points if point[word] is not None]
    return sum(known) / len(known) if known else float("nan")


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
    if "corruptions" in document:
        yield _corrupted_table(document["corruptions"])
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


def _corrupted_table(document: Mapping[str, Any]) -> dict[str, Any]:
    models = document["models"]
    rows = [["clean", *_both([model["clean"] for model in models])]]
    for name in models[0]["corruptions"]:
        rows.append([_spaced(name), *_both([model["corruptions"][name] for model in models])])
    means = [{"error": model["mean_error"], "calibration": model["mean_calibration"]} for model in models]
    rows.append(["mean of the corruptions", *_both(means)])
    for said, values in published_rows(document):
        rows.append([said, *(cell for value in values for cell in (_percent(value), ""))])
    heads = [word for name in short_names(document) for word in (f"wrong, {name}", "ECE")]
    return {
        "id": "corruptions",
        "title": "Under the corruptions of ImageNet-C",
        "caption": f"Means over severities {', '.join(map(str, document['severities']))} of the share of wrong answers "
        "and of the expected calibration error (ECE); evaluation.json has each.",
        "columns": ["", *heads],
        "rows": rows,
    }


def _both(points: Sequence[Mapping[str, Any]]) -> list[str]:
    return [_percent(point[word]) for point in points for word in ("error", "calibration")]


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _with_interval(what: str, value: float, interval: Sequence[float]) -> list[str]:
    return [what, _percent(value), f"{_percent(interval[0])} to {_percent(interval[1])}"]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"
