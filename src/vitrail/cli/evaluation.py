"""How an evaluation looks to people: a headline, then where the model errs, in 80 columns."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from vitrail.cli.render import harmless, plain_table

ALL = 20  # classes that are all shown; of more, the worst
WORST = 10
CONFUSIONS = 5
NAMED = 3  # images that only one model gets right


def show_evaluation(document: Mapping[str, Any], out: str | None) -> None:
    """Print what was found."""
    console = Console(highlight=False)
    for line in (*_headline(document), *_notes(document), *_comparison(document.get("against"))):
        console.print(line, markup=False)
    _show_classes(console, document["classes"])
    if "confusion" in document:
        lines = document["confusion"]["largest"][:CONFUSIONS]
        _show(console, "mistaken most often", ("class", "answer", "images"), 1, lines)
    worst = document["worst"]
    if worst["images"]:
        title = f"surest of {worst['wrong']:,} wrong answers"
        shown = [{**image, "confidence": f"{image['confidence']:.1%}"} for image in worst["images"]]
        _show(console, title, ("name", "class", "answer", "confidence"), 1, shown)
    if out is not None:
        console.print(f"evaluation.json and predictions.csv are in {harmless(out)}", markup=False, soft_wrap=True)


def _headline(document: Mapping[str, Any]) -> list[str]:
    lines = [_accuracy("accuracy", document, document["split"])]
    if "top5" in document:
        lines.append(f"among the first five {document['top5']:.2%}{_interval(document['top5_interval'])}")
    if document["labels"] is not None:
        lines[0] += f", by {harmless(document['file'])}"
    if "by_the_datas_labels" in document:
        lines.append(_accuracy("by the data's own labels", document["by_the_datas_labels"], document["split"]))
    if "loss" in document:
        lines.append(f"loss {document['loss']:.4f}")
    if "calibration" in document:
        found = document["calibration"]
        full = [part for part in found["bins"] if part["images"]]
        count = sum(part["images"] for part in full)
        sure, right = (sum(part[what] * part["images"] for part in full) / count for what in ("confidence", "accuracy"))
        words = ", surer than it is right" if sure > right else ", less sure than it is right"
        words = "" if abs(sure - right) < 0.0005 else words
        lines.append(f"calibration error {found['error']:.2%}; mean confidence {sure:.2%}{words}")
    return lines


def _accuracy(what: str, found: Mapping[str, Any], split: str) -> str:
    return f"{what} {found['accuracy']:.2%} of {found['images']:,} images ({split}){_interval(found['interval'])}"


def _interval(interval: Sequence[float]) -> str:
    return f", 95% interval {interval[0]:.2%} to {interval[1]:.2%}"


def _notes(document: Mapping[str, Any]) -> list[str]:
    lines = []
    if document["not_counted"]:
        why = {None: "have no label", "labels": "have no label there", "mapping": "are of classes without a mapping"}
        lines.append(f"{document['not_counted']:,} images {why[document['labels']]} and do not count")
    if document["no_answer"]:
        lines.append(f"{document['no_answer']:,} images have no answer, as the logits are NaN: they count as wrong")
    if document["left_out"]:
        lines.append(f"{document['left_out']:,} images could not be decoded, such as")
        lines += [f"  {harmless(skip['name'])}: {harmless(skip['reason'])}" for skip in document["skipped"][:NAMED]]
    return lines


def _comparison(found: Mapping[str, Any] | None) -> list[str]:
    """Say which of two models is better, and how sure that is."""
    if found is None:
        return []
    apart = found["interval"][0] > 0 or found["interval"][1] < 0
    this, other = (found[name] for name in ("only_this", "only_other"))
    low, high = (100 * end for end in found["interval"])
    lines = [
        f"against {harmless(found['other'])}: {found['accuracy']:.2%} and {found['other_accuracy']:.2%}",
        f"  difference {100 * found['difference']:+.2f} points, 95% interval {low:+.2f} to {high:+.2f}; "
        f"McNemar's p {found['p']:.2g}",
        f"  right: both {found['both_right']:,}, only this {len(this):,}, only the other {len(other):,}, "
        f"neither {found['both_wrong']:,}",
    ]
    if not apart:
        lines.append("  these images do not tell the two apart")
    for words, names in (("only this", this), ("only the other", other)):
        if names:
            lines.append(f"  {words}: {', '.join(map(harmless, names[:NAMED]))}{' ...' if len(names) > NAMED else ''}")
    return lines


def _show_classes(console: Console, classes: Sequence[Mapping[str, Any]]) -> None:
    known = [line for line in classes if line["images"]]
    if len(known) < 2:
        return
    shown, title = known, "by class"
    if len(known) > ALL:
        shown, title = sorted(known, key=lambda line: line["accuracy"])[:WORST], f"the {WORST} worst of {len(known):,}"
    columns = [("name", "class"), ("images", "images"), ("accuracy", "accuracy")]
    if "precision" in known[0]:
        columns += [("precision", "precision"), ("mistaken_for", "mistaken for")]
    table = plain_table(*(head for _, head in columns), title=title)
    for column in table.columns[1:4]:
        column.justify = "right"
    for line in shown:
        cells = {name: line[name] for name, _ in columns}
        for name in cells.keys() & {"accuracy", "precision"}:
            cells[name] = "" if cells[name] is None else f"{cells[name]:.1%}"
        if cells.get("mistaken_for") is not None:
            cells["mistaken_for"] = f"{cells['mistaken_for']} ({line['mistaken']:,})"
        table.add_row(*(_cell(value) for value in cells.values()))
    console.print(table)


def _show(
    console: Console, title: str, heads: tuple[str, ...], numbers: int, lines: Sequence[Mapping[str, Any]]
) -> None:
    if not lines:
        return
    table = plain_table(*heads, title=title, numbers=numbers)
    table.columns[0].overflow = "fold"
    for line in lines:
        table.add_row(*(_cell(line[head]) for head in heads))
    console.print(table)


def _cell(value: object) -> str:
    return escape(harmless(f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)))
