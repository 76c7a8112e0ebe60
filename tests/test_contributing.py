"""CONTRIBUTING.md: its worked examples fit the code as it is, and do what they say in a copy of it."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLES = {
    title: body for title, body in re.findall(r"^## (Add [^\n]*)\n(.*?)(?=^## )", TEXT, flags=re.MULTILINE | re.DOTALL)
}
NEW = re.compile(r"^New file `([^`]+)`:\n\n```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
DIFF = re.compile(r"^```diff\n--- ([^\n]+)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
TRY = re.compile(r"^```python\n((?:import|from) .*?)^```", flags=re.MULTILINE | re.DOTALL)


def changed(text: str, change: str) -> str:
    """Apply a change without line numbers: what it shows must stand in the text once."""
    lines = change.splitlines()
    before, after = ("\n".join(line[1:] for line in lines if line[:1] in (" ", sign)) for sign in "-+")
    assert text.count(before) == 1, f"not once in the file:\n{before}"
    return text.replace(before, after)


def apply(example: str, source: Path) -> None:
    """Do what an example says, below a folder that holds `src`."""
    for name, content in NEW.findall(example):
        assert not (source / name).exists()
        (source / name).write_text(content)
    for name, change in DIFF.findall(example):
        (source / name).write_text(changed((source / name).read_text(), change))


def test_there_is_an_example_of_everything_that_is_added() -> None:
    assert [title.split(" ", 2)[2] for title in EXAMPLES] == [
        "source of images",
        "augmentation",
        "layout of weights",
        "objective",
        "study",
    ]
    assert all(len(TRY.findall(example)) == 1 for example in EXAMPLES.values())
    assert sum(len(DIFF.findall(example)) for example in EXAMPLES.values()) == TEXT.count("```diff") > 8


def test_a_change_that_fits_nowhere_is_seen() -> None:
    assert changed("a\nb\nc\n", " a\n-b\n+d\n") == "a\nd\nc\n"
    with pytest.raises(AssertionError, match="not once"):
        changed("a\nb\n", " a\n-c\n")


def copy(folder: Path) -> Path:
    """Copy what the examples change, and link the rest."""
    ignored = shutil.ignore_patterns("__pycache__", "box")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    (folder / "src/vitrail/box").symlink_to(ROOT / "src/vitrail/box")
    return folder


def test_the_examples_fit_the_code_and_are_in_its_style(tmp_path: Path) -> None:
    source = copy(tmp_path)
    names = []
    for example in EXAMPLES.values():
        apply(example, source)
        names += [name for name, _ in (*NEW.findall(example), *DIFF.findall(example))]
    for name in names:
        ast.parse((source / name).read_text())
        assert len((source / name).read_text().splitlines()) <= 350
    for words in (["check"], ["format", "--check", "--diff"]):
        ruff = [Path(sys.executable).parent / "ruff", *words, "--config", ROOT / "pyproject.toml", *sorted({*names})]
        run = subprocess.run(ruff, cwd=source, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
def test_the_examples_do_what_they_say(tmp_path: Path) -> None:
    source = copy(tmp_path)
    for example in EXAMPLES.values():
        apply(example, source)
    Image.effect_noise((32, 24), 60).convert("RGB").save(tmp_path / "photo.jpg")
    for title, example in EXAMPLES.items():
        (tried,) = TRY.findall(example)
        run = subprocess.run(
            [sys.executable, "-c", f"import vitrail\nassert {str(source)!r} in vitrail.__file__\n{tried}"],
            cwd=tmp_path,
            env={
                "PYTHONPATH": str(source / "src"),
                "PATH": "/usr/bin:/bin",
                "HOME": str(tmp_path),
                "OMP_NUM_THREADS": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, f"{title}\n{run.stdout[-2000:]}{run.stderr[-3000:]}"
