"""`vitrail pretrain` and `vitrail finetune`: the two recipes of the paper, on one loop."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from vitrail.cli.data import Pipe, Where
from vitrail.cli.describe import Json, read_fields
from vitrail.cli.machine import usual_workers
from vitrail.cli.render import harmless
from vitrail.cli.screen import showing
from vitrail.config import BiTConfig, read_settings, row
from vitrail.config.fields import values_of
from vitrail.config.recipe import Training
from vitrail.config.recipes import adjust, recipe
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.data.source import Source
    from vitrail.train.choose import Choice
    from vitrail.train.run import Outcome

Kind = Literal["pretrain", "finetune"]
HELP: dict[Kind, str] = {
    "finetune": """Train on your images: a checkpoint with a new head, or a fresh model where none is given.

    With nothing but the images, values are chosen for them and said. The same command again goes on where it stopped.
    """,
    "pretrain": """Train a fresh model by its name, as the paper pre-trains: --model ViT-B/16 --recipe i1k.

    Without a recipe, the one for small data is taken. The same command again goes on where it stopped.
    """,
}

Model = Annotated[str | None, typer.Option(metavar="NAME|FILE", help="A name such as ViT-B/16, or a checkpoint.")]
Out = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Where the run goes.", show_default="runs/, the command and the data"),
]
Named = Annotated[
    str | None,
    typer.Option("--recipe", metavar="NAME", help="Such as scratch, i1k, finetune/cifar10, augreg/medium1."),
]
Steps = Annotated[int | None, typer.Option(help="Updates of the weights.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the training images, instead of --steps.")]
Batch = Annotated[int | None, typer.Option(help="Images an update, on all processes together.")]
Seed = Annotated[int | None, typer.Option(help="Of order, augmentation, dropout and fresh weights.", show_default="0")]
Workers = Annotated[int | None, typer.Option(help="Processes that decode images.", show_default="by the machine")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda.", show_default="a GPU where there is one")]
Precision = Annotated[str | None, typer.Option(help="float32 or bfloat16.", show_default="bfloat16 on a GPU")]
Compile = Annotated[str | None, typer.Option("--compile", help="on or off.", show_default="on with a GPU")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Such as rate=3e-4, image_size=384, mixup=0.2, model.depth=6."),
]
Board = Annotated[bool, typer.Option("--tensorboard", help="Write for TensorBoard too.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show nothing but errors and the result.")]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was said on the command line."""

    kind: Kind
    data: str
    model: str | None
    out: str | None
    recipe: str | None
    flags: Mapping[str, object]
    settings: tuple[str, ...]


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
    from vitrail.train.run import run
    from vitrail.train.task import Task, name_model

    if asked.model is not None:
        name_model(asked.model)
    changes, settings = read_all(asked)
    splits = open_data(asked.data, allow_pipe=allow_pipe)
    choice = settle(asked, splits)
    training = adjust(choice.training, {**_parsed(choice.training, settings), **asked.flags})
    out = Path(asked.out).expanduser() if asked.out else Path("runs") / _slug(asked)
    task = Task(
        command=shlex.join(["vitrail", *sys.argv[1:]]),
        data=asked.data,
        splits=splits,
        model=choice.model,
        training=training,
        out=out,
        changes={**choice.changes, **changes},
        workers=usual_workers(gpu=_has_gpu(device)) if workers is None else workers,
        device=device,
        tensorboard=tensorboard,
    )
    keep_memory()
    leads = int(os.environ.get("RANK", "0")) == 0
    with showing(quiet=quiet or not leads) as tell:
        for reason in choice.reasons:
            tell({"kind": "note", "text": reason})
        tell({"kind": "note", "text": f"writing to {out}"})
        outcome = run(task, measure_accuracy, tell)
    return outcome if leads else None


