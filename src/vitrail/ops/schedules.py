"""The learning rate at a step, as the authors' code has it: a warm-up from 0 times a curve."""

from math import cos, pi
from typing import assert_never

from vitrail.config.recipe import EMA, Schedule


def rate_at(schedule: Schedule, base: float, step: int, steps: int) -> float:
    """Give the rate of the update that makes step `step` into step `step` + 1, of `steps`."""
    warm = min(1.0, step / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    progress = min(max((step - schedule.warmup_steps) / max(steps - schedule.warmup_steps, 1), 0.0), 1.0)
    final = schedule.final_learning_rate
    match schedule.curve:
        case "constant":
            return base * warm
        case "linear":
            return (final + (base - final) * (1 - progress)) * warm
        case "cosine":
            return (final + (base - final) * 0.5 * (1 + cos(pi * progress))) * warm
        case "staircase":
            return base * schedule.drop ** sum(milestone < step for milestone in schedule.milestones) * warm
        case _:
            assert_never(schedule.curve)


def decay_at(average: EMA, step: int) -> float:
    """Give how much of a running average stays at an update, the first of which is step 0."""
    return min(average.decay, (1 + step) / (10 + step)) if average.ramp else average.decay
