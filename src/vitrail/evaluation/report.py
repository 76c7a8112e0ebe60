"""From answers to what is said of them: how good, how sure, where it errs, and whether another model is better."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.source import Source
from vitrail.evaluation.answers import Answers, Given, Score, score, score_given
from vitrail.evaluation.results import Result
from vitrail.ops.metrics import calibration, class_counts, compare, confusion_matrix, wilson

WHOLE = 1000  # classes up to which the confusion matrix is given whole
LARGEST = 100  # confusions that are named
COLUMNS = ("name", "label", "answer", "confidence", "probability", "right")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that was asked, and what it answered to a source."""

    title: str
    found: Answers
    source: Source
    class_names: Sequence[str] | None  # the model's
    labeled: bool  # whether the data's labels are the model's classes
    given: Given | None = None

    @property
    def score(self) -> Score:
        """What counts and is correct: by the labels of a file where there is one, else by the data's."""
        return score(self.found) if self.given is None else score_given(self.found, self.given)

    def name(self, row: int) -> str:
        """Name the image of a row."""
        return self.source.name(int(self.found.samples[row]))

    def class_name(self, number: int) -> str | None:
        """Name a class of the model; None for no answer."""
        if number < 0:
            return None
        return str(number) if self.class_names is None else self.class_names[number]

    def wanted(self, row: int) -> str | None:
        """Name what would be correct for a row."""
        if self.given is not None:
            allowed = self.given.allowed[int(self.found.samples[row])]
            return "; ".join(str(self.class_name(number)) for number in sorted(allowed)) or None
        label = int(self.found.labels[row])
        return self.source.class_names[label] if label >= 0 else None


def report(
    subject: Subject,
    *,
    worst: int = 10,
    other: Subject | None = None,
    copies: tuple[NDArray[np.bool_], int] | None = None,
) -> dict[str, Any]:
    """Say all that is known of a subject's answers, and how another's compare.

    `copies` says which samples have a copy among the training images, and how many those are.
    """
    found, scored = subject.found, subject.score
    document: dict[str, Any] = {**headline(scored), "labels": None if subject.given is None else subject.given.kind}
    if subject.given is not None:
        document["file"] = subject.given.file
        if subject.labeled:
            document["by_the_datas_labels"] = headline(score(found))
    if copies is not None:
        document["near_copies"] = _apart(subject, *copies)
    known = scored.counted & np.isfinite(found.losses)
    if known.any():
        document["loss"] = float(found.losses[known].mean(dtype=np.float64))
    sure = scored.counted & found.has_answer
    if sure.any():
        document["calibration"] = asdict(calibration(found.confidence[sure], scored.correct[sure]))
    document |= {
        "not_counted": int((~scored.counted).sum()),
        "no_answer": int((scored.counted & ~found.has_answer).sum()),
        "left_out": len(found.skipped),
        "skipped": [{"name": skip.name, "reason": skip.reason} for skip in found.skipped],
        "classes": _by_class(subject, scored),
        "worst": _worst(subject, scored, worst),
    }
    if subject.labeled and subject.given is None:
        document |= _evenly(subject)
        document["confusion"] = _confusion(subject)
    if other is not None:
        document["against"] = _against(subject, other)
    return document


def _evenly(subject: Subject) -> dict[str, Any]:
    """Give what counts every class alike, however many images it has."""
    counts = class_counts(subject.found.labels, subject.found.answer, subject.found.count)
    return {"balanced_accuracy": counts.balanced_accuracy, "macro_f1": counts.macro_f1}


def headline(scored: Score) -> dict[str, Any]:
    """Give accuracy, and top-5 accuracy where there are more classes, each with its interval."""
    images, correct = int(scored.counted.sum()), int((scored.correct & scored.counted).sum())
    said: dict[str, Any] = {"accuracy": correct / max(images, 1), "interval": wilson(correct, images), "images": images}
    if scored.top5 is not None:
        top5 = int((scored.top5 & scored.counted).sum())
        said |= {"top5": top5 / max(images, 1), "top5_interval": wilson(top5, images)}
    return said


def _apart(subject: Subject, copied: NDArray[np.bool_], trained_on: int) -> dict[str, Any]:
    """Count the images that have a copy among the training images; give the accuracy of them alone, and without."""
    scored, copies = subject.score, copied[subject.found.samples]
    alone, without = (replace(scored, counted=scored.counted & some) for some in (copies, ~copies))
    names = [subject.name(row) for row in np.flatnonzero(alone.counted).tolist()]
    said = {"images": len(names), "training_images": trained_on, "names": names}
    return said | {"copies": headline(alone), "without": headline(without)}


