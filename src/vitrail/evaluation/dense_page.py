"""The page of an evaluation of pixels or objects: how good, by class, and the worst images with truth and prediction.

One file, that opens offline.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import compress
from typing import Any, NamedTuple

from vitrail.data.annotation import VOID
from vitrail.data.decode import Pixels, encode
from vitrail.data.overlays import colors_of, draw_boxes, lay_over, lay_shapes_over, scaled
from vitrail.evaluation.dense import SURE, WORDS
from vitrail.runtime.dense import DenseAnswer

LEAST = 256  # pixels of the shorter side of what is drawn over
WIDE = 640  # pixels of a picture's longer side
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1.5rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.number { font-size: 2.6rem; font-weight: 650; line-height: 1.1; } .soft { opacity: .7; }
table { border-collapse: collapse; } td, th { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); }
td:not(:first-child), th:not(:first-child) { text-align: right; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; }
.pair { display: grid; grid-template-columns: repeat(3, 1fr); gap: .6rem; margin: 0 0 1.6rem; }
figure { margin: 0; } img { width: 100%; border-radius: 6px; background: var(--soft); display: block; }
figcaption { font-size: .85rem; opacity: .8; } .row { font-weight: 600; margin: 0 0 .3rem; overflow-wrap: anywhere; }
.key { display: flex; flex-wrap: wrap; gap: .3rem 1rem; margin: .6rem 0 1.2rem; }
.key i { display: inline-block; width: .9em; height: .9em; border-radius: 3px; margin-right: .35em; }
@media (max-width: 640px) { .pair { grid-template-columns: 1fr; } }
"""


class Shown(NamedTuple):
    """An image of the page, with what is there and what was said."""

    name: str
    score: float
    image: Pixels
    truth: Pixels
    answer: Pixels


def draw_answer(
    pixels: Pixels, answer: DenseAnswer, names: Sequence[str], *, scale: float = 1.0, least: float = SURE
) -> Pixels:
    """Draw a mask, or the objects that are at least so sure, with names and scores, over an image shown larger."""
    if answer.mask is not None:
        return lay_over(pixels, answer.mask.cpu().numpy(), colors_of(names))
    assert answer.found is not None
    boxes, classes, scores = answer.found
    sure = scores >= least
    if answer.shapes is not None:
        shapes = list(compress(answer.shapes, sure))
        pixels = lay_shapes_over(pixels, shapes, classes[sure], colors_of(names))
    texts = [f"{names[number]} {score:.2f}" for number, score in zip(classes[sure], scores[sure], strict=True)]
    return draw_boxes(pixels, boxes[sure] * scale, classes[sure], colors_of(names), texts)


def overlay(pixels: Pixels, answer: DenseAnswer, names: Sequence[str], *, least: float = SURE) -> Pixels:
    """Draw an answer over its image, at its size; a small image is shown in whole steps larger, so that names fit."""
    shown = scaled(pixels, LEAST, max(*pixels.shape[:2], 2 * LEAST))
    return draw_answer(shown, answer, names, scale=shown.shape[0] / pixels.shape[0], least=least)


def page_of(title: str, document: Mapping[str, Any], shown: Sequence[Shown]) -> bytes:
    """Write the page."""
    return "\n".join(_lines(title, document, shown)).encode()


def _lines(title: str, document: Mapping[str, Any], shown: Sequence[Shown]) -> Iterator[str]:
    first, *others = [(WORDS[name], value) for name, value in document["metrics"].items()]
    yield '<!doctype html><html lang="en"><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(title)}</title><style>{STYLE}</style>"
    yield f"<h1>{escape(title)}</h1>"
    where = f"{document['images']:,} images of {document['data']} ({document['split']})"
    yield f'<p><span class="number">{first[1]:.3f}</span> {first[0]} on {escape(where)}</p>'
    yield f"<p class=soft>{', '.join(f'{name} {value:.3f}' for name, value in others)}</p>"
    yield "<h2>Class by class</h2>"
    yield from _classes(document)
    if not shown:
        return
    words = "mean intersection over union" if document["task"] == "segment" else f"F1 of boxes with scores from {SURE}"
    yield f"<h2>The worst images</h2><p class=soft>By {words} of each image, the least first.</p>"
    yield from _key([row["name"] for row in document["classes"]], void=document["task"] == "segment")
    for each in shown:
        yield f"<p class=row>{escape(each.name)} <span class=soft>{each.score:.3f}</span></p><div class=pair>"
        for word, picture in (("image", each.image), ("truth", each.truth), ("prediction", each.answer)):
            alt = f"{word} of {each.name}"
            image = f'<img alt="{escape(alt)}" src="{picture_uri(picture)}">'
            yield f"<figure>{image}<figcaption>{word}</figcaption></figure>"
        yield "</div>"


def _classes(document: Mapping[str, Any]) -> Iterator[str]:
    heads = {"iou": "IoU", "accuracy": "accuracy", "pixels": "pixels"}
    if document["task"] == "detect":
        heads = {name: WORDS[name] for name in ("ap", "ap50", "ap75", "mask_ap", "mask_ap50", "mask_ap75")}
        heads = {name: head for name, head in heads.items() if any(name in row for row in document["classes"])}
        heads["objects"] = "objects"
    yield f"<table><tr><th>class</th>{''.join(f'<th>{head}</th>' for head in heads.values())}</tr>"
    for row in document["classes"]:
        cells = [row[name] for name in heads]
        texts = ["" if cell is None else f"{cell:,}" if isinstance(cell, int) else f"{cell:.3f}" for cell in cells]
        yield f"<tr><td>{escape(row['name'])}</td>{''.join(f'<td>{text}</td>' for text in texts)}</tr>"
    yield "</table>"


def _key(names: Sequence[str], *, void: bool) -> Iterator[str]:
    colors = colors_of(names)
    yield "<div class=key>"
    for number, name in [*enumerate(names), *([(VOID, "void, in the truth: counts nowhere")] if void else [])]:
        red, green, blue = colors[number].tolist()
        bare = not (red or green or blue)
        plain = "transparent; border: 1px solid var(--line)" if bare else f"rgb({red} {green} {blue})"
        yield f'<span><i style="background: {plain}"></i>{escape(name)}</span>'
    yield "</div>"


def picture_uri(pixels: Pixels) -> str:
    """Give a picture as a page holds it, no larger than it is shown."""
    made = encode(scaled(pixels, 1, WIDE), "JPEG", 92)
    return f"data:image/jpeg;base64,{base64.b64encode(made).decode()}"
