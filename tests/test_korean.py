"""docs/ko says what docs says: the same headings, code, pictures, links and numbers, in the words of its glossary."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KOREAN = ROOT / "docs/ko"
GLOSSARY = (KOREAN / "glossary.md").read_text()
PAGES = [page.name for page in sorted(KOREAN.glob("*.md")) if page.name != "glossary.md"]
FENCE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[(`[^`]+`|[^\]]*)\]\(([^)]+)\)")


def both(name: str) -> tuple[str, str]:
    """Give a page's English and Korean text."""
    english = ROOT / name if name == "README.md" else ROOT / "docs" / name
    return english.read_text(), (KOREAN / name).read_text()


def english_of(path: Path) -> Path:
    """Give the English page of a Korean one, and any other path as it is."""
    if path.parent != KOREAN or path.name == "glossary.md":
        return path
    return ROOT / "README.md" if path.name == "README.md" else ROOT / "docs" / path.name


def headings(text: str) -> list[tuple[int, str]]:
    """List levels and titles."""
    return [(len(level), title) for level, title in re.findall(r"^(#+) (.+)$", FENCE.sub("", text), flags=re.MULTILINE)]


def slug(title: str) -> str:
    """Give the address of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def targets(text: str, folder: Path, name: str) -> list[tuple[str, str, str]]:
    """List pictures and links with what they lead to: a heading of the page by its number, a file by its place."""
    order = {slug(title): number for number, (_, title) in enumerate(headings(text))}
    found = []
    for picture, words, address in LINK.findall(FENCE.sub("", text)):
        path, _, place = address.partition("#")
        quoted = f" {words}" if words.startswith("`") or re.match(r"[+-]?\d", words) else ""
        if path.startswith("http"):
            found.append((picture, path, place + quoted))
        elif path:
            target = english_of((folder / path).resolve())
            if target != english_of(KOREAN / name):  # but for the other language's page
                found.append((picture, str(target), place + quoted))
        else:
            found.append((picture, "", str(order[place]) + quoted))
    return sorted(found)


def in_digits(text: str) -> str:
    """Write large numbers out: one language counts in millions, the other in tens of thousands."""
    text = re.sub(r"(\d[\d.,]*?) ?(?:million|M\b)", lambda found: whole(found[1], 1e6), text)
    text = re.sub(r"(\d[\d.,]*?) billion", lambda found: whole(found[1], 1e9), text)
    text = re.sub(r"(\d+)억 (\d[\d,]*)만", lambda found: whole(found[1], 1e8, whole(found[2], 1e4)), text)
    text = re.sub(r"(\d+)억", lambda found: whole(found[1], 1e8), text)
    return re.sub(r"(\d[\d,]*)만", lambda found: whole(found[1], 1e4), text)


def whole(digits: str, times: float, more: str = "0") -> str:
    return f"{round(float(digits.replace(',', '')) * times) + int(more)}"


def numbers(text: str) -> list[str]:
    """List the numbers in the text, code aside; 0 and 1 are words in one language and digits in the other."""
    plain = LINK.sub(lambda link: link[2], FENCE.sub("", text))
    plain = in_digits(re.sub(r"`[^`]*`", "", plain))
    return sorted(number for number in re.findall(r"\d+(?:[.,]\d+)*", plain) if number not in "01")


def test_large_numbers_are_the_same_in_both_languages() -> None:
    assert in_digits("14 million to 300 million, 2.5 billion, 86M") == "14000000 to 300000000, 2500000000, 86000000"
    assert (
        in_digits("1,400만 장에서 3억 장, 25억 개, 3억 300만")
        == "14000000 장에서 300000000 장, 2500000000 개, 303000000"
    )


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_the_headings_code_links_and_numbers_of_the_english_one(name: str) -> None:
    english, korean = both(name)
    assert [level for level, _ in headings(korean)] == [level for level, _ in headings(english)]
    assert FENCE.findall(korean) == FENCE.findall(english)
    folder = ROOT if name == "README.md" else ROOT / "docs"
    assert targets(korean, KOREAN, name) == targets(english, folder, name)
    assert numbers(korean) == numbers(english)


@pytest.mark.parametrize("name", [*PAGES, "glossary.md"])
def test_a_page_has_no_stray_han_or_kana(name: str) -> None:
    assert re.findall(r"[\u2e80-\u2fdf\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]", (KOREAN / name).read_text()) == []


def prose(link: re.Match[str]) -> str:
    """Give the words of a link; those of a measurement, and the name of a page, are quoted."""
    return "" if re.match(r"[+-]?\d|[\w/.-]+\.md$", link[2]) else link[2]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_keeps_to_the_words_of_the_glossary(name: str) -> None:
    _, korean = both(name)
    plain = re.sub(r"`[^`]*`|<!--.*?-->", "", LINK.sub(prose, FENCE.sub("", korean)))
    unwanted = [
        word.strip()
        for row in re.findall(r"^\| [a-z].*\|.*\|(.*)\|$", GLOSSARY, flags=re.MULTILINE)
        for word in row.split(",")
        if word.strip()
    ]
    assert len(unwanted) > 10
    assert [word for word in unwanted if word in plain] == []
    kept = set(re.findall(r"[A-Za-z][A-Za-z-]*", GLOSSARY.partition("## 그대로 둔 말")[2]))
    roman = {word.strip("-") for word in re.findall(r"[A-Za-z][A-Za-z-]{2,}", plain) if "ViT-" not in word}
    assert roman - kept == set()
