"""What people see of a run in a notebook: one line that is drawn again, and whole lines for what stays."""

import sys
from types import ModuleType

import pytest

from vitrail.runtime.reporter import reporting


def shown(text: str) -> list[str]:
    """Give the lines of a terminal on which a carriage return goes back to the first column."""
    lines = []
    for line in text.split("\n"):
        cells: list[str] = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        lines.append("".join(cells).rstrip())
    return lines


def test_a_live_line_leaves_nothing_of_itself_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = ModuleType("IPython")
    vars(notebook)["get_ipython"] = type("ZMQInteractiveShell", (), {})
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    with reporting() as report:
        report.progress("choosing images to keep some back by content", 64, 64)
        report.note("float32 on cpu")
        report.progress("reading", 3, 3)
        report.note("done")
        report.progress("last", 1, 1)
    assert shown(capsys.readouterr().out) == ["float32 on cpu", "done", "last: 1 of 1", ""]
