"""What a command that trains was asked, and the run that follows from it: shared by those that train."""

import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from rich.console import Console

from vitrail.cli.render import harmless
from vitrail.config import BiTConfig, read_settings, row
from vitrail.config.codec import encode
from vitrail.config.fields import mean, values_of
from vitrail.config.recipe import Augmentation, Training
from vitrail.config.recipes import adjust, recipe
from vitrail.errors import ConfigError
from vitrail.runtime.machine import usual_workers

if TYPE_CHECKING:
    from vitrail.data.source import Source
    from vitrail.train.choose import Choice
    from vitrail.train.task import Task

Kind = Literal["pretrain", "finetune", "transfer", "vtab"]
PIXELS = "ViT-Ti/1"  # whose patches are pixels
SMALL = 10_000_000  # parameters under which a checkpoint is not one of the paper's
Number = TypeVar("Number", int, float)

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
Batch = Annotated[int | None, typer.Option(help="Images an update, on all processes together.")]
Workers = Annotated[int | None, typer.Option(help="Processes that decode images.", show_default="by the machine")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda.", show_default="a GPU where there is one")]
Precision = Annotated[str | None, typer.Option(help="float32 or bfloat16.", show_default="bfloat16 on a GPU")]
Compile = Annotated[str | None, typer.Option("--compile", help="on or off.", show_default="on with a GPU")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Such as rate=3e-4, image_size=384, mixup=0.2, model.depth=6."),
]
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


def read_all(asked: Asked) -> tuple[dict[str, Any], list[str]]:
    """Read settings of the model, and leave those of the training for when its recipe is known."""
    from vitrail.train.task import is_checkpoint

    ours = [text.removeprefix("model.") for text in asked.settings if text.startswith("model.")]
    others = [text for text in asked.settings if not text.startswith("model.")]
    _check_readable(asked.recipe, others)
    if "steps" in asked.flags and "epochs" in asked.flags:
        raise ConfigError("a run's length is given twice: --steps and --epochs. Give one.")
    if "classes" in names_of([*ours, *others]):
        raise ConfigError("the data decides the number of classes. Leave classes out.")
    for flag in asked.flags:
        if flag in names_of(others):
            raise ConfigError(f"{flag} is given twice: --{flag} and --set {flag}. Give it once.")
    if asked.model is None or is_checkpoint(asked.model):
        from vitrail.checkpoint import read_fields

        return read_fields(ours), others
    return read_settings(*row(asked.model), ours), others


def settle(asked: Asked, splits: "Mapping[str, Source]", *, later: Sequence[str] = ()) -> "Choice":
    """Choose a recipe and a model where they are not said; no reason is given for fields that are settled later."""
    from vitrail.data.sources.remote import RemoteShards
    from vitrail.ops.cost.counts import parameters
    from vitrail.train.choose import Choice, choose, middle_side
    from vitrail.train.task import known_model, training_split

    whole = training_split(splits)
    if isinstance(whole, RemoteShards) and (asked.recipe is None or not asked.flags.get("steps")):
        raise ConfigError("of a stream nothing is known ahead. Say --model, --recipe and --steps.")
    learned = objective_of(asked)
    if learned == "next-pixel" and asked.model is None:
        asked = replace(asked, model=PIXELS)
    if asked.recipe is None:
        own = ("image_size",) if learned == "next-pixel" else ()
        known = None if asked.model is None else known_model(asked.model, said_of_model(asked))
        found = choose(
            whole,
            asked.model,
            pretrained=known is not None and asked.kind != "pretrain",
            has_val=bool(splits.keys() & {"val", "dev"}),
            resnet=isinstance(known, BiTConfig),
            small=asked.kind == "finetune" and known is not None and parameters(known).total < SMALL,
            given={mean(Training, {}, name) for name in (*asked.flags, *names_of(asked.settings), *later, *own)},
        )
        small = learned == "next-pixel" and "image_size" not in names_of(asked.settings)
        return found if learned == "labels" else plain_images(found, small=small)
    if asked.model is None:
        raise ConfigError(
            f"--recipe {asked.recipe} needs a model. Say --model, a name such as ViT-B/16 or a checkpoint."
        )
    rule = asked.recipe == "bit/hyperrule"
    found = recipe(asked.recipe, examples=len(whole), side=middle_side(whole)) if rule else recipe(asked.recipe)
    dev = {"validation_share": 0.0} if isinstance(whole, RemoteShards) else {}
    return Choice(
        model=asked.model,
        training=adjust(found.training, dev),
        reasons=(f"the recipe {asked.recipe}: {found.source}",),
        rates=found.rates,
    )


def said_of_model(asked: Asked) -> dict[str, Any]:
    """Give what was said of the model itself, and the size of its images."""
    changes, settings = read_all(asked)
    sizes = [text for text in settings if text.partition("=")[0].strip() == "image_size"]
    return changes | _parsed(recipe("scratch").training, sizes)


def objective_of(asked: Asked) -> str:
    """Give the word for what is learned, as it is said or as the recipe has it."""
    said = [text.partition("=") for text in asked.settings]
    usual = encode(recipe(asked.recipe or "scratch", examples=1).training.objective)["kind"]
    return next((word.strip() for name, _, word in reversed(said) if name.strip() == "objective"), usual)


def needs_labels(asked: Asked) -> bool:
    """Tell whether the labels of the images are what is learned."""
    return objective_of(asked) == "labels"


def plain_images(choice: "Choice", *, small: bool) -> "Choice":
    """Leave out what changes images where they are what is to be predicted; `small` where each pixel is a token."""
    changes: dict[str, object] = {"label_smoothing": 0.0, "augmentation": Augmentation(crop_area=(0.3, 1.0))}
    reasons = [*choice.reasons, "but flips and crops alone, and no labels"]
    if small:
        changes["image_size"] = (32, 32)
        reasons.append("32 x 32 pixels, each a token of a model that is causal")
    return replace(choice, training=adjust(choice.training, changes), reasons=tuple(reasons))


def task_of(
    asked: Asked,
    choice: "Choice",
    splits: "Mapping[str, Source]",
    *,
    workers: int | None,
    device: str | None,
    tensorboard: bool = False,
) -> "Task":
    """Make the run that was asked for, with what was chosen for it."""
    from vitrail.train.task import Task

    changes, settings = read_all(asked)
    return Task(
        command=shlex.join(["vitrail", *sys.argv[1:]]),
        data=asked.data,
        splits=splits,
        model=choice.model,
        training=adjust(choice.training, {**_parsed(choice.training, settings), **asked.flags}),
        out=Path(asked.out).expanduser() if asked.out else Path("runs") / _slug(asked),
        changes={**choice.changes, **changes},
        workers=usual_workers(gpu=has_gpu(device)) if workers is None else workers,
        device=device,
        tensorboard=tensorboard,
    )


def names_of(settings: Sequence[str]) -> set[str]:
    """Give the fields that settings name."""
    return {text.partition("=")[0].strip() for text in settings}


def _check_readable(name: str | None, settings: list[str]) -> None:
    """Refuse settings that the recipe cannot have; where it is chosen later, those that none of the usual ones has."""
    refused: list[ConfigError] = []
    usual = ("scratch", "finetune/imagenet") if name is None else (name,)
    for each in usual:
        try:
            _parsed(recipe(each, examples=1).training, settings)
        except ConfigError as error:
            refused.append(error)
    if len(refused) == len(usual):
        raise refused[0]


def _parsed(training: Training, settings: list[str]) -> dict[str, object]:
    return read_settings(Training, values_of(training), settings)


def _slug(asked: Asked) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "-", Path(asked.data).name or asked.data).strip("-").lower()
    return f"{asked.kind}-{name or 'data'}"


