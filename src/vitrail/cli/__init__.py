"""The command line: thin functions, rendering for people, and the only place that exits."""

import time
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and give its exit status; the minutes of a run count from here, before anything is loaded.

    0 done, 1 failed, 2 wrong usage, 70 a bug, 130 interrupted, 141 where nobody reads on (`| head`).
    """
    start = time.monotonic()
    from vitrail.cli import app

    before = app.began.set(start)
    try:
        return app.main(arguments)
    finally:
        app.began.reset(before)
