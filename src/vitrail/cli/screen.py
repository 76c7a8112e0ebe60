"""What people see of a run: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitrail.cli.render import harmless

PAUSE = 2.0  # seconds between plain lines of a run that goes fast


@contextmanager
def showing(*, quiet: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show the records of a run on standard error."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if quiet:
        yield lambda record: None
    elif console.is_terminal:
        columns = (BarColumn(bar_width=8), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
        with Progress(*columns, TextColumn("{task.fields[words]}"), console=console) as bar:  # 80 columns in all
            yield _Bar(bar).tell
    else:
        yield _Lines(console).tell


class _Bar:
    """A bar that fills up, with the last numbers beside it, and lines above it for what should stay."""

    def __init__(self, bar: Progress) -> None:
        self.bar, self.task = bar, None

    def tell(self, record: Mapping[str, Any]) -> None:
        match record["kind"]:
            case "begin":
                self._start("", record["step"], record["steps"])
            case "reading":
                if self.task is None:
                    self._start("reading images, to cut some off by content", 0, record["total"])
                self._move(record["done"], "reading images")
                if record["done"] == record["total"]:
                    self._end()
            case "train":
                self._move(record["step"], _training(record))
            case "evaluation":
                self.bar.console.print(_evaluation(record), markup=False)
            case "probe":
                self.bar.console.print(_probe(record), markup=False)
            case "end":
                self._end()
            case "note":
                self.bar.console.print(harmless(record["text"]), markup=False)

    def _start(self, what: str, done: int, total: int) -> None:
        self.task = self.bar.add_task(what, completed=done, total=total, words=what)

    def _move(self, done: int, words: str) -> None:
        if self.task is not None:
            self.bar.update(self.task, completed=done, words=words)

    def _end(self) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
            self.task = None


class _Lines:
    """A line for what happens, not more often than one reads."""

    def __init__(self, console: Console) -> None:
        self.console, self.last, self.steps = console, 0.0, 0

    def tell(self, record: Mapping[str, Any]) -> None:
        match record["kind"]:
            case "begin":
                self.steps = record["steps"]
            case "train" if time.monotonic() - self.last > PAUSE or record["step"] == self.steps:
                self.last = time.monotonic()
                self._print(f"step {record['step']:,}/{self.steps:,}  {_training(record)}")
            case "evaluation":
                self._print(_evaluation(record))
            case "probe":
                self._print(_probe(record))
            case "note":
                self._print(harmless(record["text"]))

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False)


def _training(record: Mapping[str, Any]) -> str:
    clock = record["time"]
    right = f" acc {record['accuracy']:.1%}" if "accuracy" in record else ""
    words = f"loss {record['loss']:.3f}{right} lr {record['learning_rate']:.1e} {clock['images_per_second']:,.0f}/s"
    if clock["memory"] is not None:
        words += f" {clock['memory'] / 2**30:.1f}G"
    return words + (f" {record['left_out']:,} left out" if record["left_out"] else "")


def _evaluation(record: Mapping[str, Any]) -> str:
    best = record["best_step"] == record["step"]
    if "accuracy" not in record:
        words = f"step {record['step']:,}: loss {record['loss']:.4f} on {record['images']:,.0f} val images"
        return words + (" (best)" if best else f" (best {-record['best']:.4f})")
    words = f"step {record['step']:,}: accuracy {record['accuracy']:.2%} of {record['images']:,.0f} val images"
    return words + (" (best)" if best else f" (best {record['best']:.2%})")


def _probe(record: Mapping[str, Any]) -> str:
    few, every = record["fewshot_10"], record["linear"]
    words = f"step {record['step']:,}: features {few:.2%} from 10 of every class, {every:.2%} from all"
    return f"{words}, of {record['images']:,.0f} probe images"
