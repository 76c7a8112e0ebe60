"""The program's frame: help, version, errors, and the demo's story."""

import json
import subprocess
import sys

import pytest
import typer

from vitrail import __version__
from vitrail.cli import app as frame, main
from vitrail.errors import ConfigError


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name.split()[0] in shown for name in frame.COMMANDS)


@pytest.mark.parametrize("name", frame.COMMANDS)
def test_every_command_has_a_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    assert f"vitrail {name}" in capsys.readouterr().out


def test_version_says_torchs_too() -> None:
    for program in ([sys.executable, "-m", "vitrail"],):
        shown = subprocess.run([*program, "--version"], capture_output=True, text=True, check=True)
        assert shown.stdout.startswith(f"vitrail {__version__} (torch ")


@pytest.mark.parametrize(
    ("arguments", "message"), [(["dmo"], "Did you mean 'demo'?"), (["demo", "--sed", "1"], "--sed"), ([], "Usage")]
)
def test_wrong_usage_exits_with_2_and_says_what_is_near(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert message in shown.err + shown.out


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def command() -> None:
        """Fail."""
        raise error

    app = typer.Typer()
    app.callback()(lambda: None)
    app.command("fail")(frame._shield(command))
    monkeypatch.setattr(frame, "make_app", lambda: app)
    return main(["fail"])


def test_a_refusal_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    message = "heads must divide the width [24]; got 5 heads. " + "A long line stays one line. " * 5
    assert raising(ConfigError(message), monkeypatch) == 1
    shown = capsys.readouterr()
    assert shown.err.strip() == f"error: {message}".strip()
    assert shown.out == ""


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert raising(KeyboardInterrupt(), monkeypatch) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_bug_shows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        raising(ZeroDivisionError("a bug"), monkeypatch)


def test_the_demo_tells_the_story_of_the_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--shapes"]) == 0
    shown = capsys.readouterr().out
    for words in ("4 x 192", "4 patches of 192 values", "5 x 192", "196 x 768", "197 x 768", "12 heads of 64"):
        assert words in shown
    assert "2304 for query, key and value" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_demo_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--shapes", "--json"]) == 0
    example, paper = json.loads(capsys.readouterr().out)
    steps = {step["what"]: step["shape"] for step in paper["steps"]}
    assert example["model"] == "ViT-Ti/8"
    assert steps["patches"] == [1, 196, 768]
    assert steps["tokens"] == [1, 197, 768]
    assert steps["query, key, value"] == [1, 197, 2304]
    assert steps["attention weights"] == [1, 12, 197, 197]
