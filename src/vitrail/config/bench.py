"""What `vitrail bench` is asked for, for those who only name it; `studies.bench` has the rest."""

from vitrail.config.check import one_of, positive, whole

BENCH_GROUPS = ("forward", "training", "latency", "memory", "data", "loading")
ALL = "all"
MOST_REPEATS, MOST_JOBS = 1000, 256


def check_bench(
    what: str | None, repeats: int | None = None, seconds: float | None = None, jobs: int | None = None
) -> None:
    """Refuse a group of rows that there is not, and numbers that are none."""
    if what is not None:
        one_of("what", what, (*BENCH_GROUPS, ALL))
    if repeats is not None:
        whole("repeats", repeats, most=MOST_REPEATS)
    if seconds is not None:
        positive("seconds", seconds)
    if jobs is not None:
        whole("jobs", jobs, most=MOST_JOBS)
