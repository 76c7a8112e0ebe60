"""Flags that the commands that train share, and what they say at their end."""

import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from vitrail.errors import ConfigError
from vitrail.runtime.reporter import harmless

Number = TypeVar("Number", int, float)

Model = Annotated[str | None, typer.Option(metavar="NAME|FILE", help="A name such as ViT-B/16, or a checkpoint.")]
Out = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Where the run is written.", show_default="runs/, the command and the data"),
]
Named = Annotated[
    str | None,
    typer.Option("--recipe", metavar="NAME", help="Such as scratch, i1k, finetune/cifar10, augreg/medium1."),
]
Steps = Annotated[int | None, typer.Option(help="Updates of the weights.")]
Batch = Annotated[
    int | None, typer.Option("--batch", "--batch-size", help="Images per update, on all processes together.")
]
Workers = Annotated[int | None, typer.Option(help="Processes that decode images.", show_default="by the machine")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda.", show_default="a GPU where there is one")]
Precision = Annotated[str | None, typer.Option(help="float32 or bfloat16.", show_default="bfloat16 on a GPU")]
Compile = Annotated[str | None, typer.Option("--compile", help="on or off.", show_default="on with a GPU")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Such as learning_rate=3e-4, image_size=384, mixup=0.2, model.depth=6."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show nothing but errors and the result.")]


def read_numbers(name: str, text: str, kind: type[Number]) -> tuple[Number, ...]:
    """Read numbers with commas between them."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--{name} must be numbers with commas between them; got {text!r}.") from error


def program() -> str:
    """Say how the program is called where it is not on the path."""
    called = sys.argv[0]
    return "vitrail" if Path(called).stem != "vitrail" or shutil.which("vitrail") else called


def same_again() -> str:
    """Say that the same command resumes."""
    return f"The same command resumes: {harmless(shlex.join([program(), *sys.argv[1:]]))}"


@contextmanager
def going_on() -> Iterator[None]:
    """End with 130 where a command of several runs is interrupted, and say that the same one resumes."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print(harmless(str(interrupt) or "interrupted."), markup=False)
        console.print(same_again(), markup=False)
        raise typer.Exit(130) from interrupt
