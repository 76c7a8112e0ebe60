"""`vitrail pretrain` and `vitrail finetune`: the two recipes of the paper, on one loop."""

import json
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from vitrail.cli.asking import (
    Asked,
    Batch,
    Compile,
    Device,
    Kind,
    Model,
    Named,
    Out,
    Precision,
    Quiet,
    Settings,
    Steps,
    Workers,
    program,
    read_all,
    same_again,
    settle,
    task_of,
)
from vitrail.cli.data import Pipe, Where
from vitrail.cli.describe import Json
from vitrail.cli.render import harmless
from vitrail.cli.screen import showing

if TYPE_CHECKING:
    from vitrail.train.run import Outcome

HELP: dict[Kind, str] = {
    "finetune": """Train on your images: a checkpoint with a new head, or a fresh model where none is given.

    With nothing but the images, values are chosen for them and said. The same command again goes on where it stopped.
    """,
    "pretrain": """Train a fresh model by its name, as the paper pre-trains: --model ViT-B/16 --recipe i1k.

    Without a recipe, the one for small data is taken. The same command again goes on where it stopped.
    """,
}

Epochs = Annotated[float | None, typer.Option(help="Passes over the training images, instead of --steps.")]
Seed = Annotated[int | None, typer.Option(help="Of order, augmentation, dropout and fresh weights.", show_default="0")]
Board = Annotated[bool, typer.Option("--tensorboard", help="Write for TensorBoard too.")]


def command(kind: Kind) -> Callable[..., None]:
    """Make one of the two commands."""

    def run(
        data: Where,
        model: Model = None,
        out: Out = None,
        name: Named = None,
        steps: Steps = None,
        epochs: Epochs = None,
        batch: Batch = None,
        seed: Seed = None,
        workers: Workers = None,
        device: Device = None,
        precision: Precision = None,
        compiles: Compile = None,
        settings: Settings = None,
        tensorboard: Board = False,
        allow_pipe: Pipe = False,
        quiet: Quiet = False,
        as_json: Json = False,
    ) -> None:
        flags = {"steps": steps, "epochs": epochs, "batch": batch, "seed": seed, "precision": precision}
        flags |= {"compile": compiles}
        given = {flag: value for flag, value in flags.items() if value is not None}
        asked = Asked(
            kind=kind, data=data, model=model, out=out, recipe=name, flags=given, settings=tuple(settings or ())
        )
        outcome = train(
            asked, workers=workers, device=device, tensorboard=tensorboard, allow_pipe=allow_pipe, quiet=quiet
        )
        show_outcome(outcome, asked, as_json=as_json)

    run.__name__, run.__doc__ = kind, HELP[kind]
    return run


def train(
    asked: Asked, *, workers: int | None, device: str | None, tensorboard: bool, allow_pipe: bool, quiet: bool
) -> "Outcome | None":
    """Settle what is open and run it; nothing where another process of the same run speaks."""
    from vitrail.data.open import open_data
    from vitrail.evaluate.accuracy import measure_accuracy
    from vitrail.runtime.memory import keep_memory
    from vitrail.train.group import is_leader
    from vitrail.train.run import run
    from vitrail.train.task import name_model

    if asked.model is not None:
        name_model(asked.model)
    read_all(asked)
    splits = open_data(asked.data, allow_pipe=allow_pipe)
    choice = settle(asked, splits)
    task = task_of(asked, choice, splits, workers=workers, device=device, tensorboard=tensorboard)
    keep_memory()
    with showing(quiet=quiet or not is_leader()) as tell:
        for reason in choice.reasons:
            tell({"kind": "note", "text": reason})
        tell({"kind": "note", "text": f"writing to {task.out}"})
        outcome = run(task, measure_accuracy, tell)
    return outcome if is_leader() else None


def show_outcome(outcome: "Outcome | None", asked: Asked, *, as_json: bool) -> None:
    """Print how a run ended, and what to type next; exits with 130 where it was interrupted."""
    if outcome is None:
        return
    _print_outcome(outcome, asked, as_json=as_json)
    if not outcome.finished:
        raise typer.Exit(130)


def _print_outcome(outcome: "Outcome", asked: Asked, *, as_json: bool) -> None:
    document = {
        "out": str(outcome.out),
        "finished": outcome.finished,
        "step": outcome.step,
        "steps": outcome.steps,
        "metrics": dict(outcome.metrics),
        "seconds": round(outcome.seconds, 1),
    }
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    console = Console(soft_wrap=True, highlight=False)
    out = harmless(str(outcome.out))
    if not outcome.finished:
        console.print(f"interrupted at step {outcome.step:,} of {outcome.steps:,}, and saved.", markup=False)
        console.print(same_again(), markup=False)
        return
    console.print(f"{'finished before' if outcome.again else 'finished'}: {out}", markup=False, style="bold")
    for name, words in (("accuracy", "val images"), ("test_accuracy", "test images")):
        if name in outcome.metrics:
            count = outcome.metrics["test_images" if name.startswith("test") else "images"]
            gone = outcome.metrics.get(name.replace("accuracy", "left_out"), 0)
            lost = f"; {gone:,.0f} could not be decoded" if gone else ""
            console.print(f"  {outcome.metrics[name]:.2%} of {count:,.0f} {words}{lost}", markup=False)
    console.print("Next:", markup=False)
    console.print(f"  {program()} evaluate {shlex.quote(out)} {shlex.quote(asked.data)}", markup=False)
    console.print(f"  {program()} describe {shlex.quote(out)}", markup=False)
    console.print(f"  in Python: model = vitrail.load({out!r})", markup=False)
