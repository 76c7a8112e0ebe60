"""`vitrail plan`: parameters, operations and memory of a model, and the cost of a run, without running anything."""

import json
from typing import Annotated, Any

import typer

from vitrail.cli.describe import Json
from vitrail.cli.sizes import read_size
from vitrail.config import read_settings, row
from vitrail.errors import ConfigError

Models = Annotated[list[str], typer.Argument(metavar="MODEL...", help="Names such as ViT-B/16 or BiT-R50x1.")]
Compare = Annotated[bool, typer.Option("--compare", help="Put several models side by side.")]
ImageSize = Annotated[
    str | None, typer.Option(metavar="SIDE|HxW", help="Image size in pixels.", show_default="the model's, 224")
]
Batch = Annotated[int, typer.Option("--batch", "--batch-size", help="Images in a training step.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the data, for the cost of a run.")]
Images = Annotated[float | None, typer.Option(help="Images in the data, such as 1.28e6, for the cost of a run.")]
Precision = Annotated[str, typer.Option(help="float32, or bfloat16 under autocast.")]
Optimizer = Annotated[str, typer.Option(help="adam, or sgd with momentum.")]
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
    from vitrail.verbs.plan import plan as run
    from vitrail.verbs.plan import side_by_side

    if len(models) > 1 and not compare:
        raise ConfigError(f"got {len(models)} models. Give one, or put them side by side with --compare.")
    plans = []
    for name in models:
        fields: dict[str, Any] = read_settings(*row(name), settings or [])
        if image_size is not None:
            if "image_size" in fields:
                raise ConfigError("the image size is given twice: --image-size and --set image_size. Give it once.")
            fields["image_size"] = read_size(image_size)
        step: dict[str, Any] = {"batch_size": batch, "precision": precision, "optimizer": optimizer, "device": device}
        plans.append(run(name, images=images, epochs=epochs, **step, **fields))
    if as_json:
        documents = [made.document() for made in plans]
        typer.echo(json.dumps(documents if compare else documents[0], indent=2))
    else:
        typer.echo(side_by_side(plans))
