"""How results and errors look to people."""

import inspect
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import typer
from rich.console import Console
from rich.text import Text
from typer.models import OptionInfo

from vitrail.config import FILE_FIELDS
from vitrail.errors import harmless, shortened

TRACEBACK = "VITRAIL_TRACEBACK"  # the variable that asks for a bug's traceback

# A keyword in a message: overwrite=True; with a word before it that says what to do: Set precision=float32.
KEYWORD = re.compile(
    r"""(?<![\w./'"-])((?i:set|take|give|say|or|with)\ )?  # what to do
    ([a-z_]\w*(?:\.\w+)*)                            # the name
    =(\.\.\.|\(\w+,\ \w+\)|[^\s;,()]*[^\s;,().])  # the value, without the end of a sentence
    (?![\w/='"-])""",
    re.VERBOSE,
)


@runtime_checkable
class Found(Protocol):
    """What a function of `vitrail.verbs` gives: plain values for JSON, and words for people."""

    def document(self) -> Any: ...  # noqa: ANN401, D102


def flags_of(command: Callable[..., None]) -> dict[str, str]:
    """Give the flag of every option of a command, by its keyword."""
    found = {}
    for name, parameter in inspect.signature(command).parameters.items():
        for option in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(option, OptionInfo):
                found[name] = option.default if isinstance(option.default, str) else f"--{name.replace('_', '-')}"
    return found


def in_flags(message: str, command: Callable[..., None]) -> str:
    """Say a message of the library, which speaks of keywords, in the flags of a command."""
    flags = flags_of(command)

    def flag(found: re.Match[str]) -> str:
        word, name, value = found[1] or "", found[2], found[3].strip("()").replace(", ", "x")  # (14, 10) is 14x10
        if name in flags:
            return word + flags[name] + (f" {value}" if value != "True" else "")
        if name in FILE_FIELDS and "settings" in flags:
            return f"{word}--set model.{name}={value}"
        if word and "settings" in flags:
            return {"Set ": "Give ", "set ": "give "}.get(word, word) + f"--set {name}={value}"
        return found[0]

    message = KEYWORD.sub(flag, message)
    return message.replace("another folder.", "another folder (--out).") if "out" in flags else message


def show_error(message: str) -> None:
    """Print an error on standard error: one line for a program, coloured for a terminal."""
    Console(stderr=True, soft_wrap=True).print(Text.assemble(("error: ", "bold red"), harmless(message)))


def say(text: str, *, err: bool = False) -> None:
    """Print words for people: all that a command prints goes through here, and nothing in it drives a terminal."""
    typer.echo(harmless(text), err=err)


def show_bug(command: str, error: BaseException) -> None:
    """Say in a line that something failed that nobody foresaw, and what to do."""
    kind, reason = type(error).__name__, " ".join(shortened(str(error), 300).split())
    what = f"{command} failed with {kind}" + (f": {reason}" if reason else "")
    cure = (
        "More memory is needed than there is: try a smaller batch, image size or file."
        if isinstance(error, MemoryError)
        else "That is a bug in Vitrail. Please report it, with this line, in the issue tracker of the project."
    )
    show_error(f"{what.rstrip('.')}. {cure} To see where it happened, run it again with {TRACEBACK}=1 set.")


def show(found: Found, *, as_json: bool) -> None:
    """Print what a function found: one JSON document for a program, its own words for people."""
    if is_main():
        say(json.dumps(found.document(), indent=2) if as_json else str(found))


def is_main() -> bool:
    """Tell whether this process prints, of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def program() -> str:
    """Say how the program is called where it is not on the path."""
    called = sys.argv[0]
    return "vitrail" if Path(called).stem != "vitrail" or shutil.which("vitrail") else called


def same_again() -> str:
    """Say that the same command resumes."""
    return f"The same command resumes: {shlex.join([program(), *sys.argv[1:]])}"
