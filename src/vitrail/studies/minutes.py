"""How much longer or shorter all runs of a study must be, so that it takes as many minutes as there are."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from heapq import heappop, heappush
from typing import Any

from vitrail.studies.pool import Job, Queue
from vitrail.studies.table import Cell, Train
from vitrail.studies.work import Place, costs, length_of, try_out

FEWEST = 8  # steps of a run, however few minutes there are
MOST_TIMES, HALVINGS = 64.0, 30  # of the usual steps that a study is made longer; how finely that is found
STARTING = 10.0  # seconds that processes take to start


def fitting(
    cells: Sequence[Cell],
    place: Place,
    seconds: float,
    jobs: int,
    run_all: Callable[..., Generator[tuple[str, Any], None, None]],
) -> float:
    """Give how many times the usual steps fit into so many seconds: each kind of run is tried, as many at once."""
    start = time.monotonic()
    kinds: dict[str, Train] = {}
    for cell in cells:
        if isinstance(cell.work, Train):
            kinds.setdefault(kind_of(cell.work), cell.work)
    if not kinds:
        return 1.0
    tried = [(kind, number) for number in range(-(-min(jobs, len(cells)) // len(kinds))) for kind in kinds]
    trials = [Job(name=f"{kind} {number}", do=try_kind, given=(kinds[kind], place)) for kind, number in tried]
    found: dict[str, list[tuple[float, float]]] = {}
    with closing(run_all(trials)) as ended:
        for name, times in ended:
            found.setdefault(name.rpartition(" ")[0], []).append(times)
    paces = {kind: max(pace for pace, _ in times) for kind, times in found.items()}
    around = {kind: max(over for _, over in times) for kind, times in found.items()}
    least = max(FEWEST / length_of(cell.work)[1] for cell in cells if isinstance(cell.work, Train))
    left = seconds - (time.monotonic() - start) - STARTING

    def lasts(factor: float) -> float:
        times: dict[str, float] = {}
        for cell in cells:
            if isinstance(cell.work, Train):
                kind = kind_of(cell.work)
                times[cell.name] = around[kind] + factor * paces[kind] * length_of(cell.work)[1]
        return makespan(cells, times, jobs)

    low, high = least, max(2 * least, 1.0)
    while lasts(high) < left and high < MOST_TIMES:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if lasts(middle) < left else (low, middle)
    return low


def makespan(cells: Sequence[Cell], seconds: Mapping[str, float], jobs: int) -> float:
    """Give how long cells of these lengths take, so many at once, in the order in which they are handed out."""
    queue = Queue(
        [Job(name=cell.name, do=cost_of, given=None, after=cell.begins, cost=cost_of(cell)) for cell in cells]
    )
    going: list[tuple[float, str]] = []
    now = 0.0
    while queue.left or going:
        while len(going) < jobs and (job := queue.take()) is not None:
            heappush(going, (now + seconds.get(job.name, 0.0), job.name))
        now, name = heappop(going)
        queue.done.add(name)
    return now


def kind_of(work: Train) -> str:
    """Tell runs apart whose steps may take differently long."""
    names = ("batch_size", "image_size", "objective")
    measured = (work.images.name, work.few, work.patience is None, type(work.fields.get("optimizer")).__name__)
    return repr((work.network, work.images.image_size, [work.fields.get(name) for name in names], measured))


def try_kind(given: tuple[Train, Place]) -> tuple[float, float]:
    """Give the seconds of a step, and what a run takes beside its steps once its model was compiled before."""
    work, place = given
    try_out(work, place)
    return try_out(work, place)


def cost_of(cell: Cell) -> float:
    """Say how dear a cell is beside others, so that the longest begin first."""
    return float(costs(cell.work)["exaflops"]) if isinstance(cell.work, Train) else 0.0
