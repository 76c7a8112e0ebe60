"""`vitrail vtab`: 19 tasks of 1,000 images, all trained alike, beside the paper's Table 9."""

from typing import Annotated

import typer

from vitrail.cli import asking
from vitrail.cli.asking import going_on, read_numbers
from vitrail.cli.describe import Json
from vitrail.cli.render import said_command, show
from vitrail.cli.transfer import Model

Folder = Annotated[
    str, typer.Argument(metavar="FOLDER", help="A folder that holds a folder for each task: pets/, svhn/, ...")
]
Tasks = Annotated[
    str | None,
    typer.Option(metavar="TASK,...", help="Tasks or groups: natural, specialized, structured.", show_default="all 19"),
]
Seeds = Annotated[str, typer.Option(metavar="SEED,...", help="Seeds; every task is trained once with each.")]
Out = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="The folder of all runs.", show_default="runs/vtab- and the folder")
]
Select = Annotated[
    bool, typer.Option("--select", help="Train on 800 images and measure on 200, without the test images.")
]


def vtab(
    folder: Folder,
    model: Model,
    tasks: Tasks = None,
    seeds: Seeds = "0",
    out: Out = None,
    select: Select = False,
    steps: asking.Steps = None,
    batch: asking.Batch = None,
    settings: asking.Settings = None,
    workers: asking.Workers = None,
    device: asking.Device = None,
    precision: asking.Precision = None,
    compiles: asking.Compile = None,
    quiet: asking.Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune on the tasks of VTAB-1k that FOLDER has, and report accuracies and means beside Table 9's.

    All are trained alike, by the recipe finetune/vtab. The same command again resumes where it stopped.
    """
    from vitrail.verbs.transfer import vtab as run

    with going_on():
        found = run(
            folder,
            model=model,
            tasks=[name.strip() for name in tasks.split(",")] if tasks else (),
            seeds=read_numbers("seeds", seeds, int),
            out=out,
            select=select,
            settings=settings or (),
            workers=workers,
            device=device,
            quiet=quiet,
            command=said_command(),
            steps=steps,
            batch_size=batch,
            precision=precision,
            compile=compiles,
        )
    show(found, as_json=as_json)
