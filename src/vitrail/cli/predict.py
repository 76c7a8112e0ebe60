"""`vitrail predict`: what a model says of images, as a table, JSON or CSV, and its features as a file."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.describe import Json
from vitrail.cli.measuring import Device, Precision, Quiet, Workers
from vitrail.cli.render import show_error
from vitrail.cli.sizes import read_size
from vitrail.errors import ConfigError
from vitrail.runtime.reporter import harmless, reporting

if TYPE_CHECKING:
    from vitrail.verbs.predictions import Predictions

Checkpoint = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="A run folder, a file of weights, or a name such as vitrail-ti8.")
]
Images = Annotated[
    list[str],
    typer.Argument(metavar="IMAGES", help="Files, folders, 'globs', data sets; - reads paths, one a line."),
]
Top = Annotated[int, typer.Option(metavar="K", help="Classes to give for each image.")]
Csv = Annotated[
    str | None, typer.Option("--csv", metavar="FILE", help="Write the answers there; - is standard output.")
]
Embed = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Write features, .npy (N x D) or .parquet (with names), instead of the table."),
]
Size = Annotated[str | None, typer.Option(metavar="SIDE|HxW", help="Of the images.", show_default="the model's own")]
Batch = Annotated[
    int | None, typer.Option("--batch-size", "--batch", help="Images at once.", show_default="16; 256 on a GPU")
]


def predict(
    checkpoint: Checkpoint,
    images: Images,
    top: Top = 5,
    csv: Csv = None,
    embed: Embed = None,
    image_size: Size = None,
    batch_size: Batch = None,
    workers: Workers = None,
    device: Device = None,
    precision: Precision = "float32",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Classify images: for each the most probable classes.

    Folders are read with all the folders in them. An image that cannot be
    read is named on standard error and left out; the exit status is then 1,
    and the answers for all others are given. Files are written at the end.

    Examples:
      vitrail predict vitrail-ti8 cat.jpg

      vitrail predict runs/pets photos/ --top 3 --csv answers.csv

      find photos -name '*.jpg' | vitrail predict runs/pets - --json

      vitrail predict ViT-B_16.npz photos/ --embed features.parquet
    """
    if as_json and csv == "-":
        raise ConfigError("--json and --csv - both want standard output. Give --csv a file, or leave one of them out.")
    size = None if image_size is None else read_size(image_size)
    from vitrail.verbs import predict as verbs
    from vitrail.verbs.predictions import FEATURES, Embeddings, check_file, save_features

    if csv not in (None, "-"):
        check_file(csv)
    if embed is not None:
        check_file(embed, FEATURES)
    with reporting(quiet=quiet) as report:
        options: dict[str, Any] = {"image_size": size, "batch_size": batch_size, "workers": workers, "device": device}
        options |= {"precision": precision, "report": report}
        paths = [*read_paths(images)]
        if embed is not None and csv is None and not as_json:
            found = verbs.embeddings(checkpoint, paths, **options)
        else:
            found = verbs.predict(checkpoint, paths, top=top, features=embed is not None, **options)
    if embed is not None:
        save_features(embed, found)
    if isinstance(found, Embeddings):
        typer.echo(f"{len(found.names):,} images, {found.features.shape[1]:,} features each: {harmless(str(embed))}")
    else:
        show(found, checkpoint, csv, as_json=as_json)
    for name, reason in found.failed:
        show_error(f"{name}: {reason}")
    if found.failed:
        count = len(found.failed)
        show_error(f"{count:,} of {count + len(found.names):,} images could not be read, and were left out.")
        raise typer.Exit(1)


def show(found: "Predictions", checkpoint: str, csv: str | None, *, as_json: bool) -> None:
    """Write the answers to a file where one is named, and give them on standard output."""
    if csv not in (None, "-"):
        found.save_csv(csv)
    if as_json:
        typer.echo(json.dumps({"model": checkpoint, **found.document()}, indent=2))
    elif csv == "-":
        typer.echo(found.csv(), nl=False)
    else:
        for line in found.table():
            typer.echo(line)


def read_paths(images: Sequence[str]) -> Iterator[str]:
    """Give the paths that are named, and in place of - those of standard input, one a line (or each ended by NUL)."""
    for image in images:
        if image != "-":
            yield image
            continue
        data = sys.stdin.buffer.read()
        lines = data.split(b"\0") if b"\0" in data else data.splitlines()
        yield from (os.fsdecode(line) for line in lines if line.strip())
