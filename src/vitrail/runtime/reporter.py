"""What people see of work that takes long: a bar on a terminal, a live line in a notebook, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

PAUSE = 2.0  # seconds between plain lines of a run that goes fast
LIVE = 0.2  # seconds between two drawings of a live line


class Reporter:
    """Takes what a function has to say while it works; this one is silent."""

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
    """Give the reporter for where this program runs: a terminal, a notebook, a file or a pipe."""
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


def harmless(text: str) -> str:
    """Give a text without what would drive a terminal: names of files may hold anything."""
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class _Bar(Reporter):
    """A bar that fills up, with the last numbers beside it, and lines above it for what should stay."""

    def __init__(self, bar: Any) -> None:  # noqa: ANN401
        self.bar, self.tasks, self.steps = bar, dict[str, Any](), 0

    def note(self, text: str) -> None:
        self.bar.console.print(harmless(text), markup=False)

    def progress(self, what: str, done: int = 0, total: int | None = None) -> None:
        self._move(what, done, total, what)

    def record(self, record: Mapping[str, Any]) -> None:
        match record["kind"]:
            case "begin":
                self.steps = record["steps"]
                self._move("steps", record["step"], self.steps, "")
            case "train":
                self._move("steps", record["step"], self.steps, describe(record))
            case "evaluation" | "probe":
                self.note(describe(record))

    def _move(self, name: str, done: int, total: int | None, words: str) -> None:
        if name not in self.tasks:
            self.tasks[name] = self.bar.add_task("", total=total, words="")
        self.bar.update(self.tasks[name], completed=done, total=total, words=harmless(words))
        if done == total:
            self.bar.remove_task(self.tasks.pop(name))


class _Lines(Reporter):
    """A line for what happens, not more often than one reads."""

    def __init__(self) -> None:
        self.last, self.steps, self.doing = 0.0, 0, ""

    def note(self, text: str) -> None:
        print(harmless(text), file=sys.stderr, flush=True)  # noqa: T201

    def progress(self, what: str, done: int = 0, total: int | None = None) -> None:
        if what != self.doing:
            self.doing, self.last = what, time.monotonic()
            self.note(f"{what} ...")
        elif total and done < total and time.monotonic() - self.last > 5 * PAUSE:
            self.last = time.monotonic()
            self.note(f"{what}: {done:,} of {total:,}")

    def record(self, record: Mapping[str, Any]) -> None:
        match record["kind"]:
            case "begin":
                self.steps = record["steps"]
            case "train" if time.monotonic() - self.last > PAUSE or record["step"] == self.steps:
                self.last = time.monotonic()
                self.note(f"step {record['step']:,}/{self.steps:,}  {describe(record)}")
            case "evaluation" | "probe":
                self.note(describe(record))


class _LiveLine(Reporter):
    """One line that is drawn again and again, and lines above it for what should stay."""

    def __init__(self) -> None:
        self.last, self.length, self.steps = 0.0, 0, 0

    def note(self, text: str) -> None:
        self._draw(harmless(text) + "\n")
        self.length = 0

    def progress(self, what: str, done: int = 0, total: int | None = None) -> None:
        self._live(f"{what}: {done:,} of {total:,}" if total else f"{what} ...", last=done == total)

    def record(self, record: Mapping[str, Any]) -> None:
        match record["kind"]:
            case "begin":
                self.steps = record["steps"]
            case "train":
                words = f"step {record['step']:,}/{self.steps:,}  {describe(record)}"
                self._live(words, last=record["step"] == self.steps)
            case "evaluation" | "probe":
                self.note(describe(record))

    def end(self) -> None:
        """Leave the live line as it is, and go to the next one."""
        if self.length:
            self._draw("")
            print(flush=True)  # noqa: T201

    def _live(self, text: str, *, last: bool) -> None:
        if last or time.monotonic() - self.last > LIVE:
            self.last = time.monotonic()
            self._draw(harmless(text))

    def _draw(self, text: str) -> None:
        print("\r" + text.ljust(self.length), end="", flush=True)  # noqa: T201
        self.length = len(text)


def describe(record: Mapping[str, Any]) -> str:
    """Say a record of a run's log in a line."""
    match record["kind"]:
        case "train":
            return _training(record)
        case "evaluation":
            return _evaluation(record)
        case "probe":
            few, every = record["fewshot_10"], record["linear"]
            words = f"step {record['step']:,}: features {few:.2%} from 10 images a class, {every:.2%} from all"
            return f"{words}, of {record['images']:,.0f} probe images"
        case _:
            return ""


def _training(record: Mapping[str, Any]) -> str:
    clock = record["time"]
    accuracy = f" acc {record['accuracy']:.1%}" if "accuracy" in record else ""
    rate = record["learning_rate"]
    words = f"loss {record['loss']:.3f}{accuracy} lr {rate:.1e} {clock['images_per_second']:,.0f}/s"
    if clock["memory"] is not None:
        words += f" {clock['memory'] / 2**30:.1f}G"
    return words + (f" {record['left_out']:,} left out" if record["left_out"] else "")


def _evaluation(record: Mapping[str, Any]) -> str:
    best = record["best_step"] == record["step"]
    if "accuracy" not in record:
        words = f"step {record['step']:,}: loss {record['loss']:.4f} on {record['images']:,.0f} val images"
        return words + (" (best)" if best else f" (best {record['best']:.4f})")
    words = f"step {record['step']:,}: accuracy {record['accuracy']:.2%} of {record['images']:,.0f} val images"
    return words + (" (best)" if best else f" (best {record['best']:.2%})")
