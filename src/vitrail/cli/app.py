"""The `vitrail` program: its commands, how each calls its function, and how its errors look."""

import atexit
import contextlib
import functools
import inspect
import io
import os
import select
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

import vitrail
from vitrail.cli.options import READERS
from vitrail.cli.render import TRACEBACK, in_flags, same_again, say, show, show_bug, show_error
from vitrail.config import FILE_FIELDS, read_model_settings
from vitrail.config.given import TRAINS, check_usage
from vitrail.config.words import MODEL
from vitrail.errors import ConfigError, VitrailError, harmless
from vitrail.runtime.reporter import began as began, reporting, wording

# Where each command is; two words are a command of a group.
COMMANDS = {
    "bench": "bench",
    "calibrate": "measuring",
    "convert": "checkpoints",
    "demo": "training",
    "describe": "checkpoints",
    "evaluate": "measuring",
    "export": "exporting",
    "fewshot": "measuring",
    "inspect": "measuring",
    "finetune": "training",
    "models": "listing",
    "optimize": "optimizing",
    "plan": "plan",
    "predict": "predict",
    "pretrain": "training",
    "recipes": "listing",
    "selftrain": "selftraining",
    "serve": "serving",
    "soup": "averaging",
    "study": "studies",
    "transfer": "training",
    "verify": "measuring",
    "vtab": "training",
    "data check": "data",
    "data pack": "data",
}
BUG, UNREAD = 70, 141  # exit statuses: of software's own failures (sysexits.h), and of a pipe that was closed
GROUPS = {"data": "Check a data set, or pack it into arrays."}
# Options of earlier versions and of other programs, without their dashes: they work, and no help shows them.
WORDS = {"limit": "bad-image-limit", "neighbours": "knn", "output-dir": "out", "output": "out", "topk": "top"}
WORDS |= {"num-workers": "workers", "dataloader-num-workers": "workers", "img-size": "image-size"}
WORDS |= {"keep-aspect": "keep-aspect-ratio", "preserve-aspect-ratio": "keep-aspect-ratio", "tome": "token-merging"}
WORDS |= {"std": "deviation", "crop-pct": "crop-share"}
# Commands of other programs, and what does that here.
OTHERS = {"train": "finetune", "fit": "finetune", "eval": "evaluate", "test": "evaluate", "validate": "evaluate"}
OTHERS |= {
    "average": "soup",
    "merge": "soup",
    "model_soup": "soup",
    "noisy_student": "selftrain",
    "self_train": "selftrain",
}
OTHERS |= {"classify": "predict", "infer": "predict", "embed": "predict ... --embed FILE", "inference": "predict"}
SETTABLE = (*TRAINS, "plan")  # commands whose --set takes any field, not only what a file leaves open
SHORT = {"-b": "--batch-size", "-j": "--workers"}


def read_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """Read what the flags of a command say as arguments of its function; what they leave open is left out."""
    options = {**given, **given.get("options", {})}
    return {
        name: READERS[name](name, value) if name in READERS and isinstance(value, str) else value
        for name, value in options.items()
        if value not in (None, []) and name not in ("options", "as_json")
    }