def has_gpu(device: str | None) -> bool:
    """Tell whether a GPU is meant."""
    import torch

    return torch.cuda.is_available() if device is None else device.startswith("cuda")


def read_numbers(name: str, text: str, kind: type[Number]) -> tuple[Number, ...]:
    """Read numbers with commas between them."""
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--{name} must be numbers with commas between them; got {text!r}.") from error


def refuse_settings(asked: Asked, reasons: Mapping[str, str]) -> None:
    """Refuse settings of what the command itself decides, each with what to do instead."""
    for name in names_of(asked.settings):
        if (reason := reasons.get(name.rpartition(".")[2])) is not None:
            raise ConfigError(f"--set {name} is not taken here: {reason}")
    if (learned := objective_of(asked)) != "labels":
        raise ConfigError(
            f"accuracy is measured here, so labels are what is learned; got objective {learned}. "
            f"Pre-train with vitrail pretrain --objective {learned}, and give that run as --model."
        )


def program() -> str:
    """Say how the program is called where it is not on the path."""
    called = sys.argv[0]
    return "vitrail" if Path(called).stem != "vitrail" or shutil.which("vitrail") else called


def same_again() -> str:
    """Say that the same command goes on."""
    return f"The same command goes on: {harmless(shlex.join([program(), *sys.argv[1:]]))}"


@contextmanager
def going_on() -> Iterator[None]:
    """End with 130 where a command of several runs is interrupted, and say that the same one goes on."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print(harmless(str(interrupt) or "interrupted."), markup=False)
        console.print(same_again(), markup=False)
        raise typer.Exit(130) from interrupt
