"""`vitrail inspect`: every picture of the paper, of any checkpoint, in a folder and on one page."""

from typing import Annotated

import typer

from vitrail.cli.data import Pipe
from vitrail.cli.describe import Json
from vitrail.cli.measuring import Device, Quiet, Size, Split
from vitrail.cli.render import said_command, show

Checkpoint = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A run folder, or any checkpoint.")]
Images = Annotated[
    str | None,
    typer.Argument(
        metavar="IMAGES",
        help="An image, a folder of images, or any data. Without it, the page shows the weights alone.",
    ),
]
Against = Annotated[str | None, typer.Option(metavar="CHECKPOINT", help="Show this model beside the first.")]
Out = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="The folder to write.", show_default="runs/inspect-NAME")
]
Count = Annotated[int, typer.Option("--images", help="How many images to show, spread over all of them.")]
Search = Annotated[
    int, typer.Option(help="How many labeled images to search for the most confident mistakes; 0 searches none.")
]
Bias = Annotated[
    bool,
    typer.Option("--bias/--no-bias", help="Also move the images, and drop and exchange their patches; takes longer."),
]


def inspect(
    checkpoint: Checkpoint,
    images: Images = None,
    against: Against = None,
    out: Out = None,
    split: Split = None,
    image_size: Size = None,
    count: Count = 16,
    search: Search = 64,
    bias: Bias = True,
    device: Device = None,
    allow_pipe: Pipe = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Look inside a model: filters, positions, attention, mistakes, layers; as figures, numbers and one page.

    The page opens offline: click a patch, choose layer and head. Without images it shows what the weights show.
    """
    from vitrail.runtime.reporter import reporting
    from vitrail.verbs.inspect import inspect as run

    with reporting(quiet=quiet) as report:
        made = run(
            checkpoint,
            images,
            against=against,
            out=out,
            split=split,
            image_size=image_size,
            count=count,
            search=search,
            bias=bias,
            device=device,
            allow_pipe=allow_pipe,
            command=said_command(),
            report=report,
        )
    show(made, as_json=as_json)
    if images is None and not as_json:
        typer.echo("Give images to see what it does with them: vitrail inspect CHECKPOINT IMAGES")
