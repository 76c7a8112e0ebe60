"""What is learned of every pixel, or of the objects of an image, and the head that predicts it."""

from typing import Literal, cast, get_args

from vitrail.config.check import one_of

DenseTask = Literal["segment", "detect"]


def read_task(word: object) -> DenseTask:
    """Read a task; refuses another."""
    return cast(DenseTask, one_of("task", word, get_args(DenseTask)))
