"""How results and errors look to people."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import typer
from rich.console import Console
from rich.text import Text

from vitrail.runtime.reporter import harmless


@runtime_checkable
class Found(Protocol):
    """What a function of `vitrail.verbs` gives: plain values for JSON, and words for people."""

    def document(self) -> Any: ...  # noqa: ANN401, D102


# What messages of the library say in Python's words, and the command line in its own.
FLAGS = {
    "lossy=True": "--lossy",
    "overwrite=True": "--overwrite",
    "keep_pre_logits": "--keep-pre-logits",
    "another folder.": "another folder (--out).",
}


def said_command() -> str:
    """Give the command as it was typed, for what is written; nothing where the program is another."""
    return shlex.join(["vitrail", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("vitrail", "__main__") else ""


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
