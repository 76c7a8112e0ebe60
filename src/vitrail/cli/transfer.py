"""`vitrail transfer`: the paper's protocol of fine-tuning, from the grid of rates to the mean over seeds."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from vitrail.cli.data import Pipe, Where
from vitrail.cli.describe import Json
from vitrail.cli.render import harmless, plain_table
from vitrail.config import ModelConfig, PatchStem, ViTConfig, parse

if TYPE_CHECKING:
    from vitrail.evaluation.transfer import Transfer

DECIDED = {
    "learning_rate": "the rate is chosen among --rates. Give --rates 0.01 for one.",
    "seed": "each final run has a seed of its own. Give --seeds.",
}

HIGHEST = 0.06

Model = Annotated[str, typer.Option(metavar="FILE|NAME", help="A checkpoint; or a name such as ViT-B/16, fresh.")]
Recipe = Annotated[
    str | None,
    typer.Option("--recipe", metavar="NAME", help="Such as finetune/pets.", show_default="by the number of images"),
]
Rates = Annotated[
    str | None, typer.Option(metavar="RATE,...", help="Rates to choose from.", show_default="the recipe's, of Table 4")
]
Seeds = Annotated[str, typer.Option(metavar="SEED,...", help="Of the final runs.")]
Out = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="Where all runs go.", show_default="runs/transfer- and the data")
]


def transfer(
    data: Where,
    model: Model,
    name: Recipe = None,
    rates: Rates = None,
    seeds: Seeds = "0,1,2",
    out: Out = None,
    steps: Steps = None,
    batch: Batch = None,
    settings: Settings = None,
    workers: Workers = None,
    device: Device = None,
    precision: Precision = None,
    compiles: Compile = None,
    allow_pipe: Pipe = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune as Table 4: choose the rate on images kept back, train on all of them, report the test images.

    The mean and deviation are over the seeds. The same command again goes on where it stopped.
    """
    from vitrail.data.open import open_data
    from vitrail.evaluation.transfer import Plan
    from vitrail.evaluation.transfer import transfer as carry_out
    from vitrail.runtime.group import is_main_process
    from vitrail.runtime.memory import keep_memory
    from vitrail.runtime.reporter import reporting
    from vitrail.train.request import choose_recipe, make_task, read_request, refuse_fields
    from vitrail.train.task import open_start
    from vitrail.verbs.training import usual_out

    fields = {"steps": steps, "batch_size": batch, "precision": precision, "compile": compiles}
    request = read_request("transfer", data, model, name, settings or (), fields)
    refuse_fields(request, DECIDED)
    wanted = None if rates is None else read_numbers("rates", rates, float)
    start = open_start(model)
    splits = open_data(data, allow_pipe=allow_pipe)
    choice = choose_recipe(request, splits, start, later=("learning_rate",))
    folder = Path(out).expanduser() if out else usual_out("transfer", data)
    task = make_task(request, choice, splits, start, out=folder, workers=workers, device=device, command=typed())
    config = parse(model) if start is None else start.config
    wanted = wanted or rates_for(config, choice.rates) or (task.training.optimizer.learning_rate,)
    plan = Plan(task=task, rates=wanted, seeds=read_numbers("seeds", seeds, int))
    keep_memory()
    with going_on(), reporting(quiet=quiet or not is_main_process()) as report:
        for reason in choice.reasons:
            report.note(reason)
        found = carry_out(plan, report)
    if not is_main_process():
        return
    if as_json:
        typer.echo(json.dumps(found.document, indent=2))
    else:
        _show(found)


def rates_for(config: ModelConfig, rates: tuple[float, ...]) -> tuple[float, ...]:
    """Give the rates of Table 4 for a model: the highest is for ResNets and hybrids alone (Appendix B.1.1)."""
    plain = isinstance(config, ViTConfig) and isinstance(config.stem, PatchStem)
    return tuple(rate for rate in rates if rate < HIGHEST or not plain)


def _show(found: "Transfer") -> None:
    console, result = Console(soft_wrap=True, highlight=False), found.result
    if found.grid:
        table = plain_table("rate", "accuracy", title=f"Chosen by {found.dev_images:,} images kept back", numbers=2)
        for tried in found.grid:
            taken = " <-" if tried.rate == found.rate else "   "
            table.add_row(
                f"{tried.rate:g}", ("diverged" if tried.accuracy is None else f"{tried.accuracy:.2%}") + taken
            )
        console.print(table)
    table = plain_table("seed", "accuracy", title=f"Rate {found.rate:g}, all training images", numbers=2)
    for score in found.runs:
        table.add_row(str(score.seed), f"{score.accuracy:.2%}")
    console.print(table)
    spread = "" if result.spread is None else f" ± {100 * result.spread:.2f}"
    over = f", {len(found.runs)} seeds" if len(found.runs) > 1 else ""
    words = f"{100 * result.value:.2f}{spread} % of {result.images:,} test images{over}"
    console.print(words, style="bold", markup=False)
    console.print(f"All of it: {harmless(str(found.plan.task.out))}", markup=False)
