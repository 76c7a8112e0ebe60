"""Ctrl-C and SIGTERM: the first asks the run to save and end, the second ends it at once."""

import _thread
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO = 1.0  # seconds in which a signal is the same once more: `timeout` and schedulers tell the process and its group


@contextmanager
def listening(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether the run was asked to end; outside the main thread nothing is heard."""
    heard: list[float] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(time.monotonic())
        if heard[-1] - heard[0] > ECHO:
            raise KeyboardInterrupt
        if len(heard) == 1:
            # By another thread, as this one may be in the middle of saying something else.
            text = f"{signal.Signals(number).name}: saving after this step; once more to stop at once."
            _thread.start_new_thread(say, (text,))

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, hear) for number in SIGNALS}
    try:
        yield lambda: bool(heard)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
