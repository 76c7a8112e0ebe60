"""`vitrail.transfer` and `vitrail.vtab`: the paper's protocols of many fine-tunings, each in a folder of runs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitrail.checkpoint.load import of_run
from vitrail.config import ModelConfig, PatchStem, ViTConfig, parse
from vitrail.config.given import usual_out
from vitrail.config.recipes import recipe as find_recipe
from vitrail.data.open import open_data
from vitrail.errors import DataError
from vitrail.evaluation import vtab as protocol
from vitrail.evaluation.results import over_seeds, write_document
from vitrail.evaluation.transfer import Transfer, TransferPlan, transfer as run_transfer
from vitrail.evaluation.vtab import means, vtab_document
from vitrail.files import home_path
from vitrail.runtime.machine import is_main_process, keep_memory
from vitrail.runtime.reporter import harmless, reporting, text_table
from vitrail.train.choice import choose_recipe
from vitrail.train.reading import settle_reading
from vitrail.train.request import Choice, make_task, read_request, refuse_fields
from vitrail.train.task import AnyModel, known_config, open_start, training_split
from vitrail.verbs.training import take_preprocessing

HIGHEST = 0.06  # a rate of Table 4 that is for ResNets and hybrids alone (Appendix B.1.1)
DECIDED = {
    "transfer": {
        "learning_rate": "the rate is chosen among rates. Give one rate to choose it yourself.",
        "seed": "each final run has a seed of its own. Give seeds.",
        "result": "the last weights are measured, as in the paper. Leave it out.",
    },
    "vtab": {
        "seed": "each run has a seed of its own. Give seeds.",
        "result": "the last weights are measured, as in the paper. Leave it out.",
        "validation_share": "1,000 images are taken, 200 of them kept back where you select. Leave it out.",
    },
}
DOCUMENT, SELECTED = "vtab.json", "select.json"


@dataclass(frozen=True, kw_only=True)
class Vtab:
    """What every task of VTAB-1k came to; it prints as the table beside the paper's Table 9."""

    plan: protocol.VtabPlan
    measured: tuple[protocol.Measured, ...]

    def document(self) -> dict[str, Any]:
        """Give accuracies and means as plain values, for JSON."""
        return vtab_document(self.plan, self.measured)

    def __str__(self) -> str:
        rows = [
            (one.task.title, one.task.group, *over_seeds([score.accuracy for score in one.scores]), one.task.paper)
            for one in self.measured
        ]
        rows += [(mean.title, mean.what, mean.value, mean.spread, mean.paper) for mean in means(self.measured)]
        images = "200 images kept back" if self.plan.select else "test images"
        lines = text_table(
            f"VTAB-1k, accuracy in percent of the {images}, and Table 9's",
            ("task", "group", "here", *protocol.PAPER),
            [
                (title, group, _percent(value, spread), *(f"{each:.1f}" for each in paper))
                for title, group, value, spread, paper in rows
            ],
        )
        if odd := self.document()["departures"]:
            lines.append(f"Not the paper's setting: {'; '.join(odd)}")
        return harmless("\n".join([*lines, f"All of it: {self.plan.task.out}"]))


def transfer(
    data: object,
    *,
    model: AnyModel,
    recipe: str | None = None,
    rates: Sequence[float] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    out: str | os.PathLike[str] | None = None,
    settings: Sequence[str] = (),
    workers: int | None = None,
    device: str | None = None,
    allow_pipe: bool = False,
    quiet: bool = False,
    command: str = "",
    **fields: Any,  # noqa: ANN401
) -> Transfer:
    """Fine-tune as Table 4: choose the rate on images kept back, train on all of them, report the test images.

    `rates` are those of the recipe where they are left out; the mean and deviation are over `seeds`. `data`, `model`,
    `settings` and `fields` are those of `vitrail.finetune`. All runs go into `out`, runs/transfer-DATA where it is left
    out; the same call resumes them.
    """
    model = of_run(model)
    prepared, fields = take_preprocessing(fields)
    request = read_request("transfer", data, model, recipe, settings, fields)
    refuse_fields(request, DECIDED["transfer"])
    start = open_start(model)
    splits = open_data(data, allow_pipe=allow_pipe)
    choice = choose_recipe(request, splits, start, later=("learning_rate",))
    folder = home_path(out) if out else usual_out("transfer", str(data))
    task = make_task(request, choice, splits, start, out=folder, workers=workers, device=device, command=command)
    task = replace(task, preprocessing=prepared)
    config = known_config(start, {**request.model_fields, **request.fields}) or parse(choice.model)
    task, read = settle_reading(task, request, training_split(splits))
    wanted = rates or rates_for(config, choice.rates) or (task.training.optimizer.learning_rate,)
    plan = TransferPlan(task=task, rates=tuple(wanted), seeds=tuple(seeds))
    keep_memory()
    with reporting(quiet=quiet or not is_main_process()) as report:
        for reason in (*choice.reasons, *read):
            report.note(reason)
        return run_transfer(plan, report)


