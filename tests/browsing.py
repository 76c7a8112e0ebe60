"""A browser, a small document of the inspection page, and what a test does with a page in a browser."""

import base64
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
in_browser = pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium: set CHROMIUM or run make browser")


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *flags])
        yield opened
        opened.close()


# All text that is seen, with the contrast of its colour to what is behind it.
CONTRASTS = """() => {
  const light = (text) => {
    const [red, green, blue] = text.match(/[\\d.]+/g).slice(0, 3).map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return colour === "rgba(0, 0, 0, 0)" ? behind(element.parentElement) : colour;
  };
  const spoken = [...document.body.querySelectorAll("*")].filter((element) => element.checkVisibility() &&
    !["SCRIPT", "OPTION"].includes(element.tagName) &&
    [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return spoken.map((element) => {
    const [one, other] = [light(getComputedStyle(element).color), light(behind(element))];
    return [element.textContent, (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)];
  });
}"""

ROWS, COLS, LAYERS, HEADS = 3, 5, 2, 4
PATCHES = ROWS * COLS
DRAWN = np.random.default_rng(0)
MAPS = DRAWN.integers(0, 256, (LAYERS, HEADS, PATCHES, PATCHES), dtype=np.uint8)
PEAKS = DRAWN.uniform(0.05, 0.6, (LAYERS, HEADS, PATCHES)).astype("<f4")
POOLED = DRAWN.integers(0, 256, (LAYERS, HEADS, PATCHES), dtype=np.uint8)
POOLED_PEAKS = DRAWN.uniform(0.05, 0.6, (LAYERS, HEADS)).astype("<f4")
ROLLOUT = DRAWN.permutation(PATCHES).astype(np.uint8) * 17


def packed(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def drawn_picture(width: int, height: int, color: str) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), color).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def attention(**changes: Any) -> dict[str, Any]:
    kept = {"maps": packed(MAPS), "peaks": packed(PEAKS), "pooled": packed(POOLED), "rollout": packed(ROLLOUT)}
    sizes = {"rows": ROWS, "cols": COLS, "layers": LAYERS, "heads": HEADS, "all_heads": True, "class_token": True}
    return sizes | kept | {"pooled_peaks": packed(POOLED_PEAKS), "rollout_peak": 0.25} | changes


def image(name: str, **changes: Any) -> dict[str, Any]:
    top = [{"name": "dog", "probability": 0.75}, {"name": "cat", "probability": 0.125}]
    shape = {"src": drawn_picture(100, 60, "teal"), "width": 100, "height": 60}
    answer = {"label": "cat", "right": False, "top": top, "mistake": False, "attention": attention()}
    return {"name": name} | shape | answer | changes


def document(**changes: Any) -> dict[str, Any]:
    words = {"title": "vitrail-ti8", "subtitle": "ViT, 20x20 patches", "command": "vitrail inspect", "version": "0.1.0"}
    light, dark = drawn_picture(90, 40, "white"), drawn_picture(90, 40, "black")
    figure = {"id": "filters", "title": "Filters", "caption": "Of the embedding.", "alt": "filters", "src": light}
    table = {
        "id": "reach",
        "title": "Reach",
        "caption": "By layer.",
        "columns": ["layer", "what"],
        "rows": [["1", "near"]],
    }
    images = [image("cat/0.png"), image("cat/1.png", mistake=True), image("dog/2.png", label="dog", right=True)]
    figures = [figure | {"dark": dark, "width": 90, "height": 40}]
    return words | {"figures": figures, "tables": [table], "images": images} | changes


def pixels(page: Page) -> str:
    return page.evaluate("() => document.getElementById('picture').toDataURL()")


def color_at(page: Page, patch: int) -> tuple[int, ...]:
    """The red, green and blue in the middle of a patch."""
    picture = Image.open(io.BytesIO(base64.b64decode(pixels(page).partition(",")[2]))).convert("RGB")
    row, col = divmod(patch, COLS)
    shown = picture.getpixel((int((col + 0.5) * picture.width / COLS), int((row + 0.5) * picture.height / ROWS)))
    assert isinstance(shown, tuple)
    return tuple(map(int, shown))


def readout(page: Page) -> str:
    return page.inner_text("#readout")


def point_at(page: Page, patch: int, *, click: bool) -> None:
    box = page.locator("#picture").bounding_box()
    assert box is not None
    row, col = divmod(patch, COLS)
    place = (box["x"] + (col + 0.4) * box["width"] / COLS, box["y"] + (row + 0.6) * box["height"] / ROWS)
    (page.mouse.click if click else page.mouse.move)(*place)


def place(patch: int) -> str:
    return f"row {patch // COLS + 1}, column {patch % COLS + 1}"


def percent(share: float) -> str:
    value = 100 * share
    return f"{value:.{1 if value >= 10 else 2 if value >= 1 else 3}f} %" if value else "0 %"


def slide(page: Page, name: str, value: int) -> None:
    page.evaluate(
        "([name, value]) => { const slider = document.getElementById(name); slider.value = value;"
        " slider.dispatchEvent(new Event('input', {bubbles: true})); }",
        [name, value],
    )
