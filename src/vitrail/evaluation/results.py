"""Measured numbers as every command gives them: rows in a JSON document, and words for a terminal."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.config import Preprocessing, decode
from vitrail.errors import CheckpointError
from vitrail.files import read_json, write_bytes, writing
from vitrail.runtime.reporter import harmless, text_table

FORMAT = "vitrail results 1"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One number: what was measured, of which model, on which data, how, and how sure it is."""

    task: str  # such as evaluate, fewshot, transfer, vtab, verify
    model: str
    data: str
    metric: str  # such as accuracy
    value: float
    setting: Mapping[str, Any] = field(default_factory=dict)  # such as shots and l2
    spread: float | None = None  # sample standard deviation over the seeds
    interval: tuple[float, float] | None = None  # of 95 %
    seeds: tuple[int, ...] = ()
    images: int | None = None  # that it was measured on


def over_seeds(values: Sequence[float]) -> tuple[float, float | None]:
    """Give the mean, and the sample standard deviation where there are several."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def document_of(command: str, results: Sequence[Result], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Give the document of a command: its rows, and whatever else it found."""
    return {"format": FORMAT, "command": command, "results": [asdict(result) for result in results], **more}


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document, whole or not at all; its folder is made."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (json.dumps(document, indent=2) + "\n").encode())


