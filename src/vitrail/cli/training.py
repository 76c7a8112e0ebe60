"""`vitrail pretrain` and `vitrail finetune`: flags to arguments, and how a run ended."""

import json
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from vitrail.cli.asking import (
    Batch,
    Compile,
    Device,
    Model,
    Named,
    Out,
    Precision,
    Quiet,
    Settings,
    Steps,
    Workers,
    program,
    same_again,
)
from vitrail.cli.data import Pipe, Where
from vitrail.cli.describe import Json
from vitrail.cli.render import said_command
from vitrail.runtime.reporter import harmless

if TYPE_CHECKING:
    from vitrail.verbs.training import Run

HELP: dict[str, str] = {
    "finetune": """Train on your images: a checkpoint with a new head, or a fresh model where none is given.

    With nothing but the images, values are chosen for them and said. The same command again resumes where it stopped.
    """,
    "pretrain": """Train a fresh model by its name, as the paper pre-trains: --model ViT-B/16 --recipe i1k.

    Without a recipe, the one for small data is taken. The same command again resumes where it stopped.
    With --objective masked-patch, mae or next-pixel images need no labels: any folder of them will do.
    """,
}

Epochs = Annotated[float | None, typer.Option(help="Passes over the training images, instead of --steps.")]
Minutes = Annotated[
    float | None, typer.Option(help="As many steps as fit into so many minutes here, instead of --steps.")
]
Learned = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="WORD",
        help="What is learned: labels, masked-patch, mae, next-pixel.",
        show_default="labels",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Of order, augmentation, dropout and fresh weights.", show_default="0")]
Probed = Annotated[
    str | None,
    typer.Option(
        "--probe",
        metavar="SOURCE",
        help="Labelled images: how well classifiers of frozen features do on them, while training. "
        "At most 10,000 to learn from and 5,000 to test on.",
    ),
]
Board = Annotated[bool, typer.Option("--tensorboard", help="Write for TensorBoard too.")]


def command(kind: Literal["finetune", "pretrain"]) -> Callable[..., None]:
    """Make one of the two commands."""

    def run(
        data: Where,
        model: Model = None,
        out: Out = None,
        recipe: Named = None,
        steps: Steps = None,
        epochs: Epochs = None,
        minutes: Minutes = None,
        objective: Learned = None,
        probe: Probed = None,
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
        from vitrail.verbs.training import VERBS, usual_out

        done = VERBS[kind](
            data,
            model=model,
            out=out or usual_out(kind, data),
            recipe=recipe,
            steps=steps,
            epochs=epochs,
            minutes=minutes,
            objective=objective,
            probe=probe,
            batch_size=batch,
            seed=seed,
            workers=workers,
            device=device,
            precision=precision,
            compile=compiles,
            settings=settings or (),
            tensorboard=tensorboard,
            allow_pipe=allow_pipe,
            quiet=quiet,
            command=said_command(),
        )
        show_run(done, data, probe=probe, as_json=as_json)

    run.__name__, run.__doc__ = kind, HELP[kind]
    return run


def show_run(run: "Run", data: str, *, probe: str | None = None, as_json: bool) -> None:
    """Print how a run ended, and what to type next; exits with 130 where it was interrupted."""
    from vitrail.runtime.group import is_main_process

    if is_main_process():
        _print_run(run, data, probe, as_json=as_json)
    if not run.finished:
        raise typer.Exit(130)


def _print_run(run: "Run", data: str, probe: str | None, *, as_json: bool) -> None:
    if as_json:
        names = ("finished", "step", "steps", "metrics")
        document = {"out": str(run.folder), **{name: getattr(run, name) for name in names}}
        typer.echo(json.dumps({**document, "seconds": round(run.seconds, 1)}, indent=2))
        return
    console = Console(soft_wrap=True, highlight=False)
    out = harmless(str(run.folder))
    if not run.finished:
        console.print(f"interrupted at step {run.step:,} of {run.steps:,}, and saved.", markup=False)
        console.print(same_again(), markup=False)
        return
    console.print(f"{'finished before' if run.again else 'finished'}: {out}", markup=False, style="bold")
    for line in run.results():
        console.print(f"  {line}", markup=False)
    console.print("Next:", markup=False)
    images, folder = shlex.quote(data), shlex.quote(out)
    if "accuracy" in run.metrics or "test_accuracy" in run.metrics or not {"loss", "test_loss"} & run.metrics.keys():
        console.print(f"  {program()} predict {folder} PHOTOS", markup=False)
        console.print(f"  {program()} evaluate {folder} {images}", markup=False)
    else:  # nothing was learned of classes yet
        labeled = shlex.quote(probe or (data if run.labeled else "SOURCE"))
        console.print(f"  {program()} inspect {folder} {images}", markup=False)
        console.print(f"  {program()} finetune {labeled} --model {folder}", markup=False)
        console.print(f"  {program()} fewshot {folder} {labeled}", markup=False)
    console.print(f"  {program()} describe {folder}", markup=False)
    console.print(f"  in Python: model = vitrail.load({out!r})", markup=False)
