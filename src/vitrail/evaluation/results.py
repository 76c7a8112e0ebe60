"""Measured numbers as every command writes them: rows that a page can collect, in one JSON document."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.files import write_bytes, writing

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
        document = json.loads(path.read_bytes())
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}, not {FORMAT!r}")
        return [_result(row) for row in document["results"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} does not hold results: {error}. Run its command again.") from error


def _result(row: Mapping[str, Any]) -> Result:
    interval = row.get("interval")
    lists = {"interval": None if interval is None else tuple(interval), "seeds": tuple(row.get("seeds", ()))}
    return Result(**{**row, **lists})
