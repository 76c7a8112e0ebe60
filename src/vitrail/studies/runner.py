"""Runs the cells of any study: several at once, resumed where it stopped, as long as its minutes allow."""

import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitrail.errors import CheckpointError, ConfigError
from vitrail.evaluation.results import write_document
from vitrail.files import read_json, short_hash, writing
from vitrail.runtime.machine import choose_device, one_thread, usable_cores, usual_workers
from vitrail.runtime.reporter import SILENT, Reporter
from vitrail.runtime.sharing import shared_gpu
from vitrail.studies.minutes import cost_of, fitting, kind_of
from vitrail.studies.pool import Job, run_jobs
from vitrail.studies.scales import Scale, lengthened
from vitrail.studies.sets import check_sets, prepare
from vitrail.studies.table import Cell, Done, Images, Look, Numbers, Results, Speed, Study, Train
from vitrail.studies.work import Place, carry_out, costs

FORMAT = "vitrail study 1"
BEGUN, RESULT, IMAGES = "begun.json", "result.json", "images"
THREADS: tuple[str, ...] = (
    "OMP_NUM_THREADS",
    "TORCHINDUCTOR_COMPILE_THREADS",
)  # that say how many threads a process may have
GPUS = "CUDA_VISIBLE_DEVICES"
ON_GPU = 8  # small runs that share one GPU (LOG.md)
SPARE = 0.93  # of the minutes, as machines have moods
REPORT = 10.0  # seconds that the plots take


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked of a study: its scale, seeds, images, device, and how many cells are run at once."""

    study: Study
    scale: Scale
    seeds: int
    out: Path
    data: Path | None = None
    device: str | None = None
    jobs: int | None = None
    minutes: float | None = None
    length: float | None = None  # times the usual steps; None: as the minutes allow, or once

    @property
    def cells(self) -> list[Cell]:
        """All cells, as long as the scale has them."""
        return self.study.at(self.scale, self.seeds)

    def document(self) -> dict[str, Any]:
        """Give what decides the cells as plain values."""
        return {
            "format": FORMAT,
            "study": self.study.name,
            "scale": self.scale.name,
            "seeds": self.seeds,
            "minutes": self.minutes,
            "length": self.length,
        }


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a study's cells came to, and how long they took."""

    asked: Asked
    results: Results
    factor: float  # of the usual steps
    seconds: float  # of all cells, one after the other
    wall_seconds: float  # by the clock, of all times that it was run
    device: str


