"""`vitrail plan`: what a model and a run would cost, counted; timed only where a probe is asked for."""

import json
from typing import Annotated

from vitrail.cli.app import call
from vitrail.cli.options import Json, argument, option
from vitrail.cli.render import say, show
from vitrail.errors import ConfigError

Models = Annotated[
    list[str] | None, argument("[MODEL]...", "Names such as ViT-B/16 or BiT-R50x1; none with --shape or --fit.")
]
Compare = Annotated[bool, option("Put several models side by side.", "--compare")]
Recipe = Annotated[
    str | None, option("Train as a recipe says, such as i1k, jft/ViT-L/16, finetune/pets.", metavar="NAME")
]
ImageSize = Annotated[str | None, option("Image size in pixels.", metavar="SIDE|HxW", default="the model's, 224")]
Batch = Annotated[
    int | None,
    option("Images in a training step, of all devices.", "--batch", "--batch-size", default="the recipe's, else 64"),
]
Epochs = Annotated[float | None, option("Passes over the data, for the cost of a run.", default="the recipe's")]
Images = Annotated[
    float | None,
    option("Images in the data, such as 1.28e6, for the cost of a run.", default="those of i1k, i21k, jft"),
]
Steps = Annotated[int | None, option("Updates of the weights, instead of --epochs.", default="the recipe's")]
Precision = Annotated[str | None, option("float32, or bfloat16 under autocast.", default="bfloat16")]
Optimizer = Annotated[
    str | None,
    option("adam, sgd with momentum, or muon (adam beside the blocks' matrices).", default="the recipe's, else adam"),
]
Device = Annotated[
    str | None, option("Where the step runs, for its memory and for --probe: cuda or cpu.", default="cuda")
]
On = Annotated[
    str | None,
    option(
        "What fits a device of the table, micro-batch, time, energy: H200, H100, A100, L4, T4, RTX-4090, TPUv3, ...",
        metavar="DEVICE",
    ),
]
Utilization = Annotated[
    float | None,
    option("The share of its peak that training reaches.", metavar="SHARE", default="0.38, as measured on an H200"),
]
Probe = Annotated[bool, option("Take a few training steps here, of seconds, and plan by their pace.", "--probe")]
Price = Annotated[float | None, option("Of one device for an hour, such as 2.50: what the run costs.")]
Nodes = Annotated[int | None, option("Machines: memory and traffic of DDP and FSDP on all of them.")]
Gpus = Annotated[int | None, option("Devices of each.", default="8")]
Bandwidth = Annotated[
    float | None,
    option("GB/s that a device sends.", metavar="GB/S", default="50 between nodes, else the device's link"),
]
Shape = Annotated[
    float | None,
    option("Propose depth, width and MLP for so many FLOPs of training, such as 1e21.", metavar="FLOPS"),
]
Fit = Annotated[str | None, option("List the models that fit into a memory, such as 24GB, and how.", metavar="MEMORY")]
Settings = Annotated[
    list[str] | None, option("Change a field, such as depth=6 or patch=8.", "--set", metavar="FIELD=VALUE")
]


def plan(
    models: Models = None,
    compare: Compare = False,
    recipe: Recipe = None,
    image_size: ImageSize = None,
    batch_size: Batch = None,
    epochs: Epochs = None,
    images: Images = None,
    steps: Steps = None,
    precision: Precision = None,
    optimizer: Optimizer = None,
    device: Device = None,
    on: On = None,
    utilization: Utilization = None,
    probe: Probe = False,
    price: Price = None,
    nodes: Nodes = None,
    gpus_per_node: Gpus = None,
    bandwidth: Bandwidth = None,
    shape: Shape = None,
    fit: Fit = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Count parameters, operations and memory of a model, and what a run would cost; nothing is run but a probe.

    With --images and --epochs, or a --recipe, the run is counted too, in the exaFLOPs and TPUv3-core-days of the paper.
    --on H200 --price 2.50 says how long it takes there and what that costs, --probe how long it takes here.
    """
    models = models or []
    if len(models) > 1 and not compare:
        raise ConfigError(f"got {len(models)} models. Give one, or put them side by side with --compare.")
    given = {name: value for name, value in locals().items() if name not in ("models", "compare")}
    plans = [call("plan", {**given, "model": model}) for model in models or [None]]
    if fit is not None and len(plans) == 1:
        show(plans[0], as_json=as_json)
    elif as_json:
        documents = [made.document() for made in plans]
        say(json.dumps(documents if compare else documents[0], indent=2))
    elif fit is not None:
        say("\n\n".join(map(str, plans)))
    else:
        from vitrail.verbs.plan import side_by_side

        say(side_by_side(plans))
