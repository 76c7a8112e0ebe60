"""Write docs/claims.md from the studies beside this file: `python results/claims.py`. A test compares the two."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrail.studies.reading import Reading
from vitrail.studies.report import FINDING_COLUMNS, finding_rows, markdown_table
from vitrail.studies.run import STUDIES
from vitrail.studies.scales import SCALES
from vitrail.studies.table import Cell, Count, Done, Network, Results, Study

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "claims.md"
FIGURES = HERE.parent / "docs" / "claims"
SEEDS = 3
NOTHING = Count(network=Network(model="ViT-B/16"))  # of cells whose places alone are read
HEAD = """What the paper claims, tried again at a small scale: models of up to some million parameters, 2,000 to
50,000 images, minutes of a CPU or of one GPU; each section says which. A difference is the mean over three seeds with
its 95 % interval (Student's t). *Confirmed* and *contradicted* are said where the interval says so; *equal* has a
margin, which is said; everything else is *not seen*. A small scale can contradict itself and not the paper: each claim
has a line on what it cannot tell.

This page is written by `python results/claims.py` from the kept files under `results/studies`, and a test compares the
two. `vitrail study NAME --scale gpu --data FOLDER` runs a study again; [studies.md](studies.md) says how.
"""


def page() -> str:
    """Give the page."""
    found = {name: kept(study) for name, study in STUDIES.items()}
    parts = [f"# The paper's claims\n\n{HEAD}", summary(found)]
    parts += [section(STUDIES[name], each) for name, each in found.items() if each is not None]
    return "\n".join(parts)


class Kept:
    """A study that was run and kept: its results, and what is read off them."""

    def __init__(self, study: Study, document: dict[str, Any]) -> None:
        self.document, self.seeded = document, study.seeded
        scale = SCALES[document["scale"]]
        cells = {cell.name: cell for cell in study.at(scale, document["seeds"])}
        self.results = Results(
            Done(cell=cells.get(row["name"], Cell(at=row["at"], work=NOTHING)), numbers=row["numbers"])
            for row in document["cells"]
        )
        self.reading: Reading = study.read(self.results, scale)

    @property
    def where(self) -> str:
        """Say what it was run on."""
        seeds = f", {self.document['seeds']} seeds" if self.seeded else ""
        return f"Scale {self.document['scale']}{seeds}, on {self.document['device']}."


def kept(study: Study) -> Kept | None:
    """Give what is kept of a study, of the largest scale that there is."""
    if study.name == "self-supervision":
        return Kept(study, objectives())
    for scale in ("gpu", "cpu"):
        path = HERE / "studies" / scale / study.name / "study.json"
        if path.is_file():
            return Kept(study, json.loads(path.read_text()))
    return None


def objectives() -> dict[str, Any]:
    """Give the runs of results/objectives, which were made before there were studies, as the study's cells."""
    cells = []
    for way in ("scratch", "labels", "masked-patch", "mae"):
        for seed in range(SEEDS):
            log = (HERE / "objectives" / f"finetune-{way}-{seed}" / "log.jsonl").read_text().splitlines()
            accuracy = [each["accuracy"] for each in map(json.loads, log) if each["kind"] == "evaluation"][-1]
            at = {"pre-training": way, "on": "second", "seed": seed}
            cells.append({"name": f"{way}_second_seed{seed}", "at": at, "numbers": {"accuracy": accuracy}})
    where = "NVIDIA H200; the runs of results/objectives, which are older than the studies"
    return {"scale": "gpu", "seeds": SEEDS, "device": where, "cells": cells}


def summary(found: dict[str, Kept | None]) -> str:
    """List every claim with its verdict."""
    rows = [[linked(STUDIES[name].title, each), STUDIES[name].paper, verdict_of(each)] for name, each in found.items()]
    return "\n".join([*markdown_table(("claim", "of the paper", "here"), rows), ""])


def linked(title: str, found: Kept | None) -> str:
    """Name a claim, with a link to its section where there is one."""
    return title if found is None else f"[{title}](#{anchor(title)})"


def verdict_of(each: Kept | None) -> str:
    """Say the verdict, and of how many parts."""
    if each is None:
        return "not run yet"
    parts = [finding.verdict for finding in each.reading.findings]
    counted = "" if len(set(parts)) == 1 else f" ({parts.count('confirmed')} of {len(parts)} parts confirmed)"
    return f"**{each.reading.verdict}**{counted}"


def section(study: Study, each: Kept) -> str:
    """Write a study."""
    lines = [f"## {study.title}", "", f"{study.paper}. {study.claim}", "", f"{each.where} {study.caveat}", ""]
    lines += [*markdown_table(FINDING_COLUMNS, finding_rows(each.reading.findings)), ""]
    for note in each.reading.notes:
        lines += [note, ""]
    for plot in each.reading.plots:
        lines += [f"![{plot.title}](claims/{study.name}-{plot.name}.png)", "", plot.caption, ""]
    for table in each.reading.tables:
        lines += [f"{table.title}:", "", *markdown_table(table.columns, table.rows), ""]
    return "\n".join(lines)


def anchor(title: str) -> str:
    """Give the address of a heading, as GitHub makes it."""
    return "".join(sign for sign in title.lower().replace(" ", "-") if sign.isalnum() or sign == "-")


def pictures() -> Iterator[tuple[str, bytes]]:
    """Draw every plot."""
    for name, study in STUDIES.items():
        if (each := kept(study)) is not None:
            for plot in each.reading.plots:
                yield f"{name}-{plot.name}.png", plot.draw("light")


if __name__ == "__main__":
    PAGE.write_text(page())
    FIGURES.mkdir(exist_ok=True)
    for file, png in pictures():
        (FIGURES / file).write_bytes(png)
