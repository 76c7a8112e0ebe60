"""Several processes that take jobs one after the other; a job may wait for another. Knows nothing of what they do."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from vitrail.errors import VitrailError

LOOK = 0.5  # seconds between looks whether somebody asks to end
PATIENCE = 120.0  # seconds that a process may take to save and end


@dataclass(frozen=True, kw_only=True)
class Job:
    """A function of one argument, and what must be done before it."""

    name: str
    do: Callable[[Any], Any]
    given: Any
    after: str | None = None
    cost: float = 1.0  # the dearest that can begin is begun first
    kind: str = ""  # of jobs that a process does faster where it has done one before: its code is compiled


@dataclass
class Worker:
    """A process, and the job that it does."""

    process: BaseProcess
    pipe: Any  # Connection; its class is another on another system
    job: Job | None = None
    kinds: set[str] = field(default_factory=set)  # of the jobs that it was given


@dataclass
class Queue:
    """Jobs that are not begun, and the names of those that are done."""

    left: list[Job]
    done: set[str] = field(default_factory=set)

    def take(self, kinds: Collection[str] = ()) -> Job | None:
        """Take the dearest job whose turn it may be; one of these kinds where it costs at least half as much."""
        ready = [job for job in self.left if job.after is None or job.after in self.done]
        if not ready:
            return None
        chosen = max(ready, key=lambda job: job.cost)
        known = [job for job in ready if job.kind in kinds and job.cost >= chosen.cost / 2]
        chosen = max(known, key=lambda job: job.cost, default=chosen)
        self.left.remove(chosen)
        return chosen


def run_jobs(
    jobs: Sequence[Job],
    *,
    processes: int,
    environments: Sequence[Mapping[str, str]] = ({},),
    done: set[str] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[tuple[str, Any], None, None]:
    """Do all jobs, so many at once, and give each one's name and what it came to, as they end; `done` were before.

    Processes take turns with the environments, which they begin with; one process alone is this one. Where `stop` turns
    true, or a job fails, those that are under way are asked to save and end (SIGTERM), and a KeyboardInterrupt, or the
    error, is raised.
    """
    queue = Queue(list(jobs), set(done or ()))
    if processes == 1:
        while (job := queue.take()) is not None:
            if stop():
                raise KeyboardInterrupt
            yield job.name, job.do(job.given)
            queue.done.add(job.name)
        return
    with open_workers(min(processes, max(len(jobs), 1)), environments) as workers:
        yield from _hand_out(queue, workers, stop)


def _hand_out(queue: Queue, workers: list[Worker], stop: Callable[[], bool]) -> Iterator[tuple[str, Any]]:
    while queue.left or any(worker.job for worker in workers):
        for worker in workers:
            if worker.job is None and (job := queue.take(worker.kinds)) is not None:
                ask(worker, job)
        busy = {worker.pipe: worker for worker in workers if worker.job}
        assert busy, f"jobs wait for what is not among them: {[job.name for job in queue.left]}"
        for pipe in wait(list(busy), timeout=LOOK):
            worker = busy[pipe]
            job = worker.job
            assert job is not None
            queue.done.add(job.name)
            yield job.name, receive(worker)
        if stop():
            raise KeyboardInterrupt


def ask(worker: Worker, job: Job) -> None:
    """Let a process begin a job."""
    worker.job = job
    worker.kinds.add(job.kind)
    worker.pipe.send((job.do, job.given))


def receive(worker: Worker) -> Any:  # noqa: ANN401
    """Give what a process sent, or raise what it failed with; waits for it."""
    job, worker.job = worker.job, None
    assert job is not None
    try:
        kind, value = worker.pipe.recv()
    except EOFError:
        worker.process.join()
        raise VitrailError(
            f"the process of {job.name} ended without an answer (exit status {worker.process.exitcode}): perhaps there "
            "was too little memory. Fewer at once (jobs=...) need less."
        ) from None
    if kind == "failed":
        raise VitrailError(f"{job.name}: {value}")
    if kind == "interrupted":
        raise KeyboardInterrupt(value)
    if kind == "bug":
        raise RuntimeError(f"{job.name} failed in its process:\n{value}")
    return value


@contextmanager
def _environment(given: Mapping[str, str]) -> Iterator[None]:
    """Let what is started meanwhile have these variables."""
    before = {name: os.environ.get(name) for name in given}
    os.environ |= given
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            os.environ |= {} if value is None else {name: value}


@contextmanager
def open_workers(count: int, environments: Sequence[Mapping[str, str]]) -> Iterator[list[Worker]]:
    """Start processes; at the end, or where anything fails, let those under way save, and end all."""
    context = multiprocessing.get_context("spawn")
    workers: list[Worker] = []
    for number in range(count):
        with _environment(environments[number % len(environments)]):  # read where torch is imported, in each process
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,))
            process.start()
            theirs.close()
            workers.append(Worker(process, ours))
    try:
        yield workers
    finally:
        for worker in workers:
            if worker.job is not None and worker.process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(worker.process.pid or 0, signal.SIGTERM)
            with suppress(OSError):
                worker.pipe.send(None)
        for worker in workers:
            worker.process.join(PATIENCE if worker.job is not None else 5.0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()


def _outlive_nobody() -> None:
    """Ask this process to save and end where the one that started it is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _serve(pipe: Any) -> None:  # noqa: ANN401
    """Do jobs until there is none: in a process of its own, which saves and ends with the one that started it."""
    threading.Thread(target=_outlive_nobody, daemon=True).start()
    while True:
        try:
            asked = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        if asked is None:
            return
        do, given = asked
        answer: tuple[str, Any]
        try:
            answer = ("done", do(given))
        except VitrailError as error:
            answer = ("failed", str(error))
        except KeyboardInterrupt as error:
            answer = ("interrupted", str(error))
        except Exception:
            answer = ("bug", traceback.format_exc())
        with suppress(OSError):
            pipe.send(answer)
