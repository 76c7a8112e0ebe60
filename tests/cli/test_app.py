"""The program's frame: help, version, errors, and the demo's story."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

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
    ("arguments", "message"),
    [
        (["dmo"], "Did you mean 'demo'?"),
        (["demo", "--sed", "1"], "--sed"),
        (["evaluate", "run", "photos", "--splt", "test"], "No such option: --splt"),  # whose --set takes few fields
        ([], "Usage"),
    ],
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


def test_a_bug_shows_itself_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        raising(ZeroDivisionError("a bug"), monkeypatch)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ZeroDivisionError("a\nbug \x1b[2J"),
            ["ZeroDivisionError: a bug \\x1b[2J. That is a bug in Vitrail", "tracker"],
        ),
        (RecursionError("too deep"), ["RecursionError: too deep", "That is a bug in Vitrail"]),
        (MemoryError(), ["failed with MemoryError. More memory is needed than there is"]),
        (OSError(28, "No space left on device"), ["OSError: [Errno 28] No space left on device"]),
        (KeyError("x" * 100_000), ["KeyError: 'xxx", "more signs"]),
    ],
)
def test_whatever_fails_is_one_line_with_the_way_out(
    error: Exception, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VITRAIL_TRACEBACK", raising=False)
    assert raising(error, monkeypatch) == 70
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert shown.err.startswith("error: vitrail fail failed with ")
    assert all(word in shown.err for word in words), shown.err
    assert "run it again with VITRAIL_TRACEBACK=1 set" in shown.err


def test_a_bug_names_the_command_of_a_group(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(frame, "make_app", lambda: 1 / 0)
    assert main(["data", "check", "photos"]) == 70
    assert "vitrail data check failed with ZeroDivisionError" in capsys.readouterr().err


def test_a_pipe_that_nobody_reads_ends_quietly() -> None:
    code = "import sys; from vitrail.cli import main; sys.exit(main(['plan', 'ViT-Ti/16']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert (child.stderr.read(), child.wait()) == (b"", 141)


def test_a_terminal_without_the_signs_is_shown_their_numbers() -> None:
    code = "import sys; from vitrail.cli import main; sys.exit(main(['plan', 'caf\u00e9-\u732b']))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=False)
    assert shown.returncode == 1
    assert b"caf\\xe9-\\u732b" in shown.stderr


def test_names_are_no_markup_and_drive_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "[/red]\x1b[2J.npz"]) == 1
    assert "there is no file [/red]\\x1b[2J.npz" in capsys.readouterr().err


def test_commands_print_through_one_function() -> None:
    """What a command prints is foreign in part: `say` alone makes it harmless."""
    sources = {path.name: path.read_text() for path in Path(frame.__file__).parent.glob("*.py")}
    assert {name: text.count("typer.echo(") for name, text in sources.items() if "typer.echo(" in text} == {
        "render.py": 1,
        "predict.py": 1,  # bytes of CSV, for a program
    }
    assert not [name for name, text in sources.items() if re.search(r"\bprint\(", text.replace(").print(", ""))]


@pytest.mark.slow
def test_the_demo_tells_the_story_of_the_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--shapes"]) == 0
    shown = capsys.readouterr().out
    for words in ("4 x 192", "4 patches of 192 values", "5 x 192", "196 x 768", "197 x 768", "12 heads of 64"):
        assert words in shown
    assert "2304 for query, key and value" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.slow
def test_the_demo_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--shapes", "--json"]) == 0
    example, paper = json.loads(capsys.readouterr().out)
    steps = {step["what"]: step["shape"] for step in paper["steps"]}
    assert example["model"] == "ViT-Ti/8"
    assert steps["patches"] == [1, 196, 768]
    assert steps["tokens"] == [1, 197, 768]
    assert steps["query, key, value"] == [1, 197, 2304]
    assert steps["attention weights"] == [1, 12, 197, 197]


@pytest.mark.slow
def test_ctrl_c_while_a_finished_program_ends_changes_nothing() -> None:
    code = (
        "import atexit, os, signal, sys; atexit.register(os.kill, os.getpid(), signal.SIGINT); "
        "from vitrail.cli import main; sys.exit(main(['--version']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
