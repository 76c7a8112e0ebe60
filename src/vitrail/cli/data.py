"""`vitrail data`: what is wrong with a data set, and data sets as arrays."""

from typing import Annotated

import typer

from vitrail.cli.asking import Quiet
from vitrail.cli.describe import Json
from vitrail.cli.render import show
from vitrail.cli.sizes import read_size
from vitrail.runtime.reporter import harmless

Where = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A folder of classes, .csv, .jsonl, .parquet, .tar, packed, sample, synthetic."
    ),
]
Out = Annotated[str, typer.Argument(metavar="OUT", help="The folder to write.")]
Sheet = Annotated[
    str | None, typer.Option(metavar="PNG", help="Also write a picture of a few images of each class, to this file.")
]
Split = Annotated[
    str | None,
    typer.Option(help="The split to pack.", show_default="all of them, each in a folder of its own"),
]
ImageSize = Annotated[str, typer.Option(metavar="SIDE|HxW", help="Size of the packed images, in pixels.")]
Channels = Annotated[int, typer.Option(help="3 for color, 1 for gray.")]
Limit = Annotated[
    float,
    typer.Option(
        "--bad-image-limit",
        "--limit",
        metavar="SHARE",
        help="Stop where more than this share of the images, from 0 to 1, cannot be decoded.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace OUT where it is a packed folder.")]
Unlabeled = Annotated[bool, typer.Option("--unlabeled", help="Also read images without a label.")]
Pipe = Annotated[bool, typer.Option("--allow-pipe", help="Allow a pipe: source to run its command.")]


def check(
    source: Where,
    sheet: Sheet = None,
    unlabeled: Unlabeled = False,
    allow_pipe: Pipe = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find what cannot be decoded, duplicates, leaks between splits, misnamed files, odd sizes and imbalance.

    The exit status is 1 where something would spoil a run: damage, a leak, or one image with two labels.
    """
    from vitrail.runtime.reporter import reporting
    from vitrail.verbs.data import check_data

    with reporting(quiet=quiet) as report:
        found = check_data(source, sheet=sheet, unlabeled=unlabeled, allow_pipe=allow_pipe, report=report)
    show(found, as_json=as_json)
    if sheet is not None and not as_json:
        typer.echo(f"contact sheet: {harmless(sheet)}")
    if not found.is_clean:
        raise typer.Exit(1)


def pack(
    source: Where,
    out: Out,
    image_size: ImageSize = "64",
    split: Split = None,
    channels: Channels = 3,
    limit: Limit = 0.01,
    overwrite: Overwrite = False,
    unlabeled: Unlabeled = False,
    allow_pipe: Pipe = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write any data as arrays of one size, which are mapped and not read: the fastest way to train on small images."""
    from vitrail.runtime.reporter import reporting
    from vitrail.verbs.data import pack_data

    with reporting(quiet=quiet) as report:
        made = pack_data(
            source,
            out,
            image_size=read_size(image_size),
            split=split,
            channels=channels,
            bad_image_limit=limit,
            overwrite=overwrite,
            unlabeled=unlabeled,
            allow_pipe=allow_pipe,
            report=report,
        )
    show(made, as_json=as_json)
