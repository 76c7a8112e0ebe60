"""`vitrail plan`: parameters, operations and memory of a model, and the cost of a run, without running anything."""

import json
from math import isfinite
from typing import Annotated, get_args

import typer
from rich.console import Console

from vitrail.cli.describe import Json
from vitrail.cli.render import plain_table
from vitrail.cli.sizes import read_size
from vitrail.config import parse, read_settings, row, whole
from vitrail.config.check import LARGEST, one_of, positive
from vitrail.errors import ConfigError

Models = Annotated[list[str], typer.Argument(metavar="MODEL...", help="Names such as ViT-B/16 or BiT-R50x1.")]
Compare = Annotated[bool, typer.Option("--compare", help="Put several models side by side.")]
ImageSize = Annotated[str | None, typer.Option(metavar="SIDE|HxW", help="Pixels.", show_default="the model's, 224")]
Batch = Annotated[int, typer.Option(help="Images a step.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the data, for the cost of a run.")]
Images = Annotated[float | None, typer.Option(help="Images in the data, such as 1.28e6.")]
Precision = Annotated[str, typer.Option(help="float32, or bfloat16 under autocast.")]
Optimizer = Annotated[str, typer.Option(help="adam or sgd, with momentum.")]
Device = Annotated[str, typer.Option(help="Where the step runs, for its memory: cuda or cpu.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a field, such as depth=6 or patch=8.")
]


def plan(
    models: Models,
    compare: Compare = False,
    image_size: ImageSize = None,
    batch: Batch = 64,
    epochs: Epochs = None,
    images: Images = None,
    precision: Precision = "bfloat16",
    optimizer: Optimizer = "adam",
    device: Device = "cuda",
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Count parameters, operations and memory of a model, and what a run would cost; nothing is run.

    With --images and --epochs the run is counted too, also in the exaFLOPs of the paper's Table 6.
    """
    from vitrail.ops.cost import memory
    from vitrail.ops.cost.plan import CostPlan, make_plan

    if len(models) > 1 and not compare:
        raise ConfigError(f"got {len(models)} models. Give one, or put them side by side with --compare.")
    if (epochs is None) != (images is None):
        raise ConfigError("a run needs both --images and --epochs; got one of them.")
    one_of("--precision", precision, get_args(memory.Precision))
    one_of("--optimizer", optimizer, get_args(memory.Optimizer))
    one_of("--device", device, get_args(memory.Device))
    step = memory.Step(
        kind="train",
        batch=whole("--batch", batch),
        precision=precision,  # pyright: ignore[reportArgumentType]
        optimizer=optimizer,  # pyright: ignore[reportArgumentType]
        device=device,  # pyright: ignore[reportArgumentType]
    )
    count = None if images is None else whole("--images", _rounded(images), most=10**15)
    passes = None if epochs is None else positive("--epochs", epochs)
    if passes is not None and passes > LARGEST:
        raise ConfigError(f"--epochs must be at most {LARGEST}; got {epochs}.")
    plans: list[CostPlan] = []
    for name in models:
        changes = read_settings(*row(name), settings or [])
        if image_size is not None:
            if "image_size" in changes:
                raise ConfigError("the image size is given twice: --image-size and --set image_size. Give it once.")
            changes["image_size"] = read_size(image_size)
        plans.append(make_plan(name, parse(name, changes), step, images=count, epochs=passes))
    if as_json:
        documents = [made.document() for made in plans]
        typer.echo(json.dumps(documents if compare else documents[0], indent=2))
        return
    title = f"Counted, not run: an image, and a step of {batch} in {precision} with {optimizer} on {device}"
    table = plain_table("", *models, title=title, numbers=len(models))
    columns = [made.lines() for made in plans]
    for section, label in columns[0]:
        values = [column[section, label] for column in columns]
        if any(values):
            table.add_row(f"  {label}" if label else section, *values)
    console = Console()
    console.print(table)
    for made in plans:
        if made.pair_share > 0.5:
            console.print(
                f"{made.name}: {made.pair_share:.0%} of the work is token against token, {made.tokens:,} by "
                f"{made.tokens:,}. A patch twice as large has a sixteenth of it.",
                highlight=False,
            )


def _rounded(value: float) -> float:
    """Read 1.28e6 as the whole number that it is; a fraction stays one, and is refused."""
    return int(value) if isfinite(value) and value == int(value) else value
