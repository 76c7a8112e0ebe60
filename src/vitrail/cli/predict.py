"""`vitrail predict`: what a model says of images, as a table, JSON or CSV, and its features as a file."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.app import call, read_flags
from vitrail.cli.options import (
    Aspect,
    Batch,
    Device,
    Engine,
    Fresh,
    Json,
    Merging,
    Precision,
    Quiet,
    Said,
    Windows,
    Workers,
    argument,
    option,
    preparing,
    with_options_of,
)
from vitrail.cli.render import is_main, say, show_error
from vitrail.config.given import check_usage
from vitrail.errors import ConfigError, DataError

if TYPE_CHECKING:
    from vitrail.verbs.predictions import Predictions

Checkpoint = Annotated[str, argument("CHECKPOINT", "A run folder, a file of weights, or a name such as vitrail-ti8.")]
Images = Annotated[list[str], argument("IMAGES", "Files, folders, 'globs', data sets; - reads paths, one a line.")]
Top = Annotated[int, option("Classes to give for each image.", metavar="K")]
Csv = Annotated[str | None, option("Write the answers there; - is standard output.", "--csv", metavar="FILE")]
Embed = Annotated[
    str | None, option("Write features, .npy (N x D) or .parquet (with names), instead of the table.", metavar="FILE")
]
Out = Annotated[
    str | None,
    option("Write masks (indexed PNG), overlays and predictions.json there, of a model that segments or detects."),
]
Score = Annotated[float, option("How sure an object must be, from 0 to 1, of a model that detects.", metavar="SHARE")]
Size = Annotated[str | None, option("Of the images.", metavar="SIDE|HxW", default="the model's own")]
OF_ANSWERS = ("top", "score", "windows")  # what features have none of


@with_options_of(preparing)
def predict(
    model: Checkpoint,
    images: Images,
    top: Top = 5,
    csv: Csv = None,
    embed: Embed = None,
    out: Out = None,
    score: Score = 0.5,
    windows: Windows = False,
    image_size: Size = None,
    keep_aspect_ratio: Aspect = False,
    token_merging: Merging = None,
    batch_size: Batch = None,
    workers: Workers = None,
    device: Device = None,
    precision: Precision = "float32",
    engine: Engine = "auto",
    fresh: Fresh = False,
    settings: Said = None,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Classify images: for each the most probable classes; or their masks, or the boxes of their objects.

    Folders are read with all the folders in them. An image that cannot be
    read is named on standard error and left out; the exit status is then 1,
    and the answers for all others are given. Files are written at the end.
    Stopped among many images, the same command goes on where it was.

    Examples:
      vitrail predict vitrail-ti8 cat.jpg

      vitrail predict runs/pets photos/ --top 3 --csv answers.csv

      find photos -name '*.jpg' | vitrail predict runs/pets - --json

      vitrail predict ViT-B_16.npz photos/ --embed features.parquet

      vitrail predict runs/cells photos/ --out found/
    """
    if as_json and csv == "-":
        raise ConfigError("--json and --csv - both want standard output. Give --csv a file, or leave one of them out.")
    given = {name: value for name, value in locals().items() if name not in ("csv", "embed", "out")}
    check_usage("predict", read_flags(given))
    from vitrail.verbs.dense import task_of
    from vitrail.verbs.dense_predict import DensePredictions
    from vitrail.verbs.predictions import FEATURES, Embeddings, check_file, save_features
    from vitrail.verbs.together import embeddings, predict

    task = task_of(model)
    if task is None and out is not None:
        raise ConfigError("--out is of models that segment or detect; this one classifies. Take --csv or --embed.")
    if task is not None and csv is not None:
        raise ConfigError(f"--csv is of classes of images; the model was trained to {task}. Take --out or --json.")
    if csv not in (None, "-") and is_main():
        check_file(csv)
    if embed is not None and is_main():
        check_file(embed, FEATURES)
    given["images"] = [*read_paths(images)] if is_main() else list(images)  # all take the first one's
    if not given["images"]:
        raise DataError("there are no paths on standard input. Write the paths of images there, one a line.")
    if embed is not None and csv is None and not as_json:
        found = call(embeddings, {name: value for name, value in given.items() if name not in OF_ANSWERS})
    else:
        found = call(predict, {**given, "features": embed is not None})
    if not is_main():
        return
    if embed is not None:
        save_features(embed, found)
    if isinstance(found, Embeddings):
        say(f"{len(found.names):,} images, {found.features.shape[1]:,} features each: {embed}")
    elif isinstance(found, DensePredictions):
        made = [] if out is None else found.save(out)
        lines = [json.dumps({"model": model, **found.document()}, indent=2)] if as_json else found.table()
        for line in lines:
            say(line)
        if made and not as_json:
            say(f"{len(made):,} files: {out}")
    else:
        show(found, model, csv, as_json=as_json)
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
        say(json.dumps({"model": checkpoint, **found.document()}, indent=2))
    elif csv == "-":
        typer.echo(found.csv(), nl=False)  # bytes
    else:
        for line in found.table():
            say(line)


def read_paths(images: Sequence[str]) -> Iterator[str]:
    """Give the paths that are named, and in place of - those of standard input, one a line (or each ended by NUL)."""
    for image in images:
        if image != "-":
            yield image
            continue
        data = sys.stdin.buffer.read()
        lines = data.split(b"\0") if b"\0" in data else data.splitlines()
        yield from (os.fsdecode(line) for line in lines if line.strip())
