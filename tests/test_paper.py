"""docs/paper.md, the paper read with code: its links, numbers, commands and program."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer.main
from PIL import Image
from warm import warm

from vitrail.cli.app import make_app
from vitrail.config.recipes import TABLE_3, TABLE_4, recipe_names
from vitrail.evaluation.vtab import TASKS
from vitrail.studies.paper.data_size import TABLE_5
from vitrail.studies.paper.optimizers import TABLE_7
from vitrail.studies.paper.scaling import TABLE_6
from vitrail.studies.paper.transfer import TABLE_2
from vitrail.studies.run import STUDIES

ROOT = Path(__file__).parents[1]
PAPER = ROOT / "docs/paper.md"
TEXT = PAPER.read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
SHAPE = re.compile(r"^(\w+) = [^#\n]*# \[([\d, ]+)\]$", flags=re.MULTILINE)


@pytest.fixture(scope="module")
def code_links() -> ModuleType:
    spec = importlib.util.spec_from_file_location("code_links", ROOT / "docs/tools/code_links.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_links_to_code_are_lines_of_it_and_their_numbers_are_right(code_links: ModuleType) -> None:
    for page in code_links.pages():
        assert code_links.lost(page) == []
        assert page.read_text() == code_links.renumbered(page), "run: python docs/tools/code_links.py"
    assert len(code_links.LINK.findall(TEXT)) > 50


def test_links_to_code_follow_a_line_that_moved_and_find_one_that_is_gone(
    code_links: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("first\nsame\nother\nsame\n")
    page = tmp_path / "docs/page.md"
    page.parent.mkdir()
    page.write_text("[`same`](../src/a.py#L5) [`first`](../src/a.py#L3) [`gone`](../src/a.py#L1)")
    monkeypatch.setattr(code_links, "DOCS", page.parent)
    assert code_links.renumbered(page) == "[`same`](../src/a.py#L4) [`first`](../src/a.py#L1) [`gone`](../src/a.py#L1)"
    assert code_links.lost(page) == ["[`gone`](../src/a.py#L1)"]


def test_every_equation_table_and_figure_is_in_the_lists_at_the_top() -> None:
    rows = re.findall(r"^\| \[([\d, ]+)\]\(#", TEXT, flags=re.MULTILINE)
    named = [int(number) for row in rows for number in row.split(", ")]
    assert sorted(named) == sorted([*range(1, 9), *range(1, 10), *range(1, 15)])


def test_numbers_in_links_stand_in_the_pages_that_they_link_to() -> None:
    links = re.findall(r"\[([^]`]*\d[^]`]*)\]\(((?:\.\./)?\w+\.md)(?:#[\w-]+)?\)", TEXT)
    measured = [(text, page) for text, page in links if re.match(r"[+-]?\d", text)]
    assert len(measured) > 15
    assert [text for text, page in measured if text not in (PAPER.parent / page).read_text()] == []


def test_verdicts_in_links_are_those_of_the_claims() -> None:
    claims = (ROOT / "docs/claims.md").read_text()
    said = re.findall(r"\[(confirmed|not seen|contradicted)\]\(claims\.md(#[\w-]+)\)", TEXT)
    assert len(said) > 3
    assert [
        place for verdict, place in said if not re.search(rf"\({place}\) \|[^|]*\| \*\*{verdict}\*\*", claims)
    ] == []


def rows_of(heading: str) -> list[list[str]]:
    """Give the rows of the tables under a heading, links and commas aside."""
    section = re.split(r"^#+ ", TEXT.split(f"{heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[re.sub(r"[,`]", "", cell).strip() for cell in line.strip("|").split("|")] for line in lines]


def numbers(cells: list[str]) -> list[float]:
    return [float(cell) for cell in cells if re.fullmatch(r"[\d.e-]*\d", cell)]


def test_published_tables_are_those_of_the_code() -> None:
    columns = list(
        zip(*(numbers(row)[:4] for row in rows_of("### Table 2: against the state of the art")[1:]), strict=True)
    )
    assert columns == [tuple(map(float, values)) for values in TABLE_2.values()]
    five = zip(*(numbers(row)[:4] for row in rows_of("### C, Tables 5 and 6")[1:4]), strict=True)
    assert list(five) == list(TABLE_5.values())
    six = [(row[0], *numbers(row[1:])) for row in rows_of("### C, Tables 5 and 6")[5:]]
    assert sorted(row[:4] for row in six) == sorted(row for family in TABLE_6.values() for row in family)
    block = next(block for block in BLOCK.findall(TEXT) if "table_6" in block)
    counted = re.findall(r'\("([^"]+)", (\d+), ([\d.]+), ([\d.]+)\)', block)
    assert [(name, *map(float, each)) for name, *each in counted] == [
        (name, *rest[:1], *rest[2:]) for name, *rest in six
    ]
    means = numbers(rows_of("### D.1, Table 7: SGD or Adam")[-1])
    assert means == [value for model in TABLE_7.values() for value in model.values()]
    nine = [(row[0], row[1], tuple(numbers(row[2:]))) for row in rows_of("### D.10, Table 9: VTAB, task by task")[1:-1]]
    assert nine == [(task.title, task.group, task.paper) for task in TASKS]


def test_recipes_of_the_page_are_those_of_the_code() -> None:
    three = rows_of("### B.1, Table 3: how models are pre-trained")[1:]
    assert [numbers(row[3:4] + row[5:7]) for row in three] == [[row[3], *row[5:]] for row in TABLE_3]
    assert [row[4] for row in three] == [row[4] for row in TABLE_3]
    steps = [numbers(row[1:2]) for row in rows_of("### B.1.1, Table 4: how they are fine-tuned")[1:]]
    assert steps == [[TABLE_4[name][0]] for name in ("imagenet", "cifar10", "pets", "vtab")]


def commands() -> list[str]:
    return sorted(set(re.findall(r"`vitrail (\w[^`]*)`", TEXT)))


def test_commands_are_there_with_their_options() -> None:
    group = typer.main.get_group(make_app())
    for line in commands():
        name, *words = line.split()
        made = group.commands[name]
        if words:
            made.make_context(name, words[:])  # which refuses what it does not know
        if name == "study":
            assert words[0] in STUDIES, line
        if "--recipe" in words:
            assert words[words.index("--recipe") + 1] in recipe_names(), line


@pytest.mark.slow
def test_its_program_runs_from_top_to_bottom_and_its_shapes_are_true(tmp_path: Path) -> None:
    blocks = BLOCK.findall(TEXT)
    checked = sum(len(SHAPE.findall(block)) for block in blocks)
    assert checked > 15
    Image.effect_noise((320, 240), 60).convert("RGB").save(tmp_path / "photo.jpg")
    program = SHAPE.sub(r"\g<0>\nassert list(\g<1>.shape) == [\g<2>], \g<1>.shape", "".join(blocks))
    with warm() as python:
        run = python(program, tmp_path)
    assert run.status == 0, run.err