def results(document: Mapping[str, Any], *, run: str, data: str, setting: Mapping[str, Any]) -> list[Result]:
    """Give the rows of a report for pages that collect them."""
    values = {"accuracy": document["accuracy"], "top5": document.get("top5"), "loss": document.get("loss")}
    values |= {name: document.get(name) for name in ("balanced_accuracy", "macro_f1")}
    values["ece"] = document["calibration"]["error"] if "calibration" in document else None
    intervals = {"accuracy": document["interval"], "top5": document.get("top5_interval")}
    measured: Any = {"task": "evaluate", "model": run, "data": data, "setting": setting, "images": document["images"]}
    found = [
        Result(**measured, metric=metric, value=value, interval=intervals.get(metric))
        for metric, value in values.items()
        if value is not None
    ]
    if apart := document.get("near_copies"):
        without = apart["without"]
        named = {**measured, "images": without["images"], "metric": "accuracy_without_near_copies"}
        found.append(Result(**named, value=without["accuracy"], interval=without["interval"]))
    return found


def predictions(subject: Subject) -> bytes:
    """Write a line for each image that could be decoded, as CSV; what does not count is neither correct nor wrong."""
    found, scored, text = subject.found, subject.score, io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for row in range(len(found.samples)):
        correct = str(bool(scored.correct[row])).lower() if scored.counted[row] else ""
        sure, true = (_number(float(value[row])) for value in (found.confidence, found.true_probability))
        answer = subject.class_name(int(found.answer[row]))
        lines.writerow([subject.name(row), subject.wanted(row) or "", answer or "", sure, true, correct])
    return text.getvalue().encode("utf-8", "surrogateescape")


def _number(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else ""


def _by_class(subject: Subject, scored: Score) -> list[dict[str, Any]]:
    """Count by class of the data; precision and mistakes where its classes are the model's."""
    found, names = subject.found, subject.source.class_names
    used = np.where(scored.counted, found.labels, -1)
    images = np.bincount(used[used >= 0], minlength=len(names))
    correct = np.bincount(used[(used >= 0) & scored.correct], minlength=len(names))
    rows = zip(names, images.tolist(), correct.tolist(), strict=True)
    lines: list[dict[str, Any]] = [
        {"name": name, "images": count, "accuracy": right / count if count else None} for name, count, right in rows
    ]
    if not subject.labeled or subject.given is not None:
        return lines
    counts = class_counts(used, found.answer, len(names))
    most = {label: (answer, count) for label, answer, count in reversed(_mistakes(found))}
    for number, line in enumerate(lines):
        answer, count = most.get(number, (-1, 0))
        precision, f1 = (
            None if np.isnan(part[number]) else float(part[number]) for part in (counts.precision, counts.f1)
        )
        line |= {"precision": precision, "f1": f1, "answered": int(counts.answered[number])}
        line |= {"mistaken_for": subject.class_name(answer), "mistaken": count}
    return lines


def _mistakes(found: Answers) -> list[tuple[int, int, int]]:
    """List wrong answers by true class, answer and images; the most frequent first."""
    wrong = (found.labels >= 0) & found.has_answer & (found.labels != found.answer)
    pairs, counts = np.unique(np.stack([found.labels[wrong], found.answer[wrong]]), axis=1, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(int(pairs[0, place]), int(pairs[1, place]), int(counts[place])) for place in order]


def _confusion(subject: Subject) -> dict[str, Any]:
    found, count = subject.found, subject.found.count
    whole = confusion_matrix(found.labels, found.answer, count).tolist() if count <= WHOLE else None
    named = [
        {"class": subject.source.class_names[label], "answer": subject.class_name(answer), "images": images}
        for label, answer, images in _mistakes(found)[:LARGEST]
    ]
    return {"matrix": whole, "largest": named}


def _worst(subject: Subject, scored: Score, most: int) -> dict[str, Any]:
    """Name the wrong answers that it is surest of."""
    found = subject.found
    wrong = np.flatnonzero(scored.counted & ~scored.correct & found.has_answer)
    order = wrong[np.argsort(-found.confidence[wrong], kind="stable")][:most]
    images = [
        {
            "name": subject.name(row),
            "sample": int(found.samples[row]),
            "class": subject.wanted(row),
            "answer": subject.class_name(int(found.answer[row])),
            "confidence": float(found.confidence[row]),
        }
        for row in order.tolist()
    ]
    return {"wrong": len(wrong), "images": images}


def _against(subject: Subject, other: Subject) -> dict[str, Any]:
    """Compare with another model on the images that both could read and that count for both."""
    _, mine, its = np.intersect1d(subject.found.samples, other.found.samples, return_indices=True)
    first, second = subject.score, other.score
    both = first.counted[mine] & second.counted[its]
    mine, its = mine[both], its[both]
    correct, others = first.correct[mine], second.correct[its]
    compared = compare(others, correct)
    groups = (correct & ~others, others & ~correct)
    only_this, only_other = ([subject.name(int(row)) for row in mine[rows]] for rows in groups)
    return {
        "other": other.title,
        "images": len(mine),
        "accuracy": float(correct.mean()) if len(mine) else 0.0,
        "other_accuracy": float(others.mean()) if len(mine) else 0.0,
        "difference": compared.difference,
        "interval": compared.interval,
        "p": compared.p,
        "both_right": compared.both,
        "only_this": only_this,
        "only_other": only_other,
        "both_wrong": compared.neither,
    }
