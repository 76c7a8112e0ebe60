"""What passes through the engine: a request with its images, what is done with them, and why it may be refused."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vitrail.errors import VitrailError


class RefusedError(VitrailError):
    """A request that is not taken, or no longer waited for: too much waits already."""

    def __init__(self, reason: str, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.reason, self.retry_after = reason, max(math.ceil(retry_after), 1)


class BadImagesError(VitrailError):
    """Images of a request that cannot be decoded, each with its place and the reason."""

    def __init__(self, failed: Sequence[tuple[int, str]]) -> None:
        super().__init__("; ".join(f"image {place}: {reason}" for place, reason in failed))
        self.failed = failed


class Task(Protocol):
    """What is done with images: work of one kind by one model. Equal tasks are computed together."""

    @property
    def tokens(self) -> int: ...  # noqa: D102  # of an image

    @property
    def most(self) -> int: ...  # noqa: D102  # images that are computed at once, whatever the tokens

    def decode(self, data: bytes) -> Any: ...  # noqa: ANN401, D102  # beside the model

    def compute(self, images: Sequence[Any]) -> Sequence[Any]: ...  # noqa: D102  # an answer for each


@dataclass(eq=False)
class Ticket:
    """A request that waits: its images, how many are not answered yet, and the answers."""

    task: Task
    deadline: float
    arrived: float
    done: "asyncio.Future[None]"
    answers: list[Any]
    left: int
    failed: list[tuple[int, str]] = field(default_factory=list)
    error: Exception | None = None
    gone: bool = False  # nobody waits for it any more
    seconds: dict[str, float] = field(default_factory=dict)  # waiting, decoding and computing, of its slowest image


@dataclass(eq=False)
class Job:
    """One image of a request."""

    ticket: Ticket
    place: int
    data: bytes | None
    image: Any = None
    counted: bool = True  # among those that wait
    decoding: bool = False  # among those that the decoding threads will hand on
    since: float = 0.0


@dataclass
class Running:
    """What a lane computes."""

    begun: float
    expected: float
