"""A run's log as Weights & Biases and MLflow show it; each in a process of its own, so that none can stop the run.

That process follows the log in the run's folder, as `tail -f` does, and hands on what is new. Where a service is down,
hangs or refuses, the run does not notice: the log is on the disk, and the same command sends later what was not taken.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Thread

from vitrail.runtime.reporter import Reporter

WAIT = 30.0  # seconds that the end of a run waits for those who have not taken all
QUICK = 2.0  # seconds of them that nothing is said of


class Trackers:
    """The processes that hand a run's log on; what they have to say is noted."""

    def __init__(self, names: Iterable[str], folder: Path, report: Reporter) -> None:
        self._names = tuple(name for name in names if name != "tensorboard")  # which writes files, here
        self._folder, self._report = folder, report
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._listeners: list[Thread] = []

    def start(self) -> None:
        """Start a process for each; one that cannot start is noted, and nothing else."""
        for name in self._names:
            command = [sys.executable, "-m", "vitrail.runtime.tracking_process", name, str(self._folder)]
            try:
                # In a session of its own: Ctrl-C is for the run, which tells it when all is over.
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, bufsize=0
                )
            except OSError as error:
                self._report.note(f"{name}: {error}. The run goes on without it")
                continue
            self._processes[name] = process
            listener = Thread(target=self._listen, args=(name, process), name=f"vitrail-{name}", daemon=True)
            listener.start()
            self._listeners.append(listener)

    def close(self, *, finished: bool) -> None:
        """Say that the log is whole, and wait a while for those who have not handed it on."""
        for process in self._processes.values():
            with contextlib.suppress(OSError):  # it ended before
                assert process.stdin is not None
                process.stdin.write(b"finished" if finished else b"interrupted")
                process.stdin.close()
        end = time.monotonic() + WAIT
        for name, process in self._processes.items():
            try:
                try:
                    process.wait(QUICK)
                except subprocess.TimeoutExpired:
                    self._report.note(f"waiting for {name}, at most {WAIT:.0f} seconds")
                    process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                _end(process)
            if process.returncode:
                self._report.note(
                    f"{name} did not take all of the log, which is in {self._folder} all the same; "
                    "the same command again sends the rest"
                )
        for listener in self._listeners:
            listener.join(QUICK)
        self._processes.clear()
        self._listeners.clear()

    def _listen(self, name: str, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError), process.stdout as words:
            for line in words:
                self._report.note(f"{name}: {line.decode(errors='replace').strip()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with those that it has started."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def send_rest(names: Iterable[str], folder: Path, report: Reporter) -> None:
    """Hand on what is left of a finished run's log."""
    trackers = Trackers(names, folder, report)
    trackers.start()
    trackers.close(finished=True)
