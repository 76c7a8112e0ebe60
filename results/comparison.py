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
    "logits": "the authors' weights (`.npz`): largest difference from the authors' logits",
    "positions": "their positions for 384 pixels: largest difference from the authors'",
    "lines": "lines of its own code that an image passes through",
    "forward": "ViT-B/16 on one CPU core, images a second (Vitrail as `predict` runs it)",
    "loading": "a file of ViT-B/16: seconds to load, memory",
    "closed": "{}, once converted; it does not open `.npz`",
    "missing": "not measured",
}
KOREAN = {
    "logits": "저자들의 가중치(`.npz`): 저자들의 로짓과의 최대 차이",
    "positions": "그 가중치의 384 픽셀용 위치: 저자들의 것과의 최대 차이",
    "lines": "이미지 한 장을 처리할 때 실행되는 자체 코드의 줄 수",
    "forward": "CPU 코어 하나에서 ViT-B/16, 초당 이미지 수(Vitrail은 `predict`가 실행하는 방식)",
    "loading": "ViT-B/16 파일: 여는 시간(초)과 메모리",
    "closed": "변환한 뒤 {}, `.npz`는 열지 못함",
    "missing": "측정하지 않음",
}
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
        [words["forward"], *(speeds.get(library, words["missing"]) for library in LIBRARIES)],
        [words["loading"], *(load(files.get(library)) or words["missing"] for library in LIBRARIES)],
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