def vtab(
    folder: str | os.PathLike[str],
    *,
    model: AnyModel,
    tasks: Sequence[str] = (),
    seeds: Sequence[int] = (0,),
    out: str | os.PathLike[str] | None = None,
    select: bool = False,
    settings: Sequence[str] = (),
    workers: int | None = None,
    device: str | None = None,
    quiet: bool = False,
    command: str = "",
    **fields: Any,  # noqa: ANN401
) -> Vtab:
    """Fine-tune on the tasks of VTAB-1k that a folder has, and measure accuracies and means, to compare with Table 9.

    `folder` holds a folder for each task, by its name; `tasks` are names or groups (natural, specialized, structured),
    all 19 where none is given. All are trained alike, by the recipe finetune/vtab, once for each of `seeds`. With
    `select`, each is trained on 800 images and measured on 200, without the test images. `settings` and `fields` are
    those of `vitrail.finetune`. All runs go into `out`, runs/vtab-FOLDER where it is left out; the same call resumes.
    """
    model = of_run(model)
    prepared, fields = take_preprocessing(fields)
    request = read_request("vtab", folder, model, protocol.RECIPE, settings, fields)
    refuse_fields(request, DECIDED["vtab"])
    start, choice = open_start(model), Choice(model=str(model), training=find_recipe(protocol.RECIPE).training)
    into = home_path(out) if out else usual_out("vtab", str(folder))
    task = make_task(request, choice, {}, start, out=into, workers=workers, device=device, command=command)
    task = replace(task, preprocessing=prepared)
    wanted, place = protocol.choose_tasks(tasks), home_path(folder)
    found, missing = protocol.find_tasks(place, wanted, select=select)
    places = [f"{place / each.key}  ({each.title}, {each.classes} classes)" for each in missing]
    listed = "\n".join([*(f"  {place}" for place in places), f"Each holds {protocol.LAYOUT}."])
    if not found:
        some = "; ".join(places[:3]) + "; ..." * (len(places) > 3)
        raise DataError(f"{folder} has none of the {len(wanted)} tasks: {some}. Each holds {protocol.LAYOUT}.")
    plan = protocol.VtabPlan(task=task, tasks=found, seeds=tuple(seeds), select=select)
    keep_memory()
    with reporting(quiet=quiet or not is_main_process()) as report:
        if missing:
            report.note(f"{len(missing)} of {len(wanted)} tasks are not there and left out.\n{listed}")
        if odd := protocol.departures(task.training):
            report.note(f"not the paper's setting: {'; '.join(odd)}")
        made = Vtab(plan=plan, measured=protocol.vtab(plan, report))
    if is_main_process():
        write_document(task.out / (SELECTED if select else DOCUMENT), made.document())
    return made


def rates_for(config: ModelConfig, rates: tuple[float, ...]) -> tuple[float, ...]:
    """Give the rates of Table 4 for a model: the highest is for ResNets and hybrids alone (Appendix B.1.1)."""
    plain = isinstance(config, ViTConfig) and isinstance(config.stem, PatchStem)
    return tuple(rate for rate in rates if rate < HIGHEST or not plain)


def _percent(value: float, spread: float | None) -> str:
    return f"{100 * value:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")
