"""`vitrail data`: what is wrong with data, and data as arrays."""

from typing import Annotated

import typer

from vitrail.cli.app import answer
from vitrail.cli.options import Data, Json, Limit, Pipe, Quiet, argument, option
from vitrail.cli.render import say

Out = Annotated[str, argument("OUT", "The folder to write.")]
Sheet = Annotated[
    str | None, option("Also write a picture of a few images of each class, to this file.", metavar="PNG")
]
Split = Annotated[str | None, option("The split to pack.", default="all of them, each in a folder of its own")]
ImageSize = Annotated[str, option("Size of the packed images, in pixels.", metavar="SIDE|HxW")]
Channels = Annotated[int, option("3 for color, 1 for gray.")]
Overwrite = Annotated[bool, option("Replace OUT where it is a packed folder.", "--overwrite")]
Mirrored = Annotated[bool, option("Also find copies that were mirrored.", "--mirrored")]
Task = Annotated[
    str | None,
    option(
        "multilabel, regression or ordinal: read what training would; segment or detect: look at masks, or at boxes.",
        metavar="WORD",
        default="by what the data holds",
    ),
]
Columns = Annotated[
    str, option("Of a table: its labels (0 and 1) or numbers.", metavar="NAME,...", default="usual names")
]
Order = Annotated[str, option("Of classes, lowest first.", metavar="NAME,...", default="by their numbers")]
Empty = Annotated[bool, option("Images without any label have none of them.", "--allow-empty")]
Unlabeled = Annotated[bool, option("Also read images without a label.", "--unlabeled")]


def check(
    data: Data,
    sheet: Sheet = None,
    mirrored: Mirrored = False,
    unlabeled: Unlabeled = False,
    task: Task = None,
    columns: Columns = "",
    order: Order = "",
    allow_empty: Empty = False,
    allow_pipe: Pipe = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find what cannot be decoded, copies and near-copies, leaks between splits, misnamed files, odd sizes, imbalance.

    Of images with masks or boxes also what is wrong with these: sizes, numbers, empty boxes and boxes outside.

    The exit status is 1 where something would spoil a run: damage, a copy or near-copy in two splits, two labels.
    """
    found = answer("check_data", locals())
    if sheet is not None and not as_json:
        say(f"contact sheet: {sheet}")
    if not found.is_clean:
        raise typer.Exit(1)


def pack(
    data: Data,
    out: Out,
    image_size: ImageSize = "64",
    split: Split = None,
    channels: Channels = 3,
    bad_image_limit: Limit = 0.01,
    overwrite: Overwrite = False,
    unlabeled: Unlabeled = False,
    allow_pipe: Pipe = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write any data as arrays of one size, which are mapped and not read: the fastest way to train on small images."""
    answer("pack_data", locals())
