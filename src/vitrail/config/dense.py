"""What is learned of every pixel, or of the objects of an image, and the head that predicts it."""

from dataclasses import dataclass
from typing import Literal, cast, get_args

from vitrail.config.check import DEEPEST, Checked, needs, one_of, whole
from vitrail.config.task import ImageTask, task_word
from vitrail.errors import ConfigError

DenseTask = Literal["segment", "detect"]
LARGEST_UPSCALE = 32


def read_task(word: object) -> DenseTask:
    """Read a task; refuses another."""
    return cast(DenseTask, one_of("task", word, get_args(DenseTask)))


def dense_of(task: ImageTask) -> DenseTask | None:
    """Give the word of a task of pixels or objects; None of another."""
    return read_task(word) if (word := task_word(task)) in get_args(DenseTask) else None


def power_of_two(name: str, value: object) -> int:
    """Read a power of two."""
    found = whole(name, value, most=LARGEST_UPSCALE)
    if found & (found - 1):
        raise ConfigError(f"{name} must be a power of two, up to {LARGEST_UPSCALE}; got {found}.")
    return found


@dataclass(frozen=True, kw_only=True)
class QueryHead(Checked, word="queries", where="head."):
    """Learned queries join the tokens for the last blocks; each gives a class, a mask, and a box where task=detect."""

    task: DenseTask = "segment"
    queries: int = needs(whole, 50, most=1000)
    blocks: int = needs(whole, 4, most=DEEPEST)  # the last ones, which queries join
    upscale: int = needs(power_of_two, 4)  # of the patch map, on which masks are drawn
    masks: bool = False  # of objects too, where task=detect: the pixels of each

    @property
    def draws(self) -> bool:
        """Whether queries draw masks: of classes of pixels, or of objects."""
        return self.task == "segment" or self.masks

    @property
    def shapes(self) -> bool:
        """Whether the pixels of objects are learned."""
        return self.task == "detect" and self.masks


@dataclass(frozen=True, kw_only=True)
class LinearHead(Checked, word="linear", where="head."):
    """A linear classifier of every patch, whose scores are interpolated: the baseline; it segments alone."""

    @property
    def task(self) -> DenseTask:
        """What it predicts."""
        return "segment"

    @property
    def shapes(self) -> bool:
        """Whether the pixels of objects are learned."""
        return False


DenseHead = QueryHead | LinearHead
