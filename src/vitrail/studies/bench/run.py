"""`vitrail.bench`: how fast this machine is with Vitrail, beside other libraries, and how far from its limits."""

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail import __version__
from vitrail.config.bench import ALL, check_bench
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import home_path, read_json
from vitrail.runtime.machine import choose_device, free_memory, usable_cores
from vitrail.runtime.reporter import SILENT, Reporter, text_table
from vitrail.studies.bench.peers import versions
from vitrail.studies.bench.report import DOCUMENT, FORMAT, BenchReport, number
from vitrail.studies.bench.rows import cases_for
from vitrail.studies.bench.runner import Place, run_cases
from vitrail.studies.bench.table import Case, row_document

REPEATS, SECONDS = 5, 0.5  # of each way
ROOM = 0.92  # of the free memory of a GPU
CPUINFO = Path("/proc/cpuinfo")
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")  # that products of matrices use


@dataclass(frozen=True)
class BenchRows:
    """The rows that there are; it prints as a table."""

    cases: Sequence[Case]

    def document(self) -> list[dict[str, Any]]:
        """Give each row's name, group, title and ways, for JSON."""
        return [
            {"name": case.name, "group": case.group, "title": case.title, "all": case.in_all}
            | {"ways": [way.name for way in case.ways]}
            for case in self.cases
        ]

    def __str__(self) -> str:
        rows = [
            (case.group, case.name, case.title, "yes" if case.in_all else "", "; ".join(_named(case)))
            for case in self.cases
        ]
        heads = ("group", "row", "what", "in all", "ways")
        return "\n".join([*text_table("", heads, rows), "", "vitrail bench GROUP|all --rows WORD,... --out FOLDER"])


def _named(case: Case) -> list[str]:
    """Name the ways of a case; of a curve its lines."""
    return list(dict.fromkeys(way.series or way.name for way in case.ways))


def list_bench(*, device: str | None = None) -> BenchRows:
    """List the rows of `vitrail.bench` on a device."""
    return BenchRows(cases_for(choose_device(device).type))


def bench(
    what: str = ALL,
    *,
    rows: Sequence[str] | None = None,
    device: str | None = None,
    repeats: int | None = None,
    seconds: float | None = None,
    jobs: int | None = None,
    out: str | os.PathLike[str] | None = None,
    command: str = "",
    report: Reporter = SILENT,
) -> BenchReport:
    """Measure how fast this machine is with Vitrail, beside whichever of timm, transformers, torchvision there is.

    `what` is forward, training, latency, memory, data, loading or all; `rows` are words, of which the name of a row has
    one. The ways of a row are measured in turns, `repeats` times for about `seconds` each; a ratio is the median of the
    turns' own. `out` is a folder for the document, the page and the plots: the same call again resumes there. `jobs` is
    how many ways are made ready at once on a GPU, before any is measured; each is then measured alone.
    """
    check_bench(what, repeats, seconds, jobs)
    where = choose_device(device)
    cases = chosen(cases_for(where.type), what, rows)
    folder, here = None if out is None else home_path(out), machine(where)
    done = {} if folder is None else read_rows(folder, here)
    place = place_of(where, repeats, seconds, jobs)
    left = [case for case in cases if done.get(case.name, {}).get("digest") != case.digest]
    if len(left) < len(cases):
        report.note(f"{len(cases) - len(left)} of {len(cases)} rows are measured and kept in {folder}")
    for case in left:
        done.pop(case.name, None)  # of another version
    since = time.monotonic()

    def made() -> BenchReport:
        order = [case.name for case in cases_for(where.type)]
        own = done.values() if folder is not None else [done[case.name] for case in cases if case.name in done]
        every = sorted(own, key=lambda row: order.index(row["name"]) if row["name"] in order else len(order))
        missing = [case.title for case in left if case.name not in done]
        spent = sum(row["seconds"] for row in every)
        return BenchReport(machine=here, rows=every, seconds=spent, command=command, folder=folder, unfinished=missing)

    try:
        for case, found in run_cases(left, place, report):
            now = time.monotonic()
            done[case.name] = row_document(case, found, now - since)
            since = now
            made().write()
            report.note(f"{case.group}, {case.title}: {in_short(done[case.name])}")
    except KeyboardInterrupt:
        if folder is None or not done:
            raise
        made().write()
        raise KeyboardInterrupt(
            f"interrupted: {len(done)} rows are measured and kept in {folder}, {len(made().unfinished)} are not."
        ) from None
    return made()


def chosen(cases: Sequence[Case], what: str, rows: Sequence[str] | None) -> list[Case]:
    """Give the rows of a group, or those whose names have one of the words; refuse a word that none has."""
    own = [case for case in cases if what in (ALL, case.group)]
    if rows is None:
        return [case for case in own if case.in_all or what != ALL]
    words = [rows] if isinstance(rows, str) else list(rows)
    for word in words:
        if not any(word.lower() in case.name.lower() for case in own):
            raise ConfigError(f"no row has {word!r} in its name. There are: {', '.join(case.name for case in own)}.")
    return [case for case in own if any(word.lower() in case.name.lower() for word in words)]


def place_of(device: torch.device, repeats: int | None, seconds: float | None, jobs: int | None) -> Place:
    """Say how a device is benched: on a GPU with a process for each way, all made ready at once."""
    how: dict[str, Any] = {"device": str(device), "repeats": repeats or REPEATS, "seconds": seconds or SECONDS}
    if device.type != "cuda":
        return Place(**how)
    jobs = jobs or usable_cores()
    threads = {"TORCHINDUCTOR_COMPILE_THREADS": str(max(usable_cores() // jobs, 1))}
    return Place(**how, jobs=jobs, apart=True, room=int(ROOM * free_memory(device)), environment=threads)


def machine(device: torch.device) -> dict[str, Any]:
    """Say what this machine is, and what is installed."""
    said = {}
    if CPUINFO.is_file():
        lines = (line.split(":", 1) for line in CPUINFO.read_text().splitlines() if ":" in line)
        said = {name.strip(): value.strip() for name, value in lines}
    processor = said.get("model name") or platform.processor() or platform.machine()
    gpu = device.type == "cuda"
    return {
        "kind": device.type,
        "device": torch.cuda.get_device_name(device) if gpu else "CPU",
        "processor": processor,
        "features": [flag for flag in FLAGS if flag in said.get("flags", "").split()],
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "peers": versions(),
        "version": __version__,
    }


def read_rows(folder: Path, here: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Give the rows that a folder has of this machine; refuse one of another."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file. Give a folder.")
    path = folder / DOCUMENT
    if not path.is_file():
        return {}
    found = read_json(path)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no document of vitrail bench. Give another folder.")
    if changed := [name for name in here if found["machine"].get(name) != here[name]]:
        raise ConfigError(
            f"{folder} holds a bench of another {' and '.join(changed)}. Give another folder, or remove {path}."
        )
    return {row["name"]: row for row in found["rows"]}


def in_short(row: dict[str, Any]) -> str:
    """Say what a row came to, in a few words."""
    found = [way for way in row["ways"] if "median" in way]
    said = [f"{way['name']} {number(way['median'])}{_times(row, way)}" for way in found]
    gaps = sum("gap" in way for way in row["ways"])
    words = [*said, f"{gaps} not measured"] if gaps else said
    return f"{row['unit']}: {', '.join(words)}"


def _times(row: dict[str, Any], way: dict[str, Any]) -> str:
    """Say how many times as good as the base; not of a curve, whose places are no rivals."""
    compared = way["ratio"] and way["at"] is None and way["name"] != row["base"]
    return f" ({way['ratio']['median']:.2f})" if compared else ""
