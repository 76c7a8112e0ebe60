"""What a process says of another that was killed, when torchrun ends all others for it."""

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from vitrail.runtime.watch import ProcessError, watched


class Looking:
    """A watch that is told to end while it looks who is gone."""

    left: str | None = None

    def explain(self) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return "rank 1 of 2 is gone."

    def leave(self, reason: str | None) -> None:
        self.left = reason

    def linger(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """Hear SIGTERM as a program does that embeds this one."""
    found: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        found.append(number)

    before = signal.signal(signal.SIGTERM, hear)
    yield found
    assert signal.getsignal(signal.SIGTERM) is hear
    signal.signal(signal.SIGTERM, before)


def test_a_process_that_is_told_to_end_while_it_fails_says_first_who_is_gone(heard: list[int]) -> None:
    watch = Looking()
    with pytest.raises(ProcessError, match="rank 1 of 2 is gone"), watched(lambda: watch):  # pyright: ignore[reportArgumentType]
        raise RuntimeError("[gloo/transport] Connection closed by peer")
    assert watch.left == "ended as rank 1 of 2 is gone."
    assert heard == []
    assert not [
        each for each in threading.enumerate() if isinstance(each, threading.Timer) and not each.finished.is_set()
    ]


def test_a_process_that_does_not_fail_ends_as_it_is_told(heard: list[int]) -> None:
    watch = Looking()
    watch.linger = lambda: None
    with watched(lambda: watch):  # pyright: ignore[reportArgumentType]
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    assert watch.left is None
