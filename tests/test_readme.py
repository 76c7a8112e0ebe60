"""The commands and snippets of README and of docs/, executed."""

import ast
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest
from PIL import Image
from warm import Python, warm

import vitrail

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# The blocks of docs/paper.md are one program, which tests/test_paper.py runs.
PAGES = [README, *(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "paper.md")]
FIRST_STEPS = (ROOT / "docs/first-steps.md").read_text()  # whose commands follow from one another

VITRAIL = ".venv/bin/vitrail "
TAKES_SECONDS = re.compile(  # and has tests of its own
    r"vitrail (finetune|transfer|vtab|inspect) |vitrail\.(inspect|fewshot)\(|vitrail\.finetune\(\"sample|"
    r"import (timm|transformers)"
)
# What timm and transformers need beside a CPU torch.
BESIDE_PEERS = "from vitrail.studies.bench.peers import mend_torchvision\nmend_torchvision()\n"


def blocks(language: str, pages: list[str] = PAGES) -> list[str]:
    found = [re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL) for page in pages]
    return [block for page in found for block in page]


def commands(pages: list[str] | None = None) -> list[str]:
    pages = [page for page in PAGES if page != FIRST_STEPS] if pages is None else pages
    return [
        line.split("#")[0].strip() for block in blocks("bash", pages) for line in block.splitlines() if line.strip()
    ]


def test_the_two_commands_come_first() -> None:
    assert commands()[:2] == ["make demo", "make test"]


@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="make has an environment of its own")
@pytest.mark.parametrize("command", [line for line in commands() if not line.startswith(VITRAIL)])
def test_a_command_runs(command: str) -> None:
    if command == "make test":  # which runs this test
        command = "make --dry-run test"
    if command == "make demo":  # which takes two minutes: tests/cli/test_training.py runs it
        command = "make --dry-run demo"
    run = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.strip()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with what commands name."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "docs").symlink_to(ROOT / "docs")
    return folder


@pytest.fixture(scope="module")
def python() -> Iterator[Python]:
    with warm() as python:
        yield python


def test_the_command_is_installed() -> None:
    run = subprocess.run([Path(sys.prefix) / "bin" / "vitrail", "bench", "--help"], capture_output=True, check=True)
    assert run.stdout.strip()


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=[pytest.mark.slow] if TAKES_SECONDS.search(line) else [])
        for line in commands()
        if line.startswith(VITRAIL)
    ],
)
def test_a_command_of_vitrail_runs(line: str, python: Python, home: Path) -> None:
    for command in line.split(" && "):
        words = shlex.split(command.removeprefix(VITRAIL))
        run = python(f"from vitrail.cli import main\nassert main({words!r}) == 0", home)
        assert run.status == 0, run.out + run.err
        assert run.out.strip()


@pytest.mark.slow
def test_the_first_steps_lead_from_one_to_the_next(python: Python, tmp_path: Path) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    lines = [line.replace("--epochs 1", "--steps 4") for line in commands([FIRST_STEPS])]
    assert lines[0] == "make demo"
    assert len(lines) > 5
    for line in lines[1:]:
        run = python(
            f"from vitrail.cli import main\nassert main({shlex.split(line.removeprefix(VITRAIL))!r}) == 0", tmp_path
        )
        assert run.status == 0, line + run.out + run.err
    assert (tmp_path / "sheet.png").exists()
    assert (tmp_path / "runs/page/report.html").exists()


@pytest.mark.parametrize("snippet", blocks("python"))
def test_what_a_snippet_calls_is_there_and_takes_its_arguments(snippet: str) -> None:
    for call in (node for node in ast.walk(ast.parse(snippet)) if isinstance(node, ast.Call)):
        if found := re.fullmatch(r"vitrail\.([\w.]+)", ast.unparse(call.func)):
            function = attrgetter(found[1])(vitrail)
            inspect.signature(function).bind(*call.args, **{word.arg: word for word in call.keywords if word.arg})


@pytest.mark.parametrize(
    "snippet",
    [pytest.param(block, marks=[pytest.mark.slow] * bool(TAKES_SECONDS.search(block))) for block in blocks("python")],
)
def test_a_snippet_runs_and_its_shapes_are_true(snippet: str, python: Python, tmp_path: Path) -> None:
    shapes = re.findall(r"^\(?(\w+),?\)? = .*#.*\[([\d, ]+)\]$", snippet, flags=re.MULTILINE)
    assert shapes or snippet not in README
    checks = "".join(f"\nassert list({name}.shape) == [{shape}], {name}.shape" for name, shape in shapes)
    Image.effect_noise((320, 240), 60).convert("RGB").save(tmp_path / "photo.jpg")
    shallow = snippet.replace('"ViT-B/16", ', '"ViT-B/16", depth=1, ')  # of the same shapes, in a tenth of the time
    before = BESIDE_PEERS if re.search("^import (timm|transformers)", snippet, flags=re.MULTILINE) else ""
    run = python(before + shallow + checks, tmp_path)
    assert run.status == 0, run.err


def test_every_file_that_it_names_is_there() -> None:
    links = re.findall(r"\]\((?!https)([^)#]*)(?:#([^)]*))?\)", README)
    assert links
    assert [(path, heading) for path, heading in links if not is_there(ROOT / path, heading)] == []


def is_there(path: Path, heading: str) -> bool:
    """Tell whether there is such a file, with such a heading where one is named."""
    if not path.exists() or not heading:
        return path.exists()
    titles = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
