"""Runs of one script beside each other, each a process of its own; what each prints last is its result."""

import json
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from vitrail.runtime.sharing import shared_gpu
from vitrail.verbs.data import pack_data


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def packed(data: Path, out: Path, size: int) -> Path:
    """Decode a set once, at a size."""
    if not out.exists():
        pack_data(str(data), str(out), image_size=size)
    return out


def run_all(script: str, asked: Sequence[dict[str, Any]], jobs: int) -> list[dict[str, Any]]:
    """Run the script once for each of these, so many at once; gives what each found, in their order."""
    with shared_gpu() if jobs > 1 else nullcontext():
        return _run_all(script, asked, jobs)


def _run_all(script: str, asked: Sequence[dict[str, Any]], jobs: int) -> list[dict[str, Any]]:
    waiting, going, found = list(enumerate(asked)), {}, dict[int, dict[str, Any]]()
    while waiting or going:
        while waiting and len(going) < jobs:
            number, one = waiting.pop(0)
            command = [sys.executable, script, "--one", json.dumps(one)]
            going[number] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(0.1)
        for number, process in [*going.items()]:
            if process.poll() is None:
                continue
            out, error = process.communicate()
            if process.returncode:
                raise SystemExit(f"{asked[number]} failed:\n{error[-3000:]}")
            found[number] = {**asked[number], **json.loads(out.splitlines()[-1])}
            say(f"{len(found)} of {len(asked)}: {found[number]}")
            del going[number]
    return [found[number] for number in range(len(asked))]


def options(usage: str, data: str, out: str, *, steps: int) -> ArgumentParser:
    """Give the flags that these scripts share."""
    parser = ArgumentParser(description=usage, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help=f"the folder that holds {data}")
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--per-class", type=int, help="images of a class at most, to try the script")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--one", help="a run, as JSON; used by the script itself")
    return parser


def read(parser: ArgumentParser, one: Callable[[dict[str, Any]], dict[str, Any]]) -> Namespace | None:
    """Read the flags; where a single run is asked for, do it and print what it found."""
    given = parser.parse_args()
    if given.one:
        say(json.dumps(one(json.loads(given.one))))
        return None
    given.out.mkdir(parents=True, exist_ok=True)
    return given


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Give the mean and the sample standard deviation."""
    mean = sum(values) / len(values)
    return mean, (sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)) ** 0.5
