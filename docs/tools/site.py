"""The documents as a site: `python docs/tools/site.py build/site`, which `make docs` runs. No network is needed.

Pages are those of docs/, README.md and LOG.md. Files that they link to (code, tests, scripts) become pages of the site,
so that a link to a line of code leads to it; the reference is made from the code. Zensical makes HTML of all that.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from notebook import as_markdown
from signatures import commands, functions

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOOLS = DOCS / "tools"
THEIRS = "https://unpkg.com/iframe-worker/shim"  # what Zensical's pages would fetch for a search from file://
# A list or a table right below a line of text: Markdown's own readers want an empty line between, GitHub's does not.
UNSPACED = re.compile(r"^(?![-|#>]|\s*\d+\. |\s|$)(.+)\n(?=- |\| )", flags=re.MULTILINE)
LINK = re.compile(r"(?P<start>\]\()(?P<path>[^)\s#:]+)?(?:#(?P<place>[^)\s]+))?\)")
FENCE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
WORDS = {
    ".py": "python",
    ".toml": "toml",
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".md": "markdown",
    "": "text",
}
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
OWN_PAGES = {
    "README.md": "index.md",
    "LOG.md": "log.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "docs/ko/README.md": "ko/index.md",
}


def sources() -> Iterator[tuple[Path, Path]]:
    """List the pages, each with its place in the site."""
    yield from ((ROOT / name, Path(place)) for name, place in OWN_PAGES.items())
    pages = [*sorted(DOCS.rglob("*.md")), *sorted(DOCS.glob("*.ipynb"))]
    yield from ((page, place_of(page)) for page in pages if str(page.relative_to(ROOT)) not in OWN_PAGES)


def place_of(path: Path) -> Path:
    """Say where a file of the project stands in the site: a page, a picture, or the page of a file."""
    inside = path.relative_to(ROOT)
    if str(inside) in OWN_PAGES:
        return Path(OWN_PAGES[str(inside)])
    if inside.parts[0] == "docs":
        return inside.relative_to("docs").with_suffix(".md" if inside.suffix == ".ipynb" else inside.suffix)
    return Path("code", *inside.parts[:-1], inside.name.replace(".", "-") + ".md")


def spaced(text: str) -> str:
    """Put an empty line before lists and tables."""
    return UNSPACED.sub("\\1\n\n", text)


class Site:
    """Pages on their way into a folder, and the files that they link to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.wanted = folder, set[Path]()

    def write(self, place: Path, text: str) -> None:
        """Write a page."""
        target = self.folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def page(self, source: Path, place: Path) -> None:
        """Put a page in, its links changed to where things stand in the site."""
        text, last, parts = source.read_text(), 0, []
        if source.suffix == ".ipynb":
            text, pictures = as_markdown(json.loads(text), source.stem)
            for name, picture in pictures.items():
                (self.folder / place.with_name(name)).write_bytes(picture)
        for fence in FENCE.finditer(text):
            parts += [spaced(self.linked(text[last : fence.start()], source, place)), fence[0]]
            last = fence.end()
        self.write(place, "".join([*parts, spaced(self.linked(text[last:], source, place))]))

    def linked(self, text: str, source: Path, place: Path) -> str:
        """Change the links of a text."""

        def change(link: re.Match[str]) -> str:
            if not link["path"]:
                return link[0]
            target = (source.parent / link["path"]).resolve()
            if not target.exists() or not target.is_relative_to(ROOT):
                return link[0]
            self.wanted.add(target)
            line = re.fullmatch(r"L(\d+)", link["place"] or "")
            anchor = f"__span-0-{line[1]}" if line else link["place"]
            up = Path(*[".."] * len(place.parts[:-1]))
            return f"{link['start']}{(up / place_of(target)).as_posix()}{f'#{anchor}' if anchor else ''})"

        return LINK.sub(change, text)

    def follow(self) -> None:
        """Put in what the pages link to: pictures as they are, other files as pages, folders as lists of theirs."""
        for target in sorted(self.wanted):
            place = place_of(target)
            if (self.folder / place).exists():
                continue
            if target.is_dir():
                names = sorted(each.name + "/" * each.is_dir() for each in target.iterdir() if each.name[0] not in "._")
                self.write(
                    place,
                    UNSEARCHED
                    + "\n".join([f"# `{target.relative_to(ROOT)}/`", "", *(f"- `{name}`" for name in names)]),
                )
            elif target.relative_to(ROOT).parts[0] == "docs":
                (self.folder / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(target, self.folder / place)
            else:
                word = WORDS.get(target.suffix, "text")
                fence = "`" * 4
                title = target.relative_to(ROOT)
                self.write(
                    place, f'{UNSEARCHED}# `{title}`\n\n{fence}{word} linenums="1"\n{target.read_text()}{fence}\n'
                )


def build(folder: Path) -> None:
    """Make the site of the documents in a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    site = Site(folder / "pages")
    for source, place in sources():
        site.page(source, place)
    site.follow()
    site.write(Path("reference/functions.md"), functions())
    site.write(Path("reference/commands.md"), commands())
    shutil.copyfile(TOOLS / "zensical.toml", folder / "zensical.toml")
    shutil.copyfile(TOOLS / "extra.css", folder / "pages/extra.css")
    subprocess.run([Path(sys.executable).parent / "zensical", "build", "--clean"], cwd=folder, check=True)
    shutil.copyfile(TOOLS / "worker.js", folder / "html/assets/worker.js")
    for page in (folder / "html").rglob("*.html"):
        up = "../" * (len(page.relative_to(folder / "html").parts) - 1)
        text = page.read_text().replace(THEIRS, f"{up}assets/worker.js")
        if page.parent.name == "ko":
            text = text.replace('lang="en"', 'lang="ko"', 1)
        page.write_text(text)


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
