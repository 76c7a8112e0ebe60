"""How many images fit into a memory at once, and the equal parts that a batch goes through in."""

from collections.abc import Callable
from dataclasses import replace

from vitrail.config import ModelConfig
from vitrail.ops.cost.counts import Step, peak_memory

SHARE = 0.8  # of the memory that a step may take: what is cut up or held by the system is the rest
MOST = 1 << 20  # images that are looked at


def largest(fits: Callable[[int], bool], most: int = MOST) -> int:
    """Give the largest count that fits, by doubling and halving; 0 where none does. What is smaller fits too."""
    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_batch(config: ModelConfig, step: Step, room: float, most: int = MOST) -> int:
    """Predict the most images whose step of this kind fits into so many bytes; 0 where none does."""
    return largest(lambda batch: peak_memory(config, replace(step, batch=batch)).total <= room, most)


def equal_parts(batch: int, most: int) -> int:
    """Give the size of the fewest equal parts of a batch that have at most so many images, and at least one."""
    return -(-batch // -(-batch // max(most, 1)))
