"""Runs a recipe of benchmarks/recipes: exact commands, stage by stage, with the minutes that they are expected to take.

`python benchmarks/recipes.py cifar10 --data SETS --out runs/cifar10 [--seeds 0,1,2] [--show] [--smoke]`

`SETS` holds the sets of images, packed: cifar10-32, tiny-imagenet-64, oxford-iiit-pet-128, each with train and test or
val (`vitrail data pack`). Stages run one after the other, the seeds of a stage at once; every command resumes, so the
same again goes on. `--show` prints the commands alone; `--smoke` takes two steps of each, to see that all of it runs.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent / "recipes"
SMALLER = (
    (r"--(epochs|steps) \S+", "--steps 2"),
    (r"--batch \d+", "--batch 16"),
    (r"warmup_epochs=\S+", "warmup_steps=0"),
    (r"--confidence \S+", "--confidence 0"),
)


class Stage(NamedTuple):
    """A command for every seed, and the minutes of all of them at once."""

    name: str
    minutes: float
    command: str


def read(path: Path) -> list[Stage]:
    """Read a recipe: `NAME = words` for what comes again, `# stage NAME MINUTES`, and its command on lines below."""
    words: dict[str, str] = {}
    stages: list[Stage] = []
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if found := re.match(r"# stage (\S+) ([\d.]+)", line):
            stages.append(Stage(found[1], float(found[2]), ""))
        elif found := re.match(r"([A-Z0-9]+) = (.*)", line):
            words[found[1]] = _filled(found[2], words)
        elif line.strip() and not line.startswith("#"):
            stages[-1] = stages[-1]._replace(command=_filled(line.strip(), words))
    return stages


def _filled(text: str, words: dict[str, str]) -> str:
    return re.sub(r"\{([A-Z0-9]+)\}", lambda found: words[found[1]], text)


def main() -> None:
    """Run a recipe, or print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=sorted(path.stem for path in HERE.glob("*.txt")))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    asked = parser.parse_args()
    for stage in read(HERE / f"{asked.recipe}.txt"):
        lines = [
            stage.command.format(data=asked.data, out=asked.out, seed=seed, here=HERE, python=sys.executable)
            for seed in asked.seeds.split(",")
        ]
        for pattern, fewer in SMALLER if asked.smoke else ():
            lines = [re.sub(pattern, fewer, line) for line in lines]
        lines = list(dict.fromkeys(" ".join(line.split()) for line in lines))
        say(f"# {stage.name}: {stage.minutes:g} minutes expected", *lines)
        if not asked.show:
            start = time.monotonic()
            run(lines, asked.out, stage.name)
            say(f"# {(time.monotonic() - start) / 60:.1f} minutes")


def run(lines: list[str], out: Path, name: str) -> None:
    """Run commands at once, and end where one fails; what they say is in a file of the stage."""
    out.mkdir(parents=True, exist_ok=True)
    log = out / f"{name}.log"
    with log.open("ab") as said:
        environment = {"OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // len(lines), 1)), **os.environ}
        going = [subprocess.Popen(shlex.split(line), stdout=said, stderr=said, env=environment) for line in lines]
        failed = [process.wait() for process in going]
    if any(failed):
        sys.exit(f"{log} says why {sum(map(bool, failed))} of {len(going)} failed.")


def say(*lines: str) -> None:
    """Print lines."""
    print(*lines, sep="\n", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
