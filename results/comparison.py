"""Write the table of README.md and docs/ko/README.md from kept files: `python results/comparison.py`. A test compares.

What is kept is what `python benchmarks/comparison.py --out results/comparison.json` and `vitrail bench` measured.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIBRARIES = {
    "vitrail": "Vitrail",
    "timm": "timm",
    "transformers": "transformers",
    "big_vision": "big_vision",
    "vit_jax": "vision_transformer",
}
ENGLISH = {
    "logits": "logits of an `.npz` as the authors', off by",
    "positions": "its positions resampled to 384 pixels, off by",
    "lines": "lines of code for an image",
    "forward": "ViT-B/16, images a second",
    "loading": "ViT-B/16, to load",
    "closed": "{}, converted",
}
KOREAN = {
    "logits": "저자들 형식의 `.npz`, 로짓의 차이",
    "positions": "384 픽셀에 맞추어 보간한 위치의 차이",
    "lines": "이미지 한 장에 실행되는 코드 줄 수",
    "forward": "ViT-B/16, 초당 이미지 수",
    "loading": "ViT-B/16, 여는 데 드는 시간과 메모리",
    "closed": "변환 후 {}",
}
MISSING = ""  # not measured
PAGES = {"README.md": ENGLISH, "docs/ko/README.md": KOREAN}
PLACE = re.compile(r"(?<=<!-- comparison -->\n).*?(?=<!-- end -->)", flags=re.DOTALL)


def table(words: dict[str, str]) -> str:
    """Write the table in a language."""
    columns = json.loads((ROOT / "results/comparison.json").read_text())["columns"]
    bench = json.loads((ROOT / "results/bench/cpu/bench.json").read_text())["rows"]
    ways = {row["name"]: {way["name"]: way for way in row["ways"]} for row in bench}
    forward, loading = ways["forward-B16"], ways["loading-ViT-B16"]
    speeds = {library: f"{forward[title]['median']:.2f}" for library, title in LIBRARIES.items() if title in forward}
    files = {"vitrail": loading["Vitrail, the same file"], "timm": loading["timm"]}
    rows = [
        [words["logits"], *(said(columns, library, words) for library in LIBRARIES)],
        [words["positions"], *(number(columns[library]["positions"]) for library in LIBRARIES)],
        [words["lines"], *(str(columns[library]["lines"]) for library in LIBRARIES)],
        [words["forward"], *(speeds.get(library, MISSING) for library in LIBRARIES)],
        [words["loading"], *(load(files.get(library)) or MISSING for library in LIBRARIES)],
    ]
    titles = [f"{title} {columns[library]['version']}".strip() for library, title in LIBRARIES.items()]
    lines = [["", *titles], ["---"] * (1 + len(titles)), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def said(columns: dict[str, Any], library: str, words: dict[str, str]) -> str:
    """Say how far the logits are."""
    found = number(columns[library]["logits"])
    return found if columns[library].get("opens", True) else words["closed"].format(found)


def number(value: float) -> str:
    """Write a difference."""
    if not value:
        return "0"
    return f"{value:.2f}" if value > 0.01 else f"{value:.1e}".replace("e-0", "e-")


def load(way: dict[str, Any] | None) -> str | None:
    """Write what loading costs."""
    return f"{way['median']:.2f} s, {way['about']['memory'] / 2**30:.2f} GiB" if way else None


def page(name: str) -> str:
    """Give a page with the table as it should be."""
    return PLACE.sub(lambda _: table(PAGES[name]), (ROOT / name).read_text())


if __name__ == "__main__":
    for name in PAGES:
        (ROOT / name).write_text(page(name))
