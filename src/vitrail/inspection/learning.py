"""How a run learned: its log as curves by step."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.figures import Curve
from vitrail.files import read_json_lines
from vitrail.train.journal import LOG
from vitrail.train.task import folder_of

Records = Sequence[Mapping[str, Any]]
KINDS = {"train": "training", "evaluation": "validation"}
PANELS = {"loss": "loss", "accuracy": "accuracy", "learning_rate": "learning rate"}


def read_log(checkpoint: Path | None) -> Records:
    """Read the log of a run, also beside one of its checkpoints; nothing where there is none, or a line is damaged."""
    if checkpoint is None:
        return ()
    return [record for record in read_json_lines(folder_of(checkpoint) / LOG) if record.get("kind") in (*KINDS,)]


def learning_panels(records: Records) -> list[tuple[str, list[Curve]]]:
    """Give loss, accuracy and learning rate by step, of training and of validation images, where the log has them."""
    panels = ((title, list(_curves(records, what))) for what, title in PANELS.items())
    return [(title, curves) for title, curves in panels if curves]


def _curves(records: Records, what: str) -> Iterator[Curve]:
    for kind, name in KINDS.items():
        rows = {each["step"]: each[what] for each in records if each["kind"] == kind and _sound(each, what)}
        if rows:
            yield Curve(name, *zip(*sorted(rows.items()), strict=True))  # a step that was repeated counts once


def _sound(record: Mapping[str, Any], what: str) -> bool:
    values = (record.get("step"), record.get(what))
    return all(isinstance(value, int | float) and abs(value) < float("inf") for value in values)