def read_results(path: Path) -> list[Result]:
    """Read the rows of a document."""
    try:
        document = read_json(path)
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}, not {FORMAT!r}")
        return [_result(row) for row in document["results"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} does not hold results: {error}. Run its command again.") from error


def _result(row: Mapping[str, Any]) -> Result:
    interval = row.get("interval")
    lists = {"interval": None if interval is None else tuple(interval), "seeds": tuple(row.get("seeds", ()))}
    return Result(**{**row, **lists})


ALL, WORST = 20, 10  # classes that are all shown as text; of more, how many of the worst
CONFUSIONS = 5
PUBLISHED = {"mce": "mCE", "relative_mce": "relative mCE"}  # means of corruptions by another model's errors
UNCALIBRATED = 0.05  # of calibration error, from which it is said what to do
NAMED = 3  # images that a line names
table_of = partial(text_table, most=80)  # columns of a terminal


def text_of(document: Mapping[str, Any]) -> str:
    """Say an evaluation for people: the headline, then where the model errs."""
    lines = [*_headline(document), *_notes(document), *_comparison(document.get("against"))]
    lines += _chosen(document.get("chosen_by_labels"))
    lines += _corrupted(document.get("corruptions"))
    for table in (_classes(document["classes"]), _confusions(document), _worst(document["worst"])):
        lines += ["", *table] if table else []
    return "\n".join(lines)


def _corrupted(document: Mapping[str, Any] | None) -> list[str]:
    if document is None:
        return []
    models, names = document["models"], short_names(document)
    columns = ["", *(word for name in names for word in (name, "calibration"))]
    parts = [("clean", [model["clean"] for model in models])]
    parts += [(name, [model["corruptions"][name] for model in models]) for name in models[0]["corruptions"]]
    rows = [(name, *(_percent(each[word]) for each in row for word in ("error", "calibration"))) for name, row in parts]
    means = [_percent(model[word]) for model in models for word in ("mean_error", "mean_calibration")]
    rows.append(("mean of the corruptions", *means))
    for said, values in published_rows(document):
        rows.append((said, *(cell for value in values for cell in (_percent(value), ""))))
    severities = ", ".join(map(str, document["severities"]))
    title = f"Corrupted images: wrong answers, and calibration error, over severities {severities}"
    return ["", *text_table(title, columns, rows)]


def short_names(document: Mapping[str, Any]) -> list[str]:
    """Name models side by side by the last parts of their paths; by all of them where these are alike."""
    names = [model["model"] for model in document["models"]]
    return parts if len({*(parts := [last_part(name) for name in names])}) == len(names) else names


def last_part(name: str) -> str:
    """Give the last part of a path."""
    return name.rstrip("/").rpartition("/")[2] or name


def published_rows(document: Mapping[str, Any]) -> Iterator[tuple[str, list[float | None]]]:
    """Give the means of the paper, by the errors of one of the models, where it is named and they are known."""
    names = {model["model"]: name for model, name in zip(document["models"], short_names(document), strict=True)}
    for word, said in PUBLISHED.items():
        values = [model.get(word) for model in document["models"]]
        if any(value is not None for value in values):
            yield f"{said}, by {names[document['against']]}", values


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def _headline(document: Mapping[str, Any]) -> Iterator[str]:
    if "chosen_by_labels" in document:
        yield "optimistic: the preprocessing was chosen by these very labels, as said below"
    by_file = f", by {harmless(document['file'])}" if document["labels"] is not None else ""
    yield _accuracy("accuracy", document, document["split"]) + by_file
    if "token_merging" in document:
        yield f"  with {document['token_merging']:g} of the patches merged on the way"
    if "keep_aspect_ratio" in document:
        yield f"  of images in their own shape, at most {document['most_patches']:,} patches each"
    if "top5" in document:
        yield f"top-5 accuracy {document['top5']:.2%}{_interval(document['top5_interval'])}"
    if "balanced_accuracy" in document:
        yield f"balanced accuracy {document['balanced_accuracy']:.2%}, macro F1 {document['macro_f1']:.2%}"
    if "by_the_datas_labels" in document:
        yield _accuracy("by the data's own labels", document["by_the_datas_labels"], document["split"])
    yield from _copies(document.get("near_copies"))
    if "loss" in document:
        yield f"loss {document['loss']:.4f}"
    if "calibration" in document:
        found = document["calibration"]
        full = [part for part in found["bins"] if part["images"]]
        count = sum(part["images"] for part in full)
        sure, right = (sum(part[what] * part["images"] for part in full) / count for what in ("confidence", "accuracy"))
        words = "" if abs(sure - right) < 0.0005 else ", overconfident" if sure > right else ", underconfident"
        at = "" if document.get("temperature", 1) == 1 else f" (temperature {document['temperature']:.4g})"
        yield f"calibration error {found['error']:.2%}{at}; mean confidence {sure:.2%}{words}"
        if found["error"] > UNCALIBRATED and not at:
            yield "  vitrail calibrate RUN DATA fits a temperature on validation images"


def _copies(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Say what is left of the accuracy without images that the model has all but seen."""
    if found is None:
        return
    among = f"a near-copy among the {found['training_images']:,} training images"
    if not found["images"]:
        yield f"  no image has {among}"
        return
    without, copies = found["without"], found["copies"]
    yield f"  without near-copies {without['accuracy']:.2%} of {without['images']:,}{_interval(without['interval'])}"
    yield f"  {copies['accuracy']:.2%} of the {found['images']:,} with {among}"


def _accuracy(what: str, found: Mapping[str, Any], split: str) -> str:
    return f"{what} {found['accuracy']:.2%} of {found['images']:,} images ({split}){_interval(found['interval'])}"


def _interval(interval: Sequence[float]) -> str:
    return f", 95% interval {interval[0]:.2%} to {interval[1]:.2%}"


def _notes(document: Mapping[str, Any]) -> Iterator[str]:
    if document["not_counted"]:
        why = {None: "have no label", "labels": "have no label there", "mapping": "are of classes without a mapping"}
        yield f"{document['not_counted']:,} images {why[document['labels']]} and do not count"
    if document["no_answer"]:
        yield f"{document['no_answer']:,} images have no answer, as the logits are NaN: they count as wrong"
    if document["left_out"]:
        yield f"{document['left_out']:,} images could not be decoded, such as"
        yield from (f"  {harmless(skip['name'])}: {harmless(skip['reason'])}" for skip in document["skipped"][:NAMED])


def _chosen(found: Mapping[str, Any] | None) -> list[str]:
    """Say which preprocessing was chosen by labels, among which, and how to say it from now on."""
    if found is None:
        return []
    best = next(each for each in found["tried"] if each["name"] == found["best"])
    how = decode(best["preprocessing"], Preprocessing)
    rows = [
        [each["name"], _share(each["accuracy"]), "taken" if each is best else None]
        for each in sorted(found["tried"], key=lambda each: -each["accuracy"])
    ]
    given = {"mean": how.mean, "deviation": how.deviation}
    words = [f"{name}={','.join(f'{value:g}' for value in values)}" for name, values in given.items()]
    words += [f"resize={how.resize}", f"crop_share={how.crop_share:g}"]
    return [
        "",
        *table_of(f"preprocessing tried on {found['images']:,} of the images", ("way", "accuracy", ""), rows),
        f"taken: {how.levels()}, {how.framing()}",
        *([f"but so few images do not tell it from: {'; '.join(found['unclear'])}"] if found["unclear"] else []),
        "It was chosen by the labels that the accuracy above is measured with, so that accuracy is optimistic.",
        f"For an honest one, give {' '.join(words)} with images that chose nothing.",
    ]


def _comparison(found: Mapping[str, Any] | None) -> Iterator[str]:
    """Say which of two models is better, and how sure that is."""
    if found is None:
        return
    this, other = (found[name] for name in ("only_this", "only_other"))
    low, high = (100 * end for end in found["interval"])
    yield f"against {harmless(found['other'])}: {found['accuracy']:.2%} and {found['other_accuracy']:.2%}"
    yield f"  difference {100 * found['difference']:+.2f} points, 95% interval {low:+.2f} to {high:+.2f}"
    unclear = "" if low > 0 or high < 0 else ": these images do not tell the two apart"
    yield f"  McNemar's p {found['p']:.2g}{unclear}"
    yield (
        f"  correct: both {found['both_right']:,}, only this {len(this):,}, only the other {len(other):,}, "
        f"neither {found['both_wrong']:,}"
    )
    for words, names in (("only this", this), ("only the other", other)):
        if names:
            yield f"  {words}: {', '.join(map(harmless, names[:NAMED]))}{' ...' if len(names) > NAMED else ''}"


def _classes(classes: Sequence[Mapping[str, Any]]) -> list[str]:
    shown, title = [line for line in classes if line["images"]], "by class"
    if len(shown) < 2:
        return []
    if len(shown) > ALL:
        title = f"the {WORST} worst of {len(shown):,} classes"
        shown = sorted(shown, key=lambda line: line["accuracy"])[:WORST]
    rows = [[line["name"], line["images"], _share(line["accuracy"])] for line in shown]
    if "precision" not in shown[0]:
        return table_of(title, ("class", "images", "accuracy"), rows)
    for row, line in zip(rows, shown, strict=True):
        mistaken = line["mistaken_for"]
        row += [_share(line["precision"]), None if mistaken is None else f"{mistaken} ({line['mistaken']:,})"]
    return table_of(title, ("class", "images", "accuracy", "precision", "mistaken for"), rows)


def _confusions(document: Mapping[str, Any]) -> list[str]:
    largest = document.get("confusion", {}).get("largest", [])[:CONFUSIONS]
    heads = ("class", "answer", "images")
    rows = [[row[head] for head in heads] for row in largest]
    return table_of("mistaken most often", heads, rows) if rows else []


def _worst(worst: Mapping[str, Any]) -> list[str]:
    rows = [[row["name"], row["class"], row["answer"], _share(row["confidence"])] for row in worst["images"]]
    title = f"most confident of {worst['wrong']:,} wrong answers"
    return table_of(title, ("name", "class", "answer", "confidence"), rows) if rows else []


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.1%}"
