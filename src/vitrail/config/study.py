"""The names of studies and of their scales, for those who only name them; `studies` has the rest."""

from vitrail.config.check import one_of, positive, whole
from vitrail.config.words import suggest
from vitrail.errors import ConfigError

STUDY_NAMES = (
    *("models", "data-size", "scaling", "positions", "head", "shape", "optimizers", "resolution", "transfer"),
    *("self-supervision", "axial", "speed", "distance", "speedrun"),
)
SCALE_NAMES = ("smoke", "cpu", "gpu", "paper")


TIMED = ("speed", "speedrun")  # studies that measure one cell after the other
UNTRAINED = ("models", "speed")  # studies that count or time, so that they have no seeds and no minutes
MOST_SEEDS, MOST_JOBS = 100, 256


def check_study(
    name: str,
    scale: str,
    seeds: int | None = None,
    minutes: float | None = None,
    jobs: int | None = None,
    length: float | None = None,
) -> None:
    """Refuse a study or a scale that there is not, and numbers that are none of theirs."""
    if name not in STUDY_NAMES:
        raise ConfigError(
            f"there is no study {name!r}.{suggest(name, STUDY_NAMES)} There are: {', '.join(STUDY_NAMES)}."
        )
    one_of("scale", scale, SCALE_NAMES)
    if seeds is not None:
        whole("seeds", seeds, most=MOST_SEEDS)
    if jobs is not None:
        whole("jobs", jobs, most=MOST_JOBS)
        if name in TIMED and jobs > 1:
            raise ConfigError(f"{name} measures one cell after the other, so that jobs must be 1. Leave jobs out.")
    if minutes is not None and length is not None:
        raise ConfigError("minutes and length both say how long runs are. Give one of them.")
    for word, value in (("minutes", minutes), ("length", length)):
        if value is None:
            continue
        positive(word, value)
        if name in UNTRAINED:
            raise ConfigError(f"{name} trains nothing, so that {word} says nothing of it. Leave {word} out.")
    if length is not None and scale == "paper":
        raise ConfigError("the paper's own runs are as long as the paper says. Leave length out.")