def run_study(asked: Asked, report: Reporter = SILENT, stop: Callable[[], bool] = lambda: False) -> Ran:
    """Run every cell that is not done yet; a KeyboardInterrupt where `stop` turns true, with everything saved."""
    start, device = time.monotonic(), choose_device(asked.device)
    cells = asked.cells
    check_names(cells)
    check_sets(images_of(cells), asked.data)
    begun = begin(asked, device.type)
    clock = Clock(asked.out / BEGUN, begun, start)
    packed = None
    if asked.scale.pack:
        packed = asked.out / IMAGES
        for images in dict.fromkeys(replace(each, per_class=None, half=None) for each in images_of(cells)):
            prepare(images, asked.data, packed, report)
            if stop():
                clock.keep()
                raise KeyboardInterrupt
    gpus = visible_gpus() if asked.device in (None, "cuda") and device.type == "cuda" else []
    jobs = jobs_for(asked, cells, gpus=max(len(gpus), 1) if device.type == "cuda" else 0)
    workers = 0 if device.type == "cpu" else max(usual_workers(gpu=True) // jobs, 1)
    place = Place(folder=asked.out, data=asked.data, packed=packed, device=str(device), workers=workers)
    threads = {name: str(max(usable_cores() // jobs, 1)) for name in THREADS}
    environments = [{**threads, GPUS: gpu} for gpu in gpus] or [threads]
    with ExitStack() as stack:
        if device.type == "cuda" and jobs > 1:
            stack.enter_context(shared_gpu())
        if asked.scale.name == "smoke":
            stack.enter_context(one_thread())  # threads that share so little wait for each other
        run_all = partial(run_jobs, processes=jobs, environments=environments, stop=stop)
        factor = begun.get("factor")
        if factor is None:
            factor = asked.length or 1.0
            if asked.minutes is not None:
                report.note("measuring how long a step of each network takes")
                left = 60 * asked.minutes * SPARE - REPORT - clock.now()
                factor = fitting(cells, place, left, jobs, run_all)
                report.note(f"{asked.minutes:g} minutes: {factor:.2f} times the usual steps")
            begun["factor"] = factor
            clock.keep()
        cells = [lengthened(cell, factor) for cell in cells]
        try:
            done = run_cells(cells, place, run_all, report)
        finally:
            clock.keep()
    results = Results(Done(cell=cell, numbers=done[cell.name]["numbers"]) for cell in cells)
    return Ran(
        asked=asked,
        results=results,
        factor=factor,
        seconds=sum(found["seconds"] for found in done.values()),
        wall_seconds=clock.now(),
        device=device_name(place.device),
    )


@dataclass
class Clock:
    """How long a study was run, also before it was interrupted; kept in the document of what was begun."""

    path: Path
    begun: dict[str, Any]
    start: float

    def now(self) -> float:
        """Give the seconds so far."""
        return self.begun.get("wall_seconds", 0.0) + time.monotonic() - self.start

    def keep(self) -> None:
        """Write them down."""
        write_document(self.path, {**self.begun, "wall_seconds": round(self.now(), 1)})


def run_cells(
    cells: Sequence[Cell],
    place: Place,
    run_all: Callable[..., Generator[tuple[str, Any], None, None]],
    report: Reporter,
) -> dict[str, dict[str, Any]]:
    """Run the cells that have no result yet, and give the results of all by name."""
    done = {cell.name: found for cell in cells if (found := read_result(cell, place)) is not None}
    if done:
        report.note(f"{len(done)} of {len(cells)} cells are done already")
    jobs = [
        Job(
            name=cell.name,
            do=do_cell,
            given=(cell, place),
            after=cell.begins,
            cost=cost_of(cell),
            kind=kind_of(cell.work) if isinstance(cell.work, Train) else "",
        )
        for cell in cells
        if cell.name not in done
    ]
    with closing(run_all(jobs, done=set(done))) as ended:
        for name, found in ended:
            done[name] = found
            report.note(f"{len(done)} of {len(cells)}: {name}: {in_short(found['numbers'])}")
            report.progress("cells", len(done), len(cells))
    return done


def do_cell(given: tuple[Cell, Place]) -> dict[str, Any]:
    """Do a cell and keep what it came to."""
    cell, place = given
    start = time.perf_counter()
    numbers = without_begin(cell, place) or carry_out(cell, place)
    found = {"cell": digest(cell), "at": dict(cell.at), "numbers": numbers, "seconds": time.perf_counter() - start}
    write_document(place.of(cell.name) / RESULT, found)
    return found


def without_begin(cell: Cell, place: Place) -> Numbers | None:
    """Give what a cell comes to whose weights to begin with diverged; None where they did not."""
    if cell.begins is None:
        return None
    before = read_json(place.of(cell.begins) / RESULT)["numbers"]
    if "diverged" not in before:
        return None
    counted = costs(cell.work) if isinstance(cell.work, Train) else {}
    return {"diverged": f"it begins with {cell.begins}, which diverged", **counted}


def read_result(cell: Cell, place: Place) -> dict[str, Any] | None:
    """Give what a cell came to before; refuse the result of another cell of the same name."""
    path = place.of(cell.name) / RESULT
    if not path.is_file():
        return None
    found = read_json(path)
    if found.get("cell") != digest(cell):
        raise CheckpointError(
            f"{path} is the result of another version of this cell. Give another folder, or remove {path.parent}."
        )
    return found


def digest(cell: Cell) -> str:
    """Give a short text that changes with what a cell does."""
    return short_hash(repr(cell)).hex()


def begin(asked: Asked, device: str) -> dict[str, Any]:
    """Make the folder, or find what was begun there; refuse another study's, and one of another kind of device."""
    path, said = asked.out / BEGUN, {**asked.document(), "device": device}
    if path.is_file():
        found = read_json(path)
        before = {name: found.get(name) for name in said}
        if before != said:
            other = ", ".join(f"{name}={before[name]}" for name in said if before[name] != said[name])
            raise ConfigError(f"{asked.out} holds a study that was begun with {other}. Give another folder.")
        return found
    if asked.out.exists() and not asked.out.is_dir():
        raise ConfigError(f"{asked.out} is a file. Give a folder.")
    if asked.out.exists() and any(asked.out.iterdir()):
        raise ConfigError(f"{asked.out} is no folder of a study, and not empty. Give another folder.")
    with writing(asked.out):
        asked.out.mkdir(parents=True, exist_ok=True)
    write_document(path, said)
    return said


def jobs_for(asked: Asked, cells: Sequence[Cell], *, gpus: int) -> int:
    """Say how many cells are run at once: one where anything is timed; of runs that fill a GPU, one on each."""
    timed = any(isinstance(cell.work, Speed) or (isinstance(cell.work, Train) and cell.work.timed) for cell in cells)
    if timed or asked.scale.name == "smoke":
        return asked.jobs or 1
    each = 1 if asked.scale.name == "paper" else ON_GPU
    return min(asked.jobs or (each * gpus if gpus else usable_cores()), len(cells))


def visible_gpus() -> list[str]:
    """Name the GPUs that this process may use, as the environment of another one names them."""
    said = os.environ.get(GPUS)
    return said.split(",") if said else [str(number) for number in range(torch.cuda.device_count())]


def images_of(cells: Sequence[Cell]) -> list[Images]:
    """List the sets of images that cells need, each once."""
    needed = [cell.work.images for cell in cells if isinstance(cell.work, Train | Look)]
    needed += [cell.work.few for cell in cells if isinstance(cell.work, Train) and cell.work.few is not None]
    return list(dict.fromkeys(needed))


def check_names(cells: Sequence[Cell]) -> None:
    """Every cell has a name of its own, and begins with one that is there."""
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names), "two cells have one name"
    assert {cell.begins for cell in cells} - {None} <= set(names), "a cell begins with one that is not there"


def in_short(numbers: Numbers) -> str:
    """Say what a cell came to, in a few words."""
    if "diverged" in numbers:
        return "diverged"
    if "accuracy" in numbers:
        few = f", few shots {numbers['fewshot']:.1%}" if "fewshot" in numbers else ""
        return f"{numbers['accuracy']:.1%}{few}"
    if "images_per_second" in numbers:
        return f"{numbers['images_per_second']:,.0f} images/s"
    return f"{numbers['parameters']:,} parameters" if "parameters" in numbers else "done"


def device_name(device: str) -> str:
    """Name the device as people do."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else f"CPU, {usable_cores()} cores"
