"""An evaluation as the tables of a page."""

from collections.abc import Mapping
from typing import Any

MOST = 30  # classes, and confusions, of a page; the file has all


def tables_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give the headline, the classes, the weakest first, and what is mistaken for what."""
    made = [_headline(document), _classes(document)]
    largest = (document.get("confusion") or {}).get("largest") or []
    if largest:
        made.append(
            {
                "id": "confusions",
                "title": "What it takes for what",
                "caption": "The most frequent mistakes.",
                "columns": ["class", "taken for", "images"],
                "rows": [[str(row["class"]), str(row["answer"]), str(row["images"])] for row in largest[:MOST]],
            }
        )
    return made


def _headline(document: Mapping[str, Any]) -> dict[str, Any]:
    low, high = document["interval"]
    rows = [["accuracy", _percent(document["accuracy"]), f"{_percent(low)} to {_percent(high)}"]]
    if "top5" in document:
        low, high = document["top5_interval"]
        rows.append(["among the first five", _percent(document["top5"]), f"{_percent(low)} to {_percent(high)}"])
    if "calibration" in document:
        rows.append(["calibration error", _percent(document["calibration"]["error"]), ""])
    return {
        "id": "accuracy",
        "title": "How good it is",
        "caption": f"On {document['images']:,} images of {document['data']} ({document['split']}); intervals of 95 %.",
        "columns": ["", "value", "interval"],
        "rows": rows,
    }


def _classes(document: Mapping[str, Any]) -> dict[str, Any]:
    known = [row for row in document["classes"] if row["images"]]
    weakest = sorted(known, key=lambda row: row["accuracy"])[:MOST]
    return {
        "id": "classes",
        "title": "Its weakest classes" if len(known) > MOST else "Class by class",
        "caption": "Accuracy on the images of a class, and what they are mistaken for most.",
        "columns": ["class", "images", "accuracy", "mistaken for"],
        "rows": [
            [row["name"], str(row["images"]), _percent(row["accuracy"]), row.get("mistaken_for") or ""]
            for row in weakest
        ],
    }


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