def call(verb: str | Callable[..., Any], given: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Call a public function with what the flags of its command say; what they leave open is left to it."""
    arguments = read_flags(given)
    quiet = arguments.pop("quiet", None)
    if "settings" in arguments and verb not in TRAINS:
        fields = read_model_settings(arguments.pop("settings"))
        if twice := fields.keys() & arguments.keys():
            raise ConfigError(f"{twice.pop()} is given twice, as an option and as a setting. Give it once.")
        arguments |= fields
    if isinstance(verb, str):
        check_usage(verb, arguments)  # before torch is loaded
    function = getattr(import_module(vitrail._HOMES[verb]), verb) if isinstance(verb, str) else verb
    takes = inspect.signature(function).parameters
    if "command" in takes:
        arguments["command"] = said_command()
    if quiet is None:
        return function(**arguments)
    if "quiet" in takes:
        return function(**arguments, quiet=quiet)
    with reporting(quiet=quiet) as report:
        return function(**arguments, report=report)


def answer(verb: str, given: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Call a public function as `call` does, print what it gives, and give it."""
    found = call(verb, given)
    show(found, as_json=given["as_json"] if "as_json" in given else given["options"]["as_json"])
    return found


def said_command() -> str:
    """Give the command as it was typed, for what is written; nothing where the program is another."""
    return shlex.join(["vitrail", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("vitrail", "__main__") else ""


def _shield(command: Callable[..., None]) -> Callable[..., None]:
    """Turn what Vitrail refuses into one clear line and an exit status; `main` answers for any other error."""

    @functools.wraps(command)
    def shielded(*args: object, **options: object) -> None:
        before = wording.set(functools.partial(in_flags, command=command))
        try:
            command(*args, **options)
        except VitrailError as error:
            show_error(in_flags(str(error), command))
            raise typer.Exit(1) from error
        except BrokenPipeError as error:
            if not _nobody_reads():
                raise
            raise typer.Exit(UNREAD) from error
        except KeyboardInterrupt as error:
            show_error(str(error) or "interrupted.")
            if str(error) or command.__name__ in ("transfer", "vtab", "study"):  # what was done is kept
                say(same_again(), err=True)
            raise typer.Exit(130) from error
        finally:
            wording.reset(before)

    return shielded


def in_our_words(program: Any, words: list[str]) -> list[str]:  # noqa: ANN401
    """Give a command's options by their names here; others are settings, where it takes any: --set lr=1e-3."""
    command, rest = program, list(words)
    if rest and rest[0] in OTHERS:
        show_error(f"there is no command {rest[0]!r}. Did you mean {OTHERS[rest[0]]!r}?")
        raise SystemExit(2)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }
    found = words[: len(words) - len(rest)]
    shown = str if "--" in words else harmless  # what is no option is told as it is; after --, it may be a file's name
    while rest:
        flag, equals, value = (word := SHORT.get(rest[0], rest[0])).partition("=")
        del rest[0]
        plain = f"--{flag[2:].replace('_', '-')}"
        ours = next((name for name in (plain, f"--{WORDS.get(plain[2:], '')}") if name in known), None)
        field = flag[2:].replace("-", "_")
        free = "--set" in known and (command.name in SETTABLE or MODEL.get(field, field) in FILE_FIELDS)
        if not free or not flag.startswith("--") or flag == "--" or ours is not None:
            found.append(f"{ours or shown(flag)}{equals}{value}" if flag.startswith("--") else word)
            continue
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        found += ["--set", f"{field}={value}"]
    return found


def make_app() -> typer.Typer:
    """Make the program of all commands."""
    words = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(
        name="vitrail",
        help='The whole system of the Vision Transformer paper, "An Image is Worth 16x16 Words".',
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings=words,
    )
    app.callback()(_options)
    groups = {name: typer.Typer(help=words, no_args_is_help=True) for name, words in GROUPS.items()}
    for name, module in COMMANDS.items():
        *group, last = name.split()
        function = getattr(import_module(f"vitrail.cli.{module}"), last)
        (groups[group[0]] if group else app).command(last)(_shield(function))
    for name, group in groups.items():
        app.add_typer(group, name=name)
    return app


def _version(asked: bool) -> bool:
    if asked:
        from importlib.metadata import version

        say(f"vitrail {vitrail.__version__} (torch {version('torch')}, Python {sys.version.split()[0]})")
        raise typer.Exit
    return asked


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version and exit.")
    ] = False,
) -> None:
    """Run a command; `vitrail COMMAND --help` says what it takes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and give its exit status, whatever comes."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):  # what a terminal's encoding lacks is shown as its number
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        program = typer.main.get_command(make_app())
        program(in_our_words(program, words), prog_name="vitrail")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except KeyboardInterrupt:
        show_error("interrupted.")
        return 130
    except Exception as error:
        if os.environ.get(TRACEBACK, "") not in ("", "0"):
            raise
        show_bug(_name_of(words), error)
        return BUG
    finally:
        atexit.unregister(_end_quietly)
        atexit.register(_end_quietly)  # once, and the last to come is the first to run
    return 0


def _end_quietly() -> None:
    """Let no Ctrl-C interrupt what libraries do as the program ends: all is done and said."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _nobody_reads() -> bool:
    """Tell whether whoever read standard output closed it; what is left for it is then thrown away."""
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)
        closed = any(event & select.POLLERR for _, event in watched.poll(0))
    except (OSError, ValueError, AttributeError):  # it is no pipe; or a system without this call
        closed = False
    if closed:
        with contextlib.suppress(OSError):  # Python writes what is left when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return closed


def _name_of(words: Sequence[str]) -> str:
    """Give the command that was asked for, as it is typed."""
    two = " ".join(words[:2])
    return "vitrail" if not words else f"vitrail {two if two in COMMANDS else words[0]}"
