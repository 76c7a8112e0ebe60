"""`vitrail plan`: parameters, operations and memory of a model, and the cost of a run, without running anything."""

import json
from typing import Annotated

from vitrail.cli.app import call
from vitrail.cli.options import Json, argument, option
from vitrail.cli.render import say
from vitrail.errors import ConfigError

Models = Annotated[list[str], argument("MODEL...", "Names such as ViT-B/16 or BiT-R50x1.")]
Compare = Annotated[bool, option("Put several models side by side.", "--compare")]
ImageSize = Annotated[str | None, option("Image size in pixels.", metavar="SIDE|HxW", default="the model's, 224")]
Batch = Annotated[int, option("Images in a training step.", "--batch", "--batch-size")]
Epochs = Annotated[float | None, option("Passes over the data, for the cost of a run.")]
Images = Annotated[float | None, option("Images in the data, such as 1.28e6, for the cost of a run.")]
Precision = Annotated[str, option("float32, or bfloat16 under autocast.")]
Optimizer = Annotated[str, option("adam, or sgd with momentum.")]
Device = Annotated[str, option("Where the step runs, for its memory: cuda or cpu.")]
Settings = Annotated[
    list[str] | None, option("Change a field, such as depth=6 or patch=8.", "--set", metavar="FIELD=VALUE")
]


def plan(
    models: Models,
    compare: Compare = False,
    image_size: ImageSize = None,
    batch_size: Batch = 64,
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
    if len(models) > 1 and not compare:
        raise ConfigError(f"got {len(models)} models. Give one, or put them side by side with --compare.")
    given = {name: value for name, value in locals().items() if name not in ("models", "compare")}
    plans = [call("plan", {**given, "model": model}) for model in models]
    if as_json:
        documents = [made.document() for made in plans]
        say(json.dumps(documents if compare else documents[0], indent=2))
    else:
        from vitrail.verbs.plan import side_by_side

        say(side_by_side(plans))
