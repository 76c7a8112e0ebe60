"""`vitrail evaluate`: how good a model is on labeled images, where it errs, and whether another one is better."""

from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.data import Pipe, Where
from vitrail.cli.describe import Json
from vitrail.cli.measuring import (
    Batch,
    Checkpoint,
    Device,
    Fresh,
    Limit,
    Out,
    Precision,
    Quiet,
    Size,
    Split,
    Workers,
)
from vitrail.cli.render import is_main, said_command, show
from vitrail.runtime.reporter import harmless

Against = Annotated[str | None, typer.Option(metavar="RUN", help="Compare with this other model, on the same images.")]
Labels = Annotated[
    str | None,
    typer.Option(metavar="JSON", help="Take the labels of each image from this file, such as ReaL's, not the data's."),
]
Mapped = Annotated[
    str | None,
    typer.Option(
        "--mapping", metavar="JSON", help="Which of the model's classes each of the data's is, such as ObjectNet's."
    ),
]
Page = Annotated[
    str | None,
    typer.Option("--report", metavar="FOLDER", help="Also write a page of the worst mistakes and their attention."),
]
Worst = Annotated[int, typer.Option(help="How many wrong answers to list, the most confident first.")]


def evaluate(
    run: Checkpoint,
    data: Where,
    split: Split = None,
    against: Against = None,
    labels: Labels = None,
    mapping: Mapped = None,
    worst: Worst = 10,
    image_size: Size = None,
    out: Out = None,
    page: Page = None,
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
    """Measure accuracy on labeled images, and show where a model errs.

    Every image counts once. Data without a test or val split: the images that the run kept back from training are
    taken; `--split` takes them all. `--out` writes evaluation.json and predictions.csv; `--report` also writes the page
    of `vitrail inspect` for the most confident mistakes. Outputs are cached, so that the same again takes seconds.
    """
    from vitrail import evaluate as run_evaluate
    from vitrail.runtime.reporter import reporting

    with reporting(quiet=quiet) as report:
        found = run_evaluate(
            run,
            data,
            split=split,
            against=against,
            labels=labels,
            mapping=mapping,
            worst=worst,
            image_size=image_size,
            out=out,
            page=page,
            batch_size=batch,
            workers=workers,
            device=device,
            precision=precision,
            bad_image_limit=limit,
            fresh=fresh,
            allow_pipe=allow_pipe,
            command=said_command(),
            report=report,
        )
    show(found, as_json=as_json)
    if out is not None and not as_json and is_main():
        typer.echo(f"evaluation.json and predictions.csv are in {harmless(out)}")
    if page is not None and not as_json and is_main():
        typer.echo(f"page: {harmless(str(Path(page) / 'report.html'))}")
