"""A warm process that runs pieces of Python, each in a fork of its own: torch and the package are imported once."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class Ran(NamedTuple):
    """How a piece of code ended, and what it printed."""

    status: int
    out: str
    err: str


class Python:
    """Runs code as a process of its own would: in a namespace and a folder of its own."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True, env=environment)

    def __call__(self, code: str, folder: Path) -> Ran:
        """Run code in a folder."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with tempfile.TemporaryDirectory() as said:
            self.process.stdin.write(json.dumps([code, str(folder), said]) + "\n")
            self.process.stdin.flush()
            status = int(self.process.stdout.readline())
            return Ran(status, (Path(said) / "out").read_text(), (Path(said) / "err").read_text())


@contextmanager
def warm() -> Iterator[Python]:
    """Give a warm process."""
    python = Python()
    try:
        yield python
    finally:
        with python.process:  # which closes its pipes
            pass


def serve() -> None:
    """Fork for each piece of code that comes in; answer with its exit status."""
    import torch._dynamo  # noqa: F401, which the first optimizer would import

    import vitrail

    for name in vitrail.__all__:
        getattr(vitrail, name)
    for line in sys.stdin:
        code, folder, said = json.loads(line)
        if not (child := os.fork()):
            become(code, folder, Path(said))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def become(code: str, folder: str, said: Path) -> None:
    """Run a piece of code and end."""
    status = 1
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(said / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    try:
        os.chdir(folder)
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(code, "<snippet>", "exec"), namespace)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
