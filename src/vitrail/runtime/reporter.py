"""What people see of work that takes long: a bar on a terminal, a live line in a notebook, plain lines elsewhere."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rich.cells import cell_len as cell_len, set_cell_size

from vitrail.errors import harmless as harmless, one_line

PAUSE = 2.0  # seconds between plain lines of a run that goes fast
LIVE = 0.2  # seconds between two drawings of a live line
# How notes are put for who reads them: a command line speaks of flags where the library speaks of keywords.
wording: ContextVar[Callable[[str], str]] = ContextVar("wording", default=str)
# When the command began that a function answers, by time.monotonic; none where Python calls it.
began: ContextVar[float | None] = ContextVar("began", default=None)


class Reporter:
    """Takes what a function has to say while it works; this one is silent."""

    def __repr__(self) -> str:
        return "SILENT" if type(self) is Reporter else type(self).__name__

    def note(self, text: str) -> None:
        """Say something that stays."""

    def progress(self, what: str, done: int = 0, total: int | None = None) -> None:
        """Show how far some work is; the work is over where `done` is `total`."""

    def record(self, record: Mapping[str, Any]) -> None:
        """Show a record of a run's log, by its kind: begin, train, evaluation, probe, save."""

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Show that some work goes on, of which only the end is known."""
        self.progress(what)
        yield
        self.progress(what, 1, 1)


SILENT = Reporter()


@contextmanager
def reporting(*, quiet: bool = False) -> Iterator[Reporter]:
    """Give the reporter for where this program runs: a terminal, a notebook, a file or a pipe.

    It says the warnings that the library logs meanwhile too, each once.
    """
    with _reporter(quiet=quiet) as report:
        heard, logger = _Heard(report), logging.getLogger("vitrail")
        logger.addHandler(heard)
        try:
            yield report
        finally:
            logger.removeHandler(heard)


class _Heard(logging.Handler):
    """Hands warnings of the library to a reporter, in the main process of a run."""

    def __init__(self, report: Reporter) -> None:
        super().__init__(logging.WARNING)
        self.report, self.said = report, set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text not in self.said and os.environ.get("RANK", "0") == "0":
            self.said.add(text)
            self.report.note(text)


@contextmanager
def _reporter(*, quiet: bool) -> Iterator[Reporter]:
    if quiet:
        yield SILENT
    elif _in_notebook():
        reporter = _LiveLine()
        try:
            yield reporter
        finally:
            reporter.end()
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(bar_width=8), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        with Progress(*columns, TextColumn("{task.fields[words]}", markup=False), console=console) as bar:
            yield _Bar(bar)
    else:
        yield _Lines()


def _worded(text: str) -> str:
    return harmless(wording.get()(text))


def fit(text: str, width: int) -> str:
    """Give a text as one line of so many columns of a terminal: filled up, or without its middle."""
    text, half = one_line(text), (width - 3) // 2
    if cell_len(text) > width:
        text = f"{set_cell_size(text, half)}...{set_cell_size(text[::-1], half)[::-1]}"
    return set_cell_size(text, width)


def text_table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[object]], most: int | None = None
) -> list[str]:
    """Give a table as lines, with a rule under its heads; columns of numbers end at the right.

    Long cells lose their middle where `most` says how many columns of a terminal the table may take.
    """
    columns = [[one_line(_in_words(value)) for value in column] for column in zip(heads, *rows, strict=True)]
    widths = [max(map(cell_len, column)) for column in columns]
    while most is not None and sum(widths) + 2 * (len(widths) - 1) > most:
        widths[widths.index(max(widths))] -= 1
    shown = []
    for column, width in zip(columns, widths, strict=True):
        cells = [fit(text, width) for text in column]
        numbers = all(not text or text[0].isdigit() for text in column[1:])
        shown.append([text.rstrip().rjust(len(text)) for text in cells] if numbers else cells)
    lines = ["  ".join(cells).rstrip() for cells in zip(*shown, strict=True)]
    return [*([title] if title else []), lines[0], "─" * (sum(widths) + 2 * (len(widths) - 1)), *lines[1:]]


def _in_words(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class _Shown(Reporter):
    """Shows how far a run is, and its evaluations as lines that stay."""

    steps = 0

    def record(self, record: Mapping[str, Any]) -> None:
        match record["kind"]:
            case "begin" | "plan":
                self.steps = record["steps"]
            case "train":
                self.step(record["step"], describe(record))
            case "evaluation" | "probe":
                self.note(describe(record))

    def step(self, step: int, words: str) -> None:
        """Show the last step with its numbers."""
        raise NotImplementedError


class _Bar(_Shown):
    """A bar that fills up, with the last numbers beside it, and lines above it for what should stay."""

    def __init__(self, bar: Any) -> None:  # noqa: ANN401
        self.bar, self.tasks = bar, dict[str, Any]()

    def note(self, text: str) -> None:
        self.bar.console.print(_worded(text), markup=False, emoji=False)

    def progress(self, what: str, done: int = 0, total: int | None = None) -> None:
        self._move(what, done, total, what)

    def record(self, record: Mapping[str, Any]) -> None:
        super().record(record)
        if record["kind"] == "begin":
            self.step(record["step"], "")

    def step(self, step: int, words: str) -> None:
        self._move("steps", step, self.steps, words)

    def _move(self, name: str, done: int, total: int | None, words: str) -> None:
        if name not in self.tasks:
            self.tasks[name] = self.bar.add_task("", total=total, words="")
        self.bar.update(self.tasks[name], completed=done, total=total, words=harmless(words))
        if done == total:
            self.bar.remove_task(self.tasks.pop(name))


class _Lines(_Shown):
    """A line for what happens, not more often than one reads."""

    def __init__(self) -> None:
        self.last, self.doing = 0.0, ""

    def note(self, text: str) -> None:
        print(_worded(text), file=sys.stderr, flush=True)  # noqa: T201

    def progress(self, what: str, done: int = 0, total: int | None = None) -> None:
        if what != self.doing:
            self.doing, self.last = what, time.monotonic()
            self.note(f"{what} ...")
        elif total and done < total and time.monotonic() - self.last > 5 * PAUSE:
            self.last = time.monotonic()
            self.note(f"{what}: {done:,} of {total:,}")

    def step(self, step: int, words: str) -> None:
        if time.monotonic() - self.last > PAUSE or step == self.steps:
            self.last = time.monotonic()
            self.note(f"step {step:,}/{self.steps:,}  {words}")


class _LiveLine(_Shown):
    """One line that is drawn again and again, and lines above it for what should stay."""

    def __init__(self) -> None:
        self.last, self.length = 0.0, 0

    def note(self, text: str) -> None:
        self._draw(_worded(text))
        print(flush=True)  # noqa: T201
        self.length = 0

    def progress(self, what: str, done: int = 0, total: int | None = None) -> None:
        self._live(f"{what}: {done:,} of {total:,}" if total else f"{what} ...", last=done == total)

    def step(self, step: int, words: str) -> None:
        self._live(f"step {step:,}/{self.steps:,}  {words}", last=step == self.steps)

    def end(self) -> None:
        """Leave the live line as it is, and go to the next one."""
        if self.length:
            print(flush=True)  # noqa: T201

    def _live(self, text: str, *, last: bool) -> None:
        if last or time.monotonic() - self.last > LIVE:
            self.last = time.monotonic()
            self._draw(harmless(text))

    def _draw(self, text: str) -> None:
        print("\r" + text.ljust(self.length), end="", flush=True)  # noqa: T201
        self.length = len(text)


OF_DENSE = {"mean_iou": "mean IoU", "ap": "AP"}  # the number that counts of pixels, and of boxes; in words


def describe(record: Mapping[str, Any]) -> str:
    """Say a record of a run's log in a line."""
    match record["kind"]:
        case "train":
            clock, rate = record["time"], record["learning_rate"]
            accuracy = f" acc {record['accuracy']:.1%}" if "accuracy" in record else ""
            memory = "" if clock["memory"] is None else f" {clock['memory'] / 2**30:.1f}G"
            gone = f" {record['left_out']:,} left out" if record["left_out"] else ""
            speed = f"{clock['images_per_second']:,.0f}/s"
            return f"loss {record['loss']:.3f}{accuracy} lr {rate:.1e} {speed}{memory}{gone}"
        case "evaluation":
            name, digits, of = ("accuracy", ".2%", "of") if "accuracy" in record else ("loss", ".4f", "on")
            if (by := record.get("by")) is not None:
                name, digits, of = by, ".4f", "on"
            best = "best" if record["best_step"] == record["step"] else f"best {record['best']:{digits}}"
            words = OF_DENSE.get(name, name.replace("_", " "))
            measured = f"{words} {record[name]:{digits}} {of} {record['images']:,.0f} val images"
            return f"step {record['step']:,}: {measured} ({best})"
        case "probe":
            few, every = record["fewshot_10"], record["linear"]
            words = f"step {record['step']:,}: features {few:.2%} from 10 images a class, {every:.2%} from all"
            return f"{words}, of {record['images']:,.0f} probe images"
        case _:
            return ""
