"""Jobs in several processes: what waits for another comes after it, what fails says so, and all ends."""

import math
import operator
import os
import signal
import time

import pytest

from vitrail.errors import VitrailError
from vitrail.studies.pool import Job, Queue, run_jobs


def job(name: str, given: float, *, after: str | None = None, cost: float = 1.0) -> Job:
    return Job(name=name, do=math.sqrt, given=given, after=after, cost=cost)


def test_the_dearest_that_may_begin_is_taken_first() -> None:
    queue = Queue([job("a", 1, cost=2), job("b", 1, after="c", cost=9), job("c", 1, cost=1)])
    taken = []
    while (each := queue.take()) is not None:
        taken.append(each.name)
        queue.done.add(each.name)
    assert taken == ["a", "c", "b"]
    assert Queue([job("b", 1, after="c")]).take() is None
    assert Queue([job("b", 1, after="c")], {"c"}).take() is not None


def test_one_process_does_them_in_turn_and_ends_where_it_is_asked_to() -> None:
    jobs = [job("a", 4.0), job("b", 9.0, after="a"), job("c", 16.0, after="b")]
    assert list(run_jobs(jobs, processes=1)) == [("a", 2.0), ("b", 3.0), ("c", 4.0)]
    done: list[str] = []

    def some() -> None:
        for name, _ in run_jobs(jobs, processes=1, stop=lambda: len(done) == 2):
            done.append(name)

    with pytest.raises(KeyboardInterrupt):
        some()
    assert done == ["a", "b"]


def test_several_processes_give_the_same_and_their_number_of_threads_is_theirs_alone() -> None:
    before = os.environ.get("OMP_NUM_THREADS")
    jobs = [job(f"{number}", number**2, after=f"{number - 1}" if number % 3 else None) for number in range(9)]
    jobs.append(Job(name="threads", do=os.getenv, given="OMP_NUM_THREADS"))
    found = dict(run_jobs(jobs, processes=2, environments=[{"OMP_NUM_THREADS": "7"}]))
    assert found.pop("threads") == "7"
    assert found == {f"{number}": number for number in range(9)}
    assert os.environ.get("OMP_NUM_THREADS") == before


def test_processes_take_turns_with_environments() -> None:
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    jobs = [Job(name=f"{number}", do=os.getenv, given="CUDA_VISIBLE_DEVICES") for number in range(2)]
    found = run_jobs(jobs, processes=2, environments=[{"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "7"}])
    assert {value for _, value in found} == {"4", "7"}
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before


def test_a_job_that_fails_or_whose_process_is_killed_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"bad failed in its process:[\s\S]*math domain error"):
        list(run_jobs([job("bad", -1.0), job("good", 4.0)], processes=2))
    killed = Job(name="killed", do=signal.raise_signal, given=signal.SIGKILL)
    with pytest.raises(VitrailError, match="the process of killed ended without an answer"):
        list(run_jobs([killed, job("good", 4.0)], processes=2))


def test_those_under_way_are_asked_to_save_and_end() -> None:
    start = time.monotonic()
    jobs = [Job(name="long", do=time.sleep, given=600.0), job("short", 4.0)]
    seen: list[str] = []

    def some() -> None:
        for name, _ in run_jobs(jobs, processes=2, stop=lambda: bool(seen)):
            seen.append(name)

    with pytest.raises(KeyboardInterrupt):
        some()
    assert seen == ["short"]
    assert time.monotonic() - start < 500  # it was ended, and not waited for


def test_what_is_sent_to_a_process_is_done_there() -> None:
    found = dict(run_jobs([Job(name="pid", do=operator.call, given=os.getpid)] * 1, processes=2))
    assert found["pid"] != os.getpid()


def test_a_process_takes_what_it_knows_unless_something_far_dearer_waits() -> None:
    names = {"vit small": ("vit", 5.0), "bit": ("bit", 6.0), "vit": ("vit", 2.9), "hybrid": ("hybrid", 20.0)}
    jobs = [Job(name=name, do=math.sqrt, given=1.0, kind=kind, cost=cost) for name, (kind, cost) in names.items()]
    queue = Queue(jobs)
    taken = [queue.take({"vit"}) for _ in range(4)]
    assert [job.name for job in taken if job] == ["hybrid", "vit small", "bit", "vit"]
