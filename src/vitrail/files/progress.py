"""Tell on stderr how far a download is: one line redrawn on a terminal, a first and a last line elsewhere."""

import contextlib
import shutil
import sys
import time

from vitrail.errors import harmless

INTERVAL = 0.1  # seconds between two drawings


def say(line: str) -> None:
    """Write one line for people on stderr; a stderr that is closed stops nothing."""
    _write(f"{harmless(line)}\n")


class Progress(contextlib.AbstractContextManager["Progress"]):
    """How far the download of one file is; silent until `begin`, so that files of the cache print nothing."""

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        self._name, self._quiet = name, quiet
        self._begun: float | None = None
        self._drawn: float | None = None
        self._total: int | None = None
        self._length = self._done = self._received = 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._begun is None:
            return
        if self._drawn is not None:
            self._draw()
            _write("\n")
        elif kind is None:
            seconds = time.monotonic() - self._begun
            say(f"downloaded {self._name}  {_megabytes(self._done)} MB in {seconds:.0f} s")

    def begin(self, done: int, total: int | None) -> None:
        """Start, or start again after a cut, at `done` bytes of `total`."""
        self._done, self._total = done, total
        if self._begun is not None or self._quiet:
            return
        self._begun = time.monotonic()
        if sys.stderr is not None and sys.stderr.isatty():
            self._draw()
        else:
            size = "" if total is None else f"  {_megabytes(total)} MB"
            say(f"downloading {self._name}{size}" + (f", continues at {_megabytes(done)} MB" if done else ""))

    def advance(self, count: int) -> None:
        """Count bytes that came in; the line is redrawn at most ten times a second."""
        self._done += count
        self._received += count
        if self._drawn is not None and time.monotonic() - self._drawn >= INTERVAL:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        line = self._line(self._drawn)[: max(20, shutil.get_terminal_size().columns - 1)]
        _write("\r" + line.ljust(self._length))  # what the last drawing left over is blanked
        self._length = len(line)

    def _line(self, now: float) -> str:
        seconds = now - (self._begun or now)
        parts = [f"downloading {self._name}", f"{_megabytes(self._done)} MB"]
        if self._total is not None:
            share = 100 * self._done // max(self._total, 1)
            parts[1:] = [f"{_megabytes(self._done)} / {_megabytes(self._total)} MB", f"{share} %"]
        if seconds > 0:
            parts.append(f"{_megabytes(self._received / seconds)} MB/s")
        return "  ".join(parts)


def _megabytes(count: float) -> str:
    return f"{count / 1e6:,.0f}" if count >= 1e7 else f"{count / 1e6:.1f}"


def _write(text: str) -> None:
    if sys.stderr is not None:  # there is none under pythonw
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()
