"""`vitrail.inspect` of models that segment or detect: what each query attends to in images, on one page."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from vitrail.data.decode import ImageError, Pixels
from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.evaluation.dense_page import STYLE, picture_uri
from vitrail.files import check_replaceable, write_bytes, writing
from vitrail.inspection.queries import QueryLook, document_of, look_at_queries
from vitrail.inspection.report import in_words
from vitrail.inspection.views import spread
from vitrail.models import Model
from vitrail.runtime.reporter import Reporter, harmless

PAGE, NUMBERS = "report.html", "inspection.json"
MORE = """
.query { display: grid; grid-auto-flow: column; grid-auto-columns: minmax(0, 1fr); gap: .4rem; margin: 0 0 .9rem; }
figcaption b { font-weight: 600; }
"""


@dataclass(frozen=True, kw_only=True)
class QueryReport:
    """What was written, and where."""

    folder: Path
    page: Path
    numbers: dict[str, Any]  # those of inspection.json
    images: int
    bytes: int  # of the page

    def document(self) -> dict[str, Any]:
        """Give the report as plain values, for JSON."""
        return {**self.numbers, "page": str(self.page), "bytes": self.bytes}

    def __str__(self) -> str:
        queries = sum(len(image["queries"]) for image in self.numbers["images"])
        said = f"{self.images} images, {queries} queries that say something: what each attends to, block by block"
        return harmless(f"{said}\npage: {self.page} ({self.bytes / 1e6:.1f} MB)")


def inspect_queries(
    title: str, model: Model, source: Source, count: int, folder: Path, command: str, report: Reporter
) -> QueryReport:
    """Write the page of some images, spread over all."""
    check_replaceable(folder, overwrite=True, ours=(PAGE, NUMBERS), mark=NUMBERS)
    names = model.card.class_names or tuple(f"class {number}" for number in range(model.config.classes or 0))
    shown: list[tuple[str, Pixels, list[QueryLook]]] = []
    chosen = spread(len(source), count).tolist()
    for done, sample in enumerate(chosen, start=1):
        try:
            shown.append((source.name(sample), *look_at_queries(model, source.read(sample), names)))
        except ImageError as error:
            report.note(f"{source.name(sample)} is left out: {error}")
            continue
        report.progress("looking at queries", done, len(chosen))
    if not shown:
        raise DataError("none of the images can be decoded. vitrail data check says why.")
    numbers = {"title": title, "model": in_words(model), "command": command}
    numbers |= {"images": [document_of(name, looks) for name, _, looks in shown]}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    page = "\n".join(_lines(title, in_words(model), shown)).encode()
    write_bytes(folder / PAGE, page)
    write_bytes(folder / NUMBERS, (json.dumps(numbers, indent=2) + "\n").encode())
    return QueryReport(folder=folder, page=folder / PAGE, numbers=numbers, images=len(shown), bytes=len(page))


def _lines(title: str, words: str, shown: Sequence[tuple[str, Pixels, list[QueryLook]]]) -> Iterator[str]:
    yield '<!doctype html><html lang="en"><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(title)}</title><style>{STYLE}{MORE}</style><h1>{escape(title)}</h1>"
    yield f"<p class=soft>{escape(words)}</p>"
    yield (
        "<p>For every image the queries that say most surely what they are: the mask or the box of each, and the "
        "patches that it attends to in each block that queries join, the mean of the heads. The share is that of the "
        "attention on patches; the rest is on other queries and on tokens before the patches.</p>"
    )
    for name, picture, looks in shown:
        yield f"<h2>{escape(name)}</h2>"
        if not looks:
            alt = f"{name}, of which no query says anything"
            yield f'<figure style="max-width: 14rem"><img alt="{escape(alt)}" src="{picture_uri(picture)}">'
            yield "<figcaption>No query says anything.</figcaption></figure>"
        for each in looks:
            said = f"<b>{escape(each.label)}</b> {each.score:.2f}, query {each.query}"
            alt = f"{each.label} in {name}"
            yield f'<div class=query><figure><img alt="{escape(alt)}" src="{picture_uri(each.answer)}">'
            yield f"<figcaption>{said}</figcaption></figure>"
            for place, (seen, part) in enumerate(zip(each.attention, each.on_patches, strict=True), start=1):
                alt = f"attention of query {each.query} in block {place}"
                yield f'<figure><img alt="{alt}" src="{picture_uri(seen)}">'
                yield f"<figcaption>block {place} of {len(each.attention)}, {part:.0%}</figcaption></figure>"
            yield "</div>"
