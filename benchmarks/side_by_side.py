"""Runs of one script beside each other, each a process of its own; what each prints last is its result."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Give the mean and the sample standard deviation."""
    mean = sum(values) / len(values)
    return mean, (sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)) ** 0.5
