"""`vitrail verify`: how well a model tells people apart whom it was not trained on."""

from typing import Annotated

import typer

from vitrail.cli.data import Pipe, Where
from vitrail.cli.describe import Json
from vitrail.cli.measuring import Batch, Checkpoint, Device, Fresh, Limit, Out, Precision, Quiet, Split, Workers
from vitrail.cli.render import is_main, show

Gallery = Annotated[int, typer.Option(help="How many images of each person the other images are found by.")]
Far = Annotated[float, typer.Option(help="False accept rate: the share of pairs of different people to accept.")]
Everyone = Annotated[bool, typer.Option("--everyone", help="Also measure people whom the model was trained on.")]
Flip = Annotated[bool, typer.Option(help="Add the mirrored image's embedding.")]


def verify(
    run: Checkpoint,
    data: Where,
    split: Split = None,
    gallery: Gallery = 1,
    far: Far = 0.01,
    flip: Flip = True,
    everyone: Everyone = False,
    out: Out = None,
    batch: Batch = None,
    workers: Workers = None,
    device: Device = None,
    precision: Precision = "float32",
    limit: Limit = 0.01,
    fresh: Fresh = False,
    allow_pipe: Pipe = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure how well a model tells whether two images show one person: all pairs, a folder for each person.

    People whose names are among the model's classes were trained on and are left out; `--everyone` measures them too.
    `--out` writes verification.json and roc.csv.
    """
    from vitrail import verify as run_verify
    from vitrail.runtime.reporter import reporting

    with reporting(quiet=quiet) as report:
        found = run_verify(
            run,
            data,
            split=split,
            gallery=gallery,
            far=far,
            flip=flip,
            everyone=everyone,
            out=out,
            batch_size=batch,
            workers=workers,
            device=device,
            precision=precision,
            bad_image_limit=limit,
            fresh=fresh,
            allow_pipe=allow_pipe,
            report=report,
        )
    if quiet and not as_json and is_main():
        typer.echo("\n".join(found.lines(pairs=False)))
    else:
        show(found, as_json=as_json)
