"""How results and errors look to people."""

import json
import os
import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text


@runtime_checkable
class Found(Protocol):
    """What a function of `vitrail.verbs` gives: plain values for JSON, and words for people."""

    def document(self) -> Any: ...  # noqa: ANN401, D102


# What messages of the library say in Python's words, and the command line in its own.
FLAGS = {"lossy=True": "--lossy", "overwrite=True": "--overwrite", "keep_pre_logits": "--keep-pre-logits"}


def plain_table(*columns: str, title: str, numbers: int = 0) -> Table:
    """Make a table that fits a terminal of 80 columns: one rule under the heads, no frame; the last `numbers` right."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1)
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index >= len(columns) - numbers else "left")
    return table


def working(what: str) -> AbstractContextManager[object]:
    """Say on a terminal that something is going on; nowhere else."""
    errors = Console(stderr=True)
    return errors.status(what) if errors.is_terminal else nullcontext()


def said_command() -> str:
    """Give the command as it was typed, for what is written; nothing where the program is another."""
    return shlex.join(["vitrail", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("vitrail", "__main__") else ""


def harmless(text: str) -> str:
    """Give a text without what would drive a terminal: names of files may hold anything."""
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)


def show_error(message: str) -> None:
    """Print an error on standard error, its keywords as flags: one line for a program, coloured for a terminal."""
    for keyword, flag in FLAGS.items():
        message = message.replace(keyword, flag)
    Console(stderr=True, soft_wrap=True).print(Text.assemble(("error: ", "bold red"), harmless(message)))


def show(found: Found, *, as_json: bool) -> None:
    """Print what a function found: one JSON document for a program, its own words for people."""
    if is_main():
        typer.echo(json.dumps(found.document(), indent=2) if as_json else str(found))


def is_main() -> bool:
    """Tell whether this process prints, of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"
