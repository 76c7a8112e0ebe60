"""Measures the ways of any case in turns, alone on the device; what cannot be measured is a gap with its reason.

On a GPU a way has a process of its own: all are made ready at once, since that is compilation, and then measured one
after the other while the others wait. What fails, or is killed, takes nothing else with it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from vitrail.errors import VitrailError
from vitrail.runtime.reporter import SILENT, Reporter
from vitrail.studies.bench.ready import Asked, close, make_ready, measure
from vitrail.studies.bench.table import Case, Found
from vitrail.studies.bench.work import gpu_bytes
from vitrail.studies.pool import Job, Worker, ask, open_workers, receive

LOOK = 0.5  # seconds between looks at who is ready
PREPARING, MEASURING = 300.0, 180.0  # seconds, after which a process is given up
CONTEXT = 1 << 30  # bytes that a process keeps of a GPU beside what it says


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a bench runs: its device, how often and how long each way is timed, and in how many processes."""

    device: str
    repeats: int
    seconds: float  # of each repeat
    jobs: int = 1  # processes that are made ready at once; 0: all in this one
    apart: bool = False  # each way in a process of its own
    room: int = 1 << 62  # bytes that all processes may take of a GPU
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def wave(self) -> int:
        """Processes that there are at once."""
        return 2 * self.jobs if self.jobs > 1 else 1


@dataclass(eq=False)
class Part:
    """Ways of a case that share a process."""

    case: Case
    ways: tuple[str, ...]
    need: int  # bytes of a GPU, at most
    worker: Worker | None = None  # none: this process
    held: int = 0  # bytes of a GPU while it waits


def run_cases(
    cases: Sequence[Case], place: Place, report: Reporter = SILENT
) -> Iterator[tuple[Case, dict[str, Found]]]:
    """Measure cases, and give each with what its ways came to, as they are done."""
    for wave in waves(cases, place):
        parts = [part for case in wave for part in parts_of(case, place)]
        found = {case.name: {way.name: Found() for way in case.ways} for case in wave}
        with hired(parts, place):
            prepare(parts, place, found, report)
            for case in wave:
                own = [part for part in parts if part.case is case]
                take_turns(case, own, place, found[case.name])
                for part in own:
                    call(part, close, case.name)
                yield case, found[case.name]


def waves(cases: Sequence[Case], place: Place) -> Iterator[list[Case]]:
    """Put cases together whose processes there may be at once."""
    wave: list[Case] = []
    for case in cases:
        if wave and sum(len(parts_of(each, place)) for each in (*wave, case)) > place.wave:
            yield wave
            wave = []
        wave.append(case)
    if wave:
        yield wave


def parts_of(case: Case, place: Place) -> list[Part]:
    """Share the ways of a case out among processes."""
    shared: dict[str, list[str]] = {}
    for way in case.ways:
        name = (way.process or way.name) if place.apart else ""
        shared.setdefault(name, []).append(way.name)
    need = {way.name: gpu_bytes(way.work) for way in case.ways} if place.apart else {}
    return [Part(case, tuple(names), max(need.get(name, 0) for name in names)) for names in shared.values()]


@contextmanager
def hired(parts: Sequence[Part], place: Place) -> Iterator[None]:
    """Give each part its process, which ends with the wave."""
    if not place.jobs:
        yield
        return
    with open_workers(len(parts), [place.environment]) as workers:
        for part, worker in zip(parts, workers, strict=True):
            part.worker = worker
        yield


def prepare(parts: Sequence[Part], place: Place, found: dict[str, dict[str, Found]], report: Reporter) -> None:
    """Make all parts ready, the largest first, as many at once as there may be and as fit into memory."""
    waiting, busy = sorted(parts, key=lambda part: -part.need), dict[Part, float]()
    done, what = 0, f"making ready: {parts[0].case.title}{' and others' if len(parts) > 1 else ''}"
    while waiting or busy:
        for part in list(waiting):
            taken = sum(each.need for each in busy) + sum(each.held for each in parts)
            if busy and (len(busy) >= place.jobs or taken + part.need > place.room):
                continue
            waiting.remove(part)
            asked = Asked(case=part.case, ways=part.ways, device=place.device, seconds=place.seconds)
            if part.worker is None:
                note(part, make_ready(asked), found)
                done += 1
                continue
            ask(part.worker, Job(name=part.case.title, do=make_ready, given=asked))
            busy[part] = time.monotonic()
        for part, answer in list(ended(busy)):
            note(part, answer, found)
            del busy[part]
            done += 1
        report.progress(what, done, len(parts) if len(parts) > 1 else None)
    report.progress(what, len(parts), len(parts))


def ended(busy: dict[Part, float]) -> Iterator[tuple[Part, Any]]:
    """Give the parts that have an answer, with it; those that have had none for too long are ended."""
    pipes = {part.worker.pipe: part for part in busy if part.worker is not None}
    done = [pipes[pipe] for pipe in wait(list(pipes), timeout=LOOK)] if pipes else []
    for part in done:
        yield part, answer_of(part)
    for part in [part for part, since in busy.items() if part not in done and time.monotonic() - since > PREPARING]:
        yield part, give_up(part, PREPARING)


def give_up(part: Part, seconds: float) -> str:
    """End a process that takes too long, and say so."""
    assert part.worker is not None
    part.worker.process.kill()
    return f"it took over {seconds:g} seconds."


def answer_of(part: Part) -> Any:  # noqa: ANN401
    """Give what a part's process answered; where it did not, why."""
    assert part.worker is not None
    try:
        return receive(part.worker)
    except (VitrailError, RuntimeError) as error:
        return str(error).strip().splitlines()[-1]


def note(part: Part, answer: Any, found: dict[str, dict[str, Found]]) -> None:  # noqa: ANN401
    """Note what each way of a part said when it was made ready."""
    if isinstance(answer, str):
        answer = {"gaps": dict.fromkeys(part.ways, answer), "about": {}, "held": 0}
    ways = found[part.case.name]
    for name in part.ways:
        ways[name].gap = answer["gaps"].get(name)
        ways[name].about = dict(answer["about"].get(name, {}))
    part.held = answer["held"] + CONTEXT


def take_turns(case: Case, parts: Sequence[Part], place: Place, found: dict[str, Found]) -> None:
    """Measure every way once, and again: all see the same machine."""
    of = {name: part for part in parts for name in part.ways}
    for _ in range(case.repeats or place.repeats):
        for way in case.ways:
            each = found[way.name]
            if each.gap is not None:
                continue
            answer = call(of[way.name], measure, (case.name, way.name))
            if isinstance(answer, str):
                each.gap = answer
            else:
                each.add(answer)


def call(part: Part, do: Callable[[Any], Any], given: Any) -> Any:  # noqa: ANN401
    """Let a part's process do something, and wait for it; where it gives nothing, say why."""
    if part.worker is None:
        return do(given)
    try:
        ask(part.worker, Job(name=part.case.title, do=do, given=given))
    except OSError:
        return "its process has ended."
    return answer_of(part) if part.worker.pipe.poll(MEASURING) else give_up(part, MEASURING)
