"""`vitrail transfer`: the paper's protocol of fine-tuning, from the grid of rates to the mean over seeds."""

from typing import Annotated

import typer

from vitrail.cli import asking
from vitrail.cli.asking import going_on, read_numbers
from vitrail.cli.data import Pipe, Where
from vitrail.cli.describe import Json
from vitrail.cli.render import said_command, show

Model = Annotated[
    str, typer.Option(metavar="FILE|NAME", help="A checkpoint; or a name such as ViT-B/16, for a fresh model.")
]
Recipe = Annotated[
    str | None,
    typer.Option("--recipe", metavar="NAME", help="Such as finetune/pets.", show_default="by the number of images"),
]
Rates = Annotated[
    str | None,
    typer.Option(
        metavar="RATE,...", help="Learning rates to choose from.", show_default="the recipe's, those of Table 4"
    ),
]
Seeds = Annotated[str, typer.Option(metavar="SEED,...", help="Seeds of the final runs, one run for each.")]
Out = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="The folder of all runs.", show_default="runs/transfer- and the data"),
]


def transfer(
    data: Where,
    model: Model,
    recipe: Recipe = None,
    rates: Rates = None,
    seeds: Seeds = "0,1,2",
    out: Out = None,
    steps: asking.Steps = None,
    batch: asking.Batch = None,
    settings: asking.Settings = None,
    workers: asking.Workers = None,
    device: asking.Device = None,
    precision: asking.Precision = None,
    compiles: asking.Compile = None,
    allow_pipe: Pipe = False,
    quiet: asking.Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune as Table 4: choose the rate on images kept back, train on all of them, report the test images.

    The mean and deviation are over the seeds. The same command again resumes where it stopped.
    """
    from vitrail.verbs.transfer import transfer as run

    with going_on():
        found = run(
            data,
            model=model,
            recipe=recipe,
            rates=None if rates is None else read_numbers("rates", rates, float),
            seeds=read_numbers("seeds", seeds, int),
            out=out,
            settings=settings or (),
            workers=workers,
            device=device,
            allow_pipe=allow_pipe,
            quiet=quiet,
            command=said_command(),
            steps=steps,
            batch_size=batch,
            precision=precision,
            compile=compiles,
        )
    show(found, as_json=as_json)
