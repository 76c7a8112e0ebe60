"""The documents as a site: built without a network, no dead link, no request to another host, search from file://."""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from browsing import chromium, in_browser

ROOT = Path(__file__).parents[1]
PHONE = (
    "index",
    "ko/index",
    "look-inside",
    "design",
    "tour",
    "reference/commands",
    "ko/paper",
    "paper",
)  # that one last
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (Path(sys.prefix) / "bin/zensical").exists(), reason="no Zensical"),
]


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, ROOT / "docs/tools/site.py", folder]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder / "html"


class Found(HTMLParser):
    """What a page links to, what it fetches, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.fetched += [given[name] for name in ("src", "srcset") if name in given]
        if tag == "link" and given.get("rel") != "canonical":
            self.fetched.append(given.get("href", ""))


def test_no_link_is_dead_and_nothing_is_fetched_from_another_host(html: Path) -> None:
    pages = {page: Found(page.read_text()) for page in html.rglob("*.html")}
    assert len(pages) > 30
    dead, foreign = [], []
    for page, found in pages.items():
        foreign += [(page.name, address) for address in found.fetched if urlsplit(address).netloc]
        if page.name == "404.html":  # whose addresses are those of a server
            continue
        for link in [*found.links, *found.fetched]:
            path, place = urldefrag(unquote(link))
            if urlsplit(path).scheme:
                continue
            target = (page.parent / path).resolve() if path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (place and target.suffix == ".html" and place not in pages[target].places):
                dead.append((page.relative_to(html).as_posix(), link))
    assert dead == []
    assert foreign == []


@in_browser
def test_pages_open_from_a_file_and_search_finds_what_is_in_them(html: Path) -> None:
    requests, errors = [], []
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 400, "height": 800})
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        for name in PHONE:
            page.goto((html / f"{name}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 400, name
            assert page.evaluate("document.documentElement.lang") == ("ko" if name.startswith("ko/") else "en")
        page.wait_for_load_state()
        page.keyboard.press("Control+k")
        box = page.locator('input[aria-label="Search"]')  # in an open shadow root, which a locator looks into
        box.wait_for()
        box.press_sequentially("attention distance", delay=30)
        page.locator('[id$="-results"]').filter(has_text="D.7, Figure 11: attention distance").wait_for()
        assert box.input_value() == "attention distance"
        box.fill("")
        box.press_sequentially("어텐션 거리", delay=30)
        page.locator('[id$="-results"]').filter(has_text="D.7, 그림 11: 어텐션 거리").wait_for()
    assert [address for address in requests if urlsplit(address).scheme not in ("file", "data", "blob")] == []
    assert errors == []
