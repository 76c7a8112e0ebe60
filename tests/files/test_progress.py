"""What a terminal shows of a download."""

import io
import os
import shutil
import sys
import time

import pytest

from vitrail.files.progress import Progress, say


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_gets_one_line_redrawn_at_most_ten_times_a_second(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((80, 24)))
    with Progress("ViT-B_16.npz") as progress:
        progress.begin(3_000_000, 1_217_000_000)
        for _ in range(120):
            clock[0] += 1 / 45
            progress.advance(1_000_000)
    lines = terminal.getvalue().rstrip("\n").split("\r")[1:]
    assert lines[0] == "downloading ViT-B_16.npz  3.0 / 1,217 MB  0 %"
    assert lines[-1].rstrip() == "downloading ViT-B_16.npz  123 / 1,217 MB  10 %  45 MB/s"
    assert 20 <= len(lines) <= 28
    assert terminal.getvalue().count("\n") == 1


def test_an_unknown_size_and_a_narrow_terminal_do(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((30, 24)))
    with Progress("a.npz") as progress:
        progress.begin(0, None)
        clock[0] += 2
        progress.advance(90_000_000)
    assert terminal.getvalue().splitlines()[-1].split("\r")[-1] == "downloading a.npz  90 MB  45 M"[:29]


def test_a_download_that_failed_is_not_called_downloaded(capsys: pytest.CaptureFixture[str]) -> None:
    def failed() -> None:
        with Progress("a.npz") as progress:
            progress.begin(50_000_000, 90_000_000)
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        failed()
    assert capsys.readouterr().err == "downloading a.npz  90 MB, continues at 50 MB\n"


def test_a_missing_or_closed_stderr_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stderr in (None, closed):
        monkeypatch.setattr(sys, "stderr", stderr)
        say("hello")
