"""The `vitrail` program: one dict from command to function, and how its errors look."""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from vitrail import __version__
from vitrail.cli import data, training
from vitrail.cli.bench import bench
from vitrail.cli.convert import convert
from vitrail.cli.demo import demo
from vitrail.cli.describe import describe
from vitrail.cli.evaluate import evaluate
from vitrail.cli.fewshot import fewshot
from vitrail.cli.inspect import inspect
from vitrail.cli.plan import plan
from vitrail.cli.predict import predict
from vitrail.cli.render import show_error
from vitrail.cli.transfer import transfer
from vitrail.cli.verify import verify
from vitrail.cli.vtab import vtab
from vitrail.errors import VitrailError

COMMANDS: dict[str, Callable[..., None]] = {
    "bench": bench,
    "convert": convert,
    "demo": demo,
    "describe": describe,
    "evaluate": evaluate,
    "fewshot": fewshot,
    "inspect": inspect,
    "finetune": training.command("finetune"),
    "plan": plan,
    "predict": predict,
    "pretrain": training.command("pretrain"),
    "transfer": transfer,
    "verify": verify,
    "vtab": vtab,
}

# Commands of commands.
GROUPS: dict[str, dict[str, Callable[..., None]]] = {"data": {"check": data.check, "pack": data.pack}}
GROUP_HELP = {"data": "Check a data set, or pack it into arrays."}

# Options of earlier versions, without their dashes: they work as before, and no help shows them.
OLD_WORDS = {"limit": "bad-image-limit", "neighbours": "knn"}

app = typer.Typer(
    name="vitrail",
    help='The whole system of the Vision Transformer paper, "An Image is Worth 16x16 Words".',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda word: OLD_WORDS.get(word, word),
    },
)


def _shield(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what Vitrail refuses into one clear line and an exit status; any other error is a bug and shows itself."""

    @functools.wraps(command)
    def shielded(*args: object, **options: object) -> None:
        try:
            command(*args, **options)
        except VitrailError as error:
            show_error(str(error))
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            show_error("interrupted.")
            raise typer.Exit(130) from error

    return shielded


for name, function in COMMANDS.items():
    app.command(name)(_shield(function))
for group, functions in GROUPS.items():
    inner = typer.Typer(help=GROUP_HELP[group], no_args_is_help=True)
    for name, function in functions.items():
        inner.command(name)(_shield(function))
    app.add_typer(inner, name=group)


def _version(asked: bool) -> bool:
    if asked:
        from importlib.metadata import version

        typer.echo(f"vitrail {__version__} (torch {version('torch')}, Python {sys.version.split()[0]})")
        raise typer.Exit
    return asked


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and exit.")
    ] = False,
) -> None:
    """Run a command; `vitrail COMMAND --help` says what it takes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and give its exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    try:
        app(list(sys.argv[1:] if arguments is None else arguments), prog_name="vitrail")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        show_error("interrupted.")
        return 130
    return 0
