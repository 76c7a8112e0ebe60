"""Line numbers of links to code: `python docs/tools/code_links.py` writes them anew.

A link to code is a line of a file, or a part of one, as it stands there: [`text`](../src/FILE#L12). Where the text is
in several lines, the number says which; it stays with the nearest one.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

DOCS = Path(__file__).parents[1]
LINK = re.compile(r"\[`(?P<text>[^`]+)`\]\((?P<path>(?:\.\./)+(?:src|tests|benchmarks)/[^)#]+)#L(?P<line>\d+)\)")


def pages() -> Iterator[Path]:
    """List the pages."""
    yield from sorted(DOCS.rglob("*.md"))


@cache
def lines_of(path: Path) -> tuple[str, ...]:
    """Read a file's lines."""
    return tuple(path.read_text().splitlines())


def places(page: Path, link: re.Match[str]) -> list[int]:
    """Find the lines that hold a link's text, the nearest to its number first."""
    path = (page.parent / link["path"]).resolve()
    found = [number for number, line in enumerate(lines_of(path), 1) if link["text"] in line] if path.exists() else []
    return sorted(found, key=lambda number: abs(number - int(link["line"])))


def renumbered(page: Path) -> str:
    """Give a page's text with the numbers of its lines as they are now; a text that is nowhere is left as it is."""

    def change(link: re.Match[str]) -> str:
        found = places(page, link)
        return f"[`{link['text']}`]({link['path']}#L{found[0] if found else link['line']})"

    return LINK.sub(change, page.read_text())


def lost(page: Path) -> list[str]:
    """List the links whose text is in no line of their file."""
    return [link[0] for link in LINK.finditer(page.read_text()) if not places(page, link)]


def main() -> str | None:
    """Write every page anew; say what is lost."""
    missing = []
    for page in pages():
        text = renumbered(page)
        if text != page.read_text():
            page.write_text(text)
        missing += [f"{page.relative_to(DOCS)}: {link}" for link in lost(page)]
    return "\n".join(["no such line:", *missing]) if missing else None


if __name__ == "__main__":
    sys.exit(main())
