"""The learning rate at a step, as the authors' code has it: a warm-up from 0 times a curve."""

from math import cos, pi
from typing import assert_never

from vitrail.config.recipe import Average, Schedule


def rate_at(schedule: Schedule, base: float, step: int, steps: int) -> float:
    """Give the rate of the update that makes step `step` into step `step` + 1, of `steps`."""
    warm = min(1.0, step / schedule.warmup) if schedule.warmup else 1.0
    progress = min(max((step - schedule.warmup) / max(steps - schedule.warmup, 1), 0.0), 1.0)
    match schedule.curve:
        case "constant":
            return base * warm
        case "linear":
            return (schedule.end + (base - schedule.end) * (1 - progress)) * warm
        case "cosine":
            return (schedule.end + (base - schedule.end) * 0.5 * (1 + cos(pi * progress))) * warm
        case "staircase":
            return base * schedule.drop ** sum(milestone < step for milestone in schedule.milestones) * warm
        case _:
            assert_never(schedule.curve)


def decay_at(average: Average, step: int) -> float:
    """Give how much of a running average stays at an update, the first of which is step 0."""
    return min(average.decay, (1 + step) / (10 + step)) if average.ramp else average.decay
