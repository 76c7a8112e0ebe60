"""Every page: its links lead somewhere, and the commands in it are there with their options."""

import json
import re
import runpy
import shlex
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

import vitrail
from vitrail.cli.app import SETTABLE, in_our_words, make_app
from vitrail.config import FILE_FIELDS, ViTConfig
from vitrail.config.fields import read_settings
from vitrail.config.recipe import Training
from vitrail.config.recipes import RECIPES
from vitrail.config.words import MODEL
from vitrail.errors import ConfigError

UsageError: Any = typer.BadParameter.__mro__[1]
ROOT = Path(__file__).parents[1]
OF_MODELS = {*MODEL, *FILE_FIELDS, *(field.name for field in fields(ViTConfig))}
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LOG.md", "deploy/README.md")),
    ROOT / "src/vitrail/box/vitrail-ti8/CARD.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "docs").glob("*.ipynb")),
]
FENCE = re.compile(r"^(```+)(\w*)[^\n]*\n(.*?)^\1", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[(?:`[^`]+`|[^\]]*)\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def text_of(page: Path) -> str:
    if page.suffix != ".ipynb":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@cache
def headings(page: Path) -> set[str]:
    """Give the addresses of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def dead(page: Path, address: str) -> bool:
    path, _, place = address.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return True
    return bool(place) and target.suffix in (".md", ".ipynb") and place not in headings(target)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    addresses = LINK.findall(FENCE.sub("", text_of(page)))
    assert [each for each in addresses if not each.startswith(("https://", "http://")) and dead(page, each)] == []


def test_a_dead_link_is_seen() -> None:
    page = ROOT / "docs/paper.md"
    assert not dead(page, "claims.md#the-models-are-the-papers")
    assert dead(page, "claims.md#nowhere")
    assert dead(page, "nowhere.md")
    assert dead(page, "#nowhere")


def commands(page: Path) -> Iterator[str]:
    """Give the commands of a page, in blocks and in the text, without comments; with ... they are half ones."""
    text = text_of(page)
    lines = [line for _, word, block in FENCE.findall(text) if word in ("text", "bash") for line in block.splitlines()]
    lines += re.findall(r"`(vitrail \w[^`]*)`", FENCE.sub("", text))
    for line in lines:
        bare = re.sub(r"\s#.*", "", line).strip().removeprefix(".venv/bin/")
        if bare.startswith("vitrail ") and not re.search(r"\.\.\.|[\[|&<>$]|\\$| [A-Z]( |$)", bare):
            yield bare


@cache
def group() -> Any:
    return typer.main.get_group(make_app())


def refused(line: str) -> str | None:
    """Say why a command would be refused for its words: made ready, and not run."""
    name, *words = shlex.split(line)[1:]
    command: Any = group().commands.get(name)
    if hasattr(command, "commands"):
        command = command.commands.get(words[0]) if words else None
        words = words[1:]
    if command is None:
        return f"{line}: no such command"
    if not words or "--help" in words:
        return None
    words = in_our_words(command, words)
    try:
        command.make_context(name, words)
        if name in SETTABLE:
            check_settings(words)
    except UsageError as error:
        return None if type(error).__name__ == "MissingParameter" else f"{line}: {error}"
    except ConfigError as error:
        return f"{line}: {error}"
    return None


def check_settings(words: list[str]) -> None:
    """Every setting is a field of a training, or of a model."""
    pairs = [text.partition("=") for flag, text in pairwise(words) if flag == "--set"]
    ours = {field: text for field, _, text in pairs if not field.startswith("model.") and field not in OF_MODELS}
    if "--task" in words:
        ours["task"] = words[words.index("--task") + 1]
    read_settings(Training, vars(RECIPES["small"].training), [f"{field}={text}" for field, text in ours.items()])


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "LOG.md"], ids=name_of)
def test_commands_are_there_with_their_options(page: Path) -> None:
    found = sorted({*commands(page)})
    assert [why for line in found if (why := refused(line))] == []


def test_a_command_that_is_not_there_is_seen() -> None:
    assert refused("vitrail finetune photos/ --minutes 10") is None
    assert refused("vitrail finetun photos/") is not None
    assert "--minute" in str(refused("vitrail predict vitrail-ti8 a.jpg --minutely"))
    assert len([line for page in PAGES for line in commands(page)]) > 150


def test_the_tour_names_every_function() -> None:
    named = set(re.findall(r"`(\w+)`", (ROOT / "docs/tour.md").read_text()))
    functions = {name for name in vitrail.__all__ if callable(getattr(vitrail, name)) and name[0].islower()}
    assert functions - named == {"study_costs"}  # the dry run of study, which docs/studies.md has


def test_the_reference_has_every_function_and_command() -> None:
    made = runpy.run_path(str(ROOT / "docs/tools/signatures.py"))
    functions, commands = made["functions"](), made["commands"]()
    assert re.findall(r"^## vitrail\.(\w+)$", functions, flags=re.MULTILINE) == sorted(vitrail.__all__, key=str.lower)
    assert not re.search(r" at 0x|<class|<function|typing\.", functions)
    for name, command in group().commands.items():
        for inside in getattr(command, "commands", [""]):
            assert f"## vitrail {name} {inside}".rstrip() + "\n" in commands
    assert "    learning_rate: " in functions or "**fields" in functions
