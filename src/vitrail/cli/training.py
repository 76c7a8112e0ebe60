"""`vitrail pretrain` and `vitrail finetune`: the two recipes of the paper, on one loop."""

import json
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
    names_of,
    needs_labels,
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
from vitrail.config.recipes import adjust
from vitrail.errors import ConfigError, DataError, VitrailError

if TYPE_CHECKING:
    from vitrail.train.prepare import Probe
    from vitrail.train.run import Outcome

HELP: dict[Kind, str] = {
    "finetune": """Train on your images: a checkpoint with a new head, or a fresh model where none is given.

    With nothing but the images, values are chosen for them and said. The same command again goes on where it stopped.
    """,
    "pretrain": """Train a fresh model by its name, as the paper pre-trains: --model ViT-B/16 --recipe i1k.

    Without a recipe, the one for small data is taken. The same command again goes on where it stopped.
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


def command(kind: Kind) -> Callable[..., None]:
    """Make one of the two commands."""

    def run(
        data: Where,
        model: Model = None,
        out: Out = None,
        name: Named = None,
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
        flags = {"steps": steps, "epochs": epochs, "batch": batch, "seed": seed, "precision": precision}
        flags |= {"compile": compiles}
        given = {flag: value for flag, value in flags.items() if value is not None}
        texts = (*([] if objective is None else [f"objective={objective}"]), *(settings or ()))
        asked = Asked(kind=kind, data=data, model=model, out=out, recipe=name, flags=given, settings=texts)
        outcome = train(
            asked,
            minutes=minutes,
            probe=probe,
            workers=workers,
            device=device,
            tensorboard=tensorboard,
            allow_pipe=allow_pipe,
            quiet=quiet,
        )
        show_outcome(outcome, asked, probe=probe, as_json=as_json)

    run.__name__, run.__doc__ = kind, HELP[kind]
    return run


def train(
    asked: Asked,
    *,
    minutes: float | None = None,
    probe: str | None = None,
    workers: int | None,
    device: str | None,
    tensorboard: bool,
    allow_pipe: bool,
    quiet: bool,
) -> "Outcome | None":
    """Settle what is open and run it; nothing where another process of the same run speaks."""
    from vitrail.data.open import open_data
    from vitrail.runtime.group import is_main_process
    from vitrail.runtime.memory import keep_memory
    from vitrail.train.pace import steps_within
    from vitrail.train.run import run
    from vitrail.train.task import name_model

    if asked.model is not None:
        name_model(asked.model)
    if minutes is not None:
        asked = for_minutes(asked, minutes)
    read_all(asked)
    splits = open_data(asked.data, allow_pipe=allow_pipe, unlabeled=not needs_labels(asked))
    choice = settle(asked, splits)
    task = task_of(asked, choice, splits, workers=workers, device=device, tensorboard=tensorboard)
    probing, said = (None, []) if probe is None else open_probe(probe, allow_pipe=allow_pipe)
    keep_memory()
    with showing(quiet=quiet or not is_main_process()) as tell:
        for reason in (*choice.reasons, *said):
            tell({"kind": "note", "text": reason})
        if minutes is not None:
            tell({"kind": "note", "text": "measuring how long a step takes"})
            steps, reason = steps_within(task, 60 * minutes, probing)
            task = replace(task, training=adjust(task.training, {"steps": steps}))
            tell({"kind": "note", "text": reason})
        tell({"kind": "note", "text": f"writing to {task.out}"})
        outcome = run(task, tell, probing)
    return outcome if is_main_process() else None


def open_probe(probe: str, *, allow_pipe: bool) -> "tuple[Probe, list[str]]":
    """Draw the images to probe features with; refuses those that cannot be told apart by labels. Says what it drew."""
    from vitrail.data.open import open_data
    from vitrail.evaluation.curves import draw_sets, probe_features
    from vitrail.evaluation.features import choose_sets

    try:
        sets, said = choose_sets(open_data(probe, allow_pipe=allow_pipe), None)
        drawn = draw_sets(sets)
    except VitrailError as error:
        raise DataError(f"--probe needs labelled images. {probe}: {error}") from error
    counts = f"{len(drawn[0]):,} and {len(drawn[1]):,} images"
    return partial(probe_features, drawn), [f"features are probed with {counts} of {probe}: {said}"]


def for_minutes(asked: Asked, minutes: float) -> Asked:
    """Leave a run's length open until it is measured; refuse what says it too, and runs of several processes."""
    if not minutes > 0:
        raise ConfigError(f"--minutes must be more than 0; got {minutes:g}.")
    given = {"steps", "epochs"} & {*asked.flags, *names_of(asked.settings)}
    if given:
        raise ConfigError(f"a run's length is given twice: --minutes and {' and '.join(sorted(given))}. Give one.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("--minutes measures one process alone. Say --steps or --epochs with torchrun.")
    return replace(asked, flags={**asked.flags, "steps": 1})


def show_outcome(outcome: "Outcome | None", asked: Asked, *, probe: str | None = None, as_json: bool) -> None:
    """Print how a run ended, and what to type next; exits with 130 where it was interrupted."""
    if outcome is None:
        return
    _print_outcome(outcome, asked, probe, as_json=as_json)
    if not outcome.finished:
        raise typer.Exit(130)


def _print_outcome(outcome: "Outcome", asked: Asked, probe: str | None, *, as_json: bool) -> None:
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
        elif (part := name.removesuffix("accuracy")) + "loss" in outcome.metrics:  # learned without labels
            loss, count = (outcome.metrics[part + word] for word in ("loss", "images"))
            console.print(f"  loss {loss:.4f} on {count:,.0f} {words}", markup=False)
    console.print("Next:", markup=False)
    data = shlex.quote(asked.data)
    if not needs_labels(asked):  # nothing was learned of classes yet
        labeled = shlex.quote(probe or (asked.data if outcome.labeled else "SOURCE"))
        console.print(f"  {program()} inspect {shlex.quote(out)} {data}", markup=False)
        console.print(f"  {program()} finetune {labeled} --model {shlex.quote(out)}", markup=False)
        console.print(f"  {program()} fewshot {shlex.quote(out)} {labeled}", markup=False)
    else:
        console.print(f"  {program()} evaluate {shlex.quote(out)} {data}", markup=False)
    console.print(f"  {program()} describe {shlex.quote(out)}", markup=False)
    console.print(f"  in Python: model = vitrail.load({out!r})", markup=False)
