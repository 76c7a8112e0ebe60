"""One HTML file that shows a model's attention, answers and figures: it opens from a disk and needs no network."""

import html
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from vitrail.errors import DataError

# Written so, the document can hold no tag that ends its script, whatever a class or a file is called.
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def render_page(document: Mapping[str, Any]) -> str:
    """Write the page of a document: template, style, scripts and data in one text."""
    template = files("vitrail.inspection") / "template"
    parts = {"title": html.escape(document["title"]), "document": _as_json(document)}

    def part(found: re.Match[str]) -> str:
        name = found[1]
        return parts[name] if name in parts else (template / name).read_text(encoding="utf-8").strip()

    # In one pass, so that nothing put in is read as a place to put something.
    return re.sub(r"\{\{([a-z.]+)\}\}", part, (template / "page.html").read_text(encoding="utf-8"))


def _as_json(document: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(dict(document), allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise DataError(
            "a page's numbers must be finite; the document has one that is not. "
            "Look for NaN in the model's weights or in the images first."
        ) from error
    for sign, escape in ESCAPES.items():
        text = text.replace(sign, escape)
    return text
