"""What a study found, as a document, as Markdown, and as a page with its plots."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.figures import size_of_png
from vitrail.files import write_bytes, writing
from vitrail.inspection.page import render_page, url_of
from vitrail.runtime.reporter import harmless, text_table
from vitrail.studies.reading import Finding, Reading, in_interval
from vitrail.studies.runner import FORMAT, Ran
from vitrail.studies.table import Results, Study

DOCUMENT, MARKDOWN, PAGE, FIGURES = "study.json", "study.md", "report.html", "figures"


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    """A study that ran: its results, what is read off them, and where they are; it prints as text."""

    ran: Ran
    command: str = ""

    @property
    def study(self) -> Study:
        """The study."""
        return self.ran.asked.study

    @property
    def results(self) -> Results:
        """What every cell came to."""
        return self.ran.results

    @property
    def folder(self) -> Path:
        """Where everything is."""
        return self.ran.asked.out

    @cached_property
    def reading(self) -> Reading:
        """What is read off the cells."""
        return self.study.read(self.results, self.ran.asked.scale)

    def document(self) -> dict[str, Any]:
        """Give everything as plain values, for JSON."""
        study, asked, ran = self.study, self.ran.asked, self.ran
        return {
            **asked.document(),
            "format": FORMAT,
            "version": __version__,
            "command": self.command,
            "device": ran.device,
            "factor": ran.factor,
            "seconds": round(ran.seconds, 1),
            "wall_seconds": round(ran.wall_seconds, 1),
            "paper": study.paper,
            "claim": study.claim,
            "verdict": self.reading.verdict,
            "findings": [finding.document() for finding in self.reading.findings],
            "notes": list(self.reading.notes),
            "caveat": study.caveat,
            "tables": [
                {"title": table.title, "columns": list(table.columns), "rows": [list(row) for row in table.rows]}
                for table in self.reading.tables
            ],
            "cells": [
                {"name": done.cell.name, "at": dict(done.cell.at), "numbers": done.numbers}
                for done in self.results.done
            ],
        }

    def __str__(self) -> str:
        lines = [self.study.title, f"{self.study.paper}: {self.study.claim}", ""]
        for table in self.reading.tables:
            lines += [*text_table(table.title, table.columns, table.rows), ""]
        lines += [*findings_text(self.reading.findings), *self.reading.notes]
        lines += [f"On the whole: {self.reading.verdict}. {self.study.caveat}", f"All of it: {self.folder}"]
        return harmless("\n".join(lines))

    def write(self) -> None:
        """Write the document, the Markdown, the page and its plots."""
        pictures = {plot.name: {theme: plot.draw(theme) for theme in ("light", "dark")} for plot in self.reading.plots}
        with writing(self.folder):
            (self.folder / FIGURES).mkdir(exist_ok=True)
        for name, each in pictures.items():
            write_bytes(self.folder / FIGURES / f"{name}.png", each["light"])
        write_bytes(self.folder / DOCUMENT, (json.dumps(self.document(), indent=1) + "\n").encode())
        write_bytes(self.folder / MARKDOWN, markdown(self).encode())
        write_bytes(self.folder / PAGE, render_page(self._page(pictures)).encode("utf-8", "replace"))

    def _page(self, pictures: Mapping[str, Mapping[str, bytes]]) -> dict[str, Any]:
        reading, study = self.reading, self.study
        figures = [
            {
                "id": plot.name,
                "title": plot.title,
                "caption": plot.caption,
                "alt": plot.caption,
                "src": url_of(pictures[plot.name]["light"], "png"),
                "dark": url_of(pictures[plot.name]["dark"], "png"),
                **dict(zip(("width", "height"), size_of_png(pictures[plot.name]["light"]), strict=True)),
                "measured": True,
            }
            for plot in reading.plots
        ]
        parts = finding_rows(reading.findings)
        tables = [("findings", "What was compared", FINDING_COLUMNS, parts)]
        tables += [(f"table-{place}", each.title, each.columns, each.rows) for place, each in enumerate(reading.tables)]
        return {
            "title": study.title,
            "subtitle": f"{study.paper}, at the scale {self.ran.asked.scale.name}, on {self.ran.device}. {study.claim}",
            "command": self.command,
            "version": __version__,
            "headline": {"value": reading.verdict, "words": study.caveat, "interval": " ".join(reading.notes)},
            "figures": figures,
            "tables": [
                {
                    "id": name,
                    "title": title,
                    "caption": "",
                    "columns": list(columns),
                    "rows": [list(row) for row in rows],
                }
                | {"measured": True}
                for name, title, columns, rows in tables
            ],
            "images": [],
        }


FINDING_COLUMNS = ("compared", "measured, with 95 % interval", "the paper", "verdict")


def finding_rows(findings: Sequence[Finding]) -> list[list[str]]:
    """Write findings as rows."""
    return [
        [each.says, in_interval(each.estimate, each.unit, digits_of(each)), each.published, each.verdict]
        for each in findings
    ]


def digits_of(finding: Finding) -> int:
    """Give the digits behind the point that a finding is worth."""
    return 1 if finding.unit == "points" else 3 if finding.unit == "cosine" else 2


def findings_text(findings: Sequence[Finding]) -> Iterator[str]:
    """Say findings in lines."""
    for says, measured, published, verdict in finding_rows(findings):
        yield f"{verdict}: {says}: {measured}{f'; the paper: {published}' if published else ''}"


def markdown(report: StudyReport) -> str:
    """Write a study as Markdown."""
    study, reading, asked = report.study, report.reading, report.ran.asked
    lines = [f"# {study.title}", "", f"{study.paper}. {study.claim}", ""]
    seeds = f", {asked.seeds} seed{'s' * (asked.seeds > 1)}" if study.seeded else ""
    took = f"{report.ran.wall_seconds / 60:.1f} minutes by the clock"
    lines += [f"At the scale `{asked.scale.name}`{seeds}, on {report.ran.device}, {took}.", ""]
    lines += [f"**{reading.verdict.capitalize()}.** {study.caveat}", ""]
    lines += [*markdown_table(FINDING_COLUMNS, finding_rows(reading.findings)), ""]
    for note in reading.notes:
        lines += [note, ""]
    for table in reading.tables:
        lines += [f"## {table.title}", "", *markdown_table(table.columns, table.rows), ""]
    for plot in reading.plots:
        lines += [f"![{plot.title}]({FIGURES}/{plot.name}.png)", "", plot.caption, ""]
    return "\n".join(lines)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Write a table as Markdown."""
    every = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in every]