def read_all(asked: Asked) -> tuple[dict[str, Any], list[str]]:
    """Read settings of the model, and leave those of the training for when its recipe is known."""
    from vitrail.train.task import is_checkpoint

    ours = [text.removeprefix("model.") for text in asked.settings if text.startswith("model.")]
    others = [text for text in asked.settings if not text.startswith("model.")]
    _parsed(recipe(asked.recipe or "scratch", examples=1).training, others)
    if "steps" in asked.flags and "epochs" in asked.flags:
        raise ConfigError("a run's length is given twice: --steps and --epochs. Give one.")
    if "classes" in _names([*ours, *others]):
        raise ConfigError("the data decides the number of classes. Leave classes out.")
    for flag in asked.flags:
        if flag in _names(others):
            raise ConfigError(f"{flag} is given twice: --{flag} and --set {flag}. Give it once.")
    if asked.model is None or is_checkpoint(asked.model):
        return read_fields(ours), others
    return read_settings(*row(asked.model), ours), others


def settle(asked: Asked, splits: "Mapping[str, Source]") -> "Choice":
    """Choose a recipe and a model where they are not said."""
    from vitrail.checkpoint.load import config_of
    from vitrail.data.sources.remote import RemoteShards
    from vitrail.train.choose import Choice, choose, middle_side
    from vitrail.train.task import is_checkpoint, training_split

    whole = training_split(splits)
    if isinstance(whole, RemoteShards) and (asked.recipe is None or not asked.flags.get("steps")):
        raise ConfigError("of a stream nothing is known ahead. Say --model, --recipe and --steps.")
    if asked.recipe is None:
        known = config_of(asked.model) if asked.model is not None and is_checkpoint(asked.model) else None
        return choose(
            whole,
            asked.model,
            pretrained=known is not None and asked.kind == "finetune",
            has_val=bool(splits.keys() & {"val", "dev"}),
            resnet=isinstance(known, BiTConfig),
            given={*asked.flags, *_names(asked.settings)},
        )
    if asked.model is None:
        raise ConfigError(
            f"--recipe {asked.recipe} needs a model. Say --model, a name such as ViT-B/16 or a checkpoint."
        )
    rule = asked.recipe == "bit/hyperrule"
    found = recipe(asked.recipe, examples=len(whole), side=middle_side(whole)) if rule else recipe(asked.recipe)
    dev = {"dev": 0.0} if isinstance(whole, RemoteShards) else {}
    return Choice(
        model=asked.model,
        training=adjust(found.training, dev),
        reasons=(f"the recipe {asked.recipe}: {found.source}",),
    )


def _names(settings: Sequence[str]) -> set[str]:
    """Give the fields that settings name."""
    return {text.partition("=")[0].strip() for text in settings}


def _parsed(training: Training, settings: list[str]) -> dict[str, object]:
    return read_settings(Training, values_of(training), settings)


def _slug(asked: Asked) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(asked.data).name or asked.data).strip("-").lower()
    return f"{asked.kind}-{name or 'data'}"


def _has_gpu(device: str | None) -> bool:
    import torch

    return torch.cuda.is_available() if device is None else device.startswith("cuda")


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
        console.print(f"The same command goes on: {harmless(shlex.join([_program(), *sys.argv[1:]]))}", markup=False)
        return
    console.print(f"{'finished before' if outcome.again else 'finished'}: {out}", markup=False, style="bold")
    for name, words in (("accuracy", "val images"), ("test_accuracy", "test images")):
        if name in outcome.metrics:
            count = outcome.metrics["test_images" if name.startswith("test") else "images"]
            gone = outcome.metrics.get(name.replace("accuracy", "left_out"), 0)
            lost = f"; {gone:,.0f} could not be decoded" if gone else ""
            console.print(f"  {outcome.metrics[name]:.2%} of {count:,.0f} {words}{lost}", markup=False)
    console.print("Next:", markup=False)
    console.print(f"  {_program()} evaluate {shlex.quote(out)} {shlex.quote(asked.data)}", markup=False)
    console.print(f"  {_program()} describe {shlex.quote(out)}", markup=False)
    console.print(f"  in Python: model = vitrail.load({out!r})", markup=False)


def _program() -> str:
    """Say how the program is called where it is not on the path."""
    called = sys.argv[0]
    return "vitrail" if Path(called).stem != "vitrail" or shutil.which("vitrail") else called
