"""`vitrail optimize`: how fast a model is made here, and a model in eight bits as a folder."""

from typing import Annotated, Any

from vitrail.cli.app import call
from vitrail.cli.options import Batch, Checkpoint, Device, Engine, Json, Quiet, Said, option, preparing, with_options_of
from vitrail.cli.render import say, show

Precision = Annotated[
    str,
    option("float32, bfloat16, int8 (CPU), float8 (GPU); auto: exact on a CPU, bfloat16 on a GPU.", metavar="WORD"),
]
Size = Annotated[
    str | None, option("Its own image size: positions are resampled.", metavar="SIDE|HxW", default="the model's own")
]
Calibrate = Annotated[
    str | None, option("Images that eight bits are calibrated on.", metavar="SOURCE", default="the sample in the box")
]
Out = Annotated[str | None, option("The folder of a model in eight bits.", metavar="FOLDER", default="none is written")]
Overwrite = Annotated[bool, option("Replace the folder where it exists.", "--overwrite")]


@with_options_of(preparing)
def optimize(
    model: Checkpoint,
    precision: Precision = "auto",
    image_size: Size = None,
    batch_size: Batch = None,
    calibrate: Calibrate = None,
    engine: Engine = "auto",
    out: Out = None,
    overwrite: Overwrite = False,
    device: Device = None,
    settings: Said = None,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Make a model fast for this machine, say how fast it is, and write it where it is in eight bits.

    Other commands make it fast by themselves where it repays. A folder of eight bits is a model like any:

      vitrail optimize runs/pets

      vitrail optimize runs/pets --precision int8 --calibrate photos/ --out runs/pets-int8

      vitrail evaluate runs/pets-int8 photos/
    """
    found = call("optimize", locals())
    show(found.choice, as_json=as_json)
    if out is not None and not as_json:
        say(f"written to {out}")
