"""`vitrail vtab`: 19 tasks of 1,000 images, all trained alike, beside the paper's Table 9."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from vitrail.cli.asking import (
    Batch,
    Compile,
    Device,
    Precision,
    Quiet,
    Settings,
    Steps,
    Workers,
    going_on,
    read_numbers,
    typed,
)
from vitrail.cli.describe import Json
from vitrail.cli.render import harmless, plain_table
from vitrail.cli.transfer import Model
from vitrail.config.recipes import recipe
from vitrail.errors import DataError

if TYPE_CHECKING:
    from vitrail.evaluation.vtab import Measured, VtabTask

DECIDED = {
    "seed": "each run has a seed of its own. Give --seeds.",
    "validation_share": "1,000 images are taken, 200 of them kept back with --select. Leave it out.",
}
DOCUMENT, SELECTED = "vtab.json", "select.json"

Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="Of the tasks, a folder each: pets/, svhn/, ...")]
Tasks = Annotated[
    str | None,
    typer.Option(metavar="TASK,...", help="Tasks or groups: natural, specialized, structured.", show_default="all 19"),
]
Seeds = Annotated[str, typer.Option(metavar="SEED,...", help="A run of every task for each.")]
Out = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="Where all runs go.", show_default="runs/vtab- and the folder")
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
    steps: Steps = None,
    batch: Batch = None,
    settings: Settings = None,
    workers: Workers = None,
    device: Device = None,
    precision: Precision = None,
    compiles: Compile = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune on the tasks of VTAB-1k that FOLDER has, and report accuracies and means beside Table 9's.

    All are trained alike, by the recipe finetune/vtab. The same command again goes on where it stopped.
    """
    from vitrail.evaluation.results import write_document
    from vitrail.evaluation.vtab import RECIPE, Plan, choose_tasks, departures, find_tasks
    from vitrail.evaluation.vtab import vtab as carry_out
    from vitrail.evaluation.vtab_means import vtab_document
    from vitrail.runtime.group import is_main_process
    from vitrail.runtime.memory import keep_memory
    from vitrail.runtime.reporter import reporting
    from vitrail.train.request import Choice, make_task, read_request, refuse_fields
    from vitrail.train.task import open_start
    from vitrail.verbs.training import usual_out

    fields = {"steps": steps, "batch_size": batch, "precision": precision, "compile": compiles}
    request = read_request("vtab", folder, model, RECIPE, settings or (), fields)
    refuse_fields(request, DECIDED)
    start, choice = open_start(model), Choice(model=model, training=recipe(RECIPE).training)
    into = Path(out).expanduser() if out else usual_out("vtab", folder)
    task = make_task(request, choice, {}, start, out=into, workers=workers, device=device, command=typed())
    wanted = choose_tasks([name.strip() for name in tasks.split(",")] if tasks else [])
    place = Path(folder).expanduser()
    found, missing = find_tasks(place, wanted, select=select)
    if not found:
        raise DataError(f"{folder} has none of the {len(wanted)} tasks.\n{where_to_put(place, missing)}")
    plan = Plan(task=task, tasks=found, seeds=read_numbers("seeds", seeds, int), select=select)
    keep_memory()
    with going_on(), reporting(quiet=quiet or not is_main_process()) as report:
        if missing:
            text = f"{len(missing)} of {len(wanted)} tasks are not there and left out.\n{where_to_put(place, missing)}"
            report.note(text)
        if odd := departures(task.training):
            report.note(f"not the paper's setting: {'; '.join(odd)}")
        measured = carry_out(plan, report)
    if not is_main_process():
        return
    document = vtab_document(plan, measured)
    write_document(task.out / (SELECTED if select else DOCUMENT), document)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        _show(measured, document, task.out, select=select)


def where_to_put(folder: Path, missing: "Sequence[VtabTask]") -> str:
    """Say for each task that is missing where its images go, and how."""
    from vitrail.evaluation.vtab import LAYOUT

    places = "\n".join(f"  {folder / task.key}  ({task.title}, {task.classes} classes)" for task in missing)
    return f"{places}\nEach holds {LAYOUT}."


def _show(measured: "Sequence[Measured]", document: dict[str, Any], out: Path, *, select: bool) -> None:
    from vitrail.evaluation.results import over_seeds
    from vitrail.evaluation.vtab import PAPER
    from vitrail.evaluation.vtab_means import means

    title = f"VTAB-1k, accuracy in percent of the {'200 images kept back' if select else 'test images'}, and Table 9's"
    table = plain_table("task", "group", "here", *PAPER, title=title, numbers=1 + len(PAPER))
    for one in measured:
        here = _percent(*over_seeds([score.accuracy for score in one.scores]))
        table.add_row(one.task.title, one.task.group, here, *(f"{value:.1f}" for value in one.task.paper))
    table.add_section()
    for mean in means(measured):
        table.add_row(
            mean.title, mean.what, _percent(mean.value, mean.spread), *(f"{value:.1f}" for value in mean.paper)
        )
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    if document["departures"]:
        console.print(f"Not the paper's setting: {'; '.join(document['departures'])}", markup=False)
    console.print(f"All of it: {harmless(str(out))}", markup=False)


def _percent(value: float, spread: float | None) -> str:
    return f"{100 * value:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")
