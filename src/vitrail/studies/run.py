"""`vitrail.study`: a table or figure of the paper, run end to end."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.config.study import check_study
from vitrail.files import home_path
from vitrail.runtime.machine import keep_memory
from vitrail.runtime.reporter import harmless, reporting, text_table
from vitrail.studies.paper import (
    axial,
    data_size,
    distance,
    head,
    models,
    optimizers,
    positions,
    resolution,
    scaling,
    self_supervision,
    shape,
    speed,
    speedrun,
    transfer,
)
from vitrail.studies.report import StudyReport
from vitrail.studies.runner import Asked, run_study
from vitrail.studies.scales import SCALES, Scale, lengthened
from vitrail.studies.table import Cell, Count, Speed, Study, Train
from vitrail.studies.work import config_of, costs, count
from vitrail.train.run import listening

STUDIES: dict[str, Study] = {
    module.STUDY.name: module.STUDY
    for module in (
        *(models, data_size, scaling, positions, head, shape, optimizers, resolution, transfer),
        *(self_supervision, axial, speed, distance, speedrun),
    )
}


def study(
    name: str,
    *,
    scale: str = "cpu",
    data: str | os.PathLike[str] | None = None,
    seeds: int | None = None,
    out: str | os.PathLike[str] | None = None,
    minutes: float | None = None,
    length: float | None = None,
    jobs: int | None = None,
    device: str | None = None,
    quiet: bool = False,
    command: str = "",
) -> StudyReport:
    """Run a table or figure of the paper, and compare what comes out with what the paper says.

    `scale` is smoke (seconds, to see that it runs), cpu (minutes on two cores), gpu (minutes on one GPU, on real images
    in the folder `data`) or paper (the paper's own configuration). Accuracies are means over `seeds`. `minutes` makes
    every run shorter or longer, all alike, so that the study takes about so long; `length` says how many times the
    usual steps instead, which gives the same runs on every machine. `jobs` is how many runs go on at once. Everything
    goes into `out`, runs/study-NAME-SCALE where it is left out: the same call resumes there.
    """
    asked = ask(name, scale, data=data, seeds=seeds, out=out, minutes=minutes, length=length, jobs=jobs, device=device)
    keep_memory()
    with reporting(quiet=quiet) as report, listening(report) as stop:
        found = StudyReport(ran=run_study(asked, report, stop), command=command)
        found.write()
    return found


def ask(
    name: str,
    scale: str,
    *,
    data: str | os.PathLike[str] | None = None,
    seeds: int | None = None,
    out: str | os.PathLike[str] | None = None,
    minutes: float | None = None,
    length: float | None = None,
    jobs: int | None = None,
    device: str | None = None,
) -> Asked:
    """Read what is asked of a study, before anything is run."""
    check_study(name, scale, seeds, minutes, jobs, length)
    chosen, size = STUDIES[name], SCALES[scale]
    if minutes is None and length is None and chosen.seeded:
        minutes = size.minutes.get(name)
    return Asked(
        study=chosen,
        scale=size,
        seeds=size.seeds if seeds is None else seeds,
        out=home_path(out or f"runs/study-{name}-{scale}"),
        data=None if data is None else home_path(data),
        device=device,
        jobs=jobs,
        minutes=minutes,
        length=length,
    )


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What every cell of a study would cost, counted and not run; it prints as a table."""

    study: Study
    scale: Scale
    seeds: int
    cells: Sequence[Cell]

    def document(self) -> dict[str, Any]:
        """Give the cells as plain values, for JSON."""
        rows = [{"name": cell.name, "at": dict(cell.at), **cost_of(cell)} for cell in self.cells]
        return {"study": self.study.name, "scale": self.scale.name, "seeds": self.seeds, "cells": rows}

    def __str__(self) -> str:
        rows = []
        for cell in self.cells:
            cost = cost_of(cell)
            known = {name: cost.get(name) for name in ("parameters", "gmacs", "images", "steps", "exaflops")}
            rows.append([cell.name, cost["what"], *(_in_short(name, value) for name, value in known.items())])
        total = sum(float(cost_of(cell).get("exaflops", 0.0)) for cell in self.cells)
        title = f"{self.study.title} ({self.study.paper}), scale {self.scale.name}: counted, not run"
        heads = ("cell", "what", "parameters", "GMACs", "images", "steps", "exaFLOPs")
        lines = text_table(title, heads, rows)
        lines.append(f"{len(self.cells)} cells, {total:,.4g} exaFLOPs in all, by the convention of Table 6")
        return harmless("\n".join(lines))


def study_costs(name: str, *, scale: str = "paper", seeds: int | None = None, length: float | None = None) -> Costs:
    """Count what every cell of a study would cost; nothing is run, and no data is needed."""
    asked = ask(name, scale, seeds=seeds, length=length)
    cells = [lengthened(cell, length or 1.0) for cell in asked.cells]
    return Costs(study=asked.study, scale=asked.scale, seeds=asked.seeds, cells=cells)


def cost_of(cell: Cell) -> dict[str, Any]:
    """Count what a cell costs."""
    match cell.work:
        case Train() as work:
            verb = "pre-train" if work.begins is None else "fine-tune"
            return {
                "what": f"{verb} on {work.images.name} at {work.fields.get('image_size', work.images.image_size)}",
                **costs(work),
            }
        case Count() | Speed() as work:
            what = "count" if isinstance(work, Count) else f"time at {work.image_size}"
            return {"what": what, **count(config_of(work.network, work.image_size, 1000))}
        case look:
            return {"what": f"look inside {look.begins}"}


def _in_short(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name in ("images", "steps"):
        return f"{value:,.0f}"
    return f"{value / 1e6:,.1f}M" if name == "parameters" else f"{value:.3g}"


@dataclass(frozen=True)
class StudyList:
    """The studies that there are; it prints as a table."""

    studies: Sequence[Study]

    def document(self) -> list[dict[str, str]]:
        """Give each study's name, where it is in the paper, and its claim, for JSON."""
        return [{"name": each.name, "paper": each.paper, "claim": each.claim} for each in self.studies]

    def __str__(self) -> str:
        rows = [(each.name, each.paper, each.title) for each in self.studies]
        scales = [f"  {scale.name:6} {scale.words}" for scale in SCALES.values()]
        table = text_table("", ("study", "of the paper", "its claim"), rows)
        return "\n".join([*table, "", "Scales:", *scales, "", "vitrail study NAME --scale cpu"])


def list_studies() -> StudyList:
    """List the studies, each with the tables and figures of the paper that it is of, and its claim."""
    return StudyList(tuple(STUDIES.values()))
