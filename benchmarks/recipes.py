"""Runs a recipe of benchmarks/recipes: exact commands, stage by stage, with the minutes that are expected.

`python benchmarks/recipes.py cifar10 --data SETS --out runs/cifar10 [--seeds 0,1,2] [--minutes 25] [--keep FILE]`

`SETS` holds the sets of images, packed: cifar10-32, tiny-imagenet-64, oxford-iiit-pet-128, each with train and test or
val (`vitrail data pack cifar10 SETS/cifar10-32 --image-size 32`). Stages run one after the other, the commands of a
stage and its seeds at once. Every command resumes, so the same again goes on where the folder is; past --minutes all
are asked to save and to end. The last lines are a table of what there is so far, which --table prints without running
anything. --keep FILE.tar.gz has logs, configurations and results without weights, as results/recipes has them, and
FILE-NAME.tar the folder OUT/keep/NAME that a stage wrote; they are written anew after every stage. --word NAME=WORDS
stands in the place of a word of the recipe.

--show prints the commands alone. --smoke takes two steps of small models, to see on a CPU that all of it runs, and
--ahead two steps of every command as it is, of the first seed, while the first stage trains: so that later stages find
their compiled code. Processes share a GPU through CUDA's multi-process service, where there is one.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from kept import keep, table

HERE = Path(__file__).parent / "recipes"
SOURCE = HERE.parents[1] / "src"  # so that nothing need be installed

SHORT = (
    (r"--(epochs|steps) \S+", "--steps 2"),
    (r"warmup_(epochs|steps)=\S+", "warmup_steps=0"),
    (r"--confidence \S+", "--confidence 0"),
)
SMALL = (
    (r"--batch \d+", "--batch 16"),
    (r"model\.width=\d+", "model.width=32"),
    (r"model\.mlp_width=\d+", "model.mlp_width=48"),
    (r"model\.depth=\d+", "model.depth=2"),
    (r"model\.heads=\d+", "model.heads=2"),
)
TRAINS = re.compile(r"vitrail (pretrain|finetune) ")
READS = re.compile(r"vitrail (pretrain|finetune|selftrain|evaluate) ")
COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"  # else each process starts one for every core
WORKERS = 4  # of a process: what is packed is read at once, and augmented on the GPU
GRACE = 60.0  # seconds in which a command may save


class Stage(NamedTuple):
    """Commands for every seed, and the minutes of all of them at once."""

    name: str
    minutes: float
    commands: list[str]


def read(path: Path, others: dict[str, str] | None = None) -> list[Stage]:
    """Read a recipe: `NAME = words` for what comes again, `# stage NAME MINUTES`, and its commands, a line each.

    Words in `others` stand in the place of the recipe's own of these names.
    """
    words: dict[str, str] = {}
    left, stages = dict(others or {}), list[Stage]()
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if found := re.match(r"# stage (\S+) ([\d.]+)", line):
            stages.append(Stage(found[1], float(found[2]), []))
        elif found := re.match(r"([A-Z0-9]+) = (.*)", line):
            words[found[1]] = _filled(left.pop(found[1], found[2]), words)
        elif line.strip() and not line.startswith("#"):
            stages[-1].commands.append(_filled(line.strip(), words))
    if left:
        sys.exit(f"{path.name} has no word {', '.join(left)}; it has {', '.join(words)}.")
    return stages


def _filled(text: str, words: dict[str, str]) -> str:
    return re.sub(r"\{([A-Z0-9]+)\}", lambda found: words[found[1]], text)


def lines_of(stage: Stage, asked: argparse.Namespace) -> list[str]:
    """Give the commands of a stage for the seeds that are asked for, each once."""
    changes = (SHORT if asked.smoke or asked.short else ()) + (SMALL if asked.smoke else ())
    lines = []
    for command in stage.commands:
        for seed in asked.seeds.split(","):
            line = command.format(data=asked.data, out=asked.out, seed=seed, here=HERE, python=sys.executable)
            for pattern, fewer in changes:
                line = re.sub(pattern, fewer, line)
            lines.append(" ".join(line.split()))
    lines = list(dict.fromkeys(lines))
    workers = 0 if asked.smoke else max(min((os.cpu_count() or 1) // len(lines), WORKERS), 1)
    return [f"{line} --workers {workers}" if READS.match(line) else line for line in lines]


def main() -> None:
    """Run a recipe, or print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=sorted(path.stem for path in HERE.glob("*.txt")))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--word", action="append", default=[], metavar="NAME=WORDS", help="in place of the recipe's")
    parser.add_argument("--stages", help="these alone, by their names, with commas")
    parser.add_argument("--minutes", type=float, help="then all are asked to save and to end")
    parser.add_argument("--keep", type=Path, help="a .tar.gz of what is small")
    parser.add_argument("--show", action="store_true", help="print the commands")
    parser.add_argument("--table", action="store_true", help="print what there is so far")
    parser.add_argument("--smoke", action="store_true", help="two steps of small models")
    parser.add_argument("--ahead", action="store_true", help="compile later stages while the first one trains")
    parser.add_argument("--short", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    stages = read(HERE / f"{asked.recipe}.txt", dict(word.split("=", 1) for word in asked.word))
    if asked.stages:
        wanted = asked.stages.split(",")
        if unknown := set(wanted) - {stage.name for stage in stages}:
            sys.exit(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(stage.name for stage in stages)}.")
        stages = [stage for stage in stages if stage.name in wanted]
    if not asked.show and not asked.table:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("asked to end; the same again goes on."))
        run_all(stages, asked)
    for stage in stages if asked.show else ():
        say(f"# {stage.name}: {stage.minutes:g} minutes expected", *lines_of(stage, asked))
    if not asked.show:
        say(*table(asked.out))


def run_all(stages: list[Stage], asked: argparse.Namespace) -> None:
    """Run the stages within the minutes; what there is stays, and is kept, where one fails or time is over."""
    asked.out.mkdir(parents=True, exist_ok=True)
    said = {"recipe": asked.recipe, "seeds": asked.seeds, "words": asked.word, "stages": asked.stages}
    (asked.out / "recipe.json").write_text(json.dumps(said, indent=2) + "\n")
    start = time.monotonic()
    until = start + 60 * (asked.minutes or 1e9)
    sys.path.insert(0, str(SOURCE))
    from vitrail.runtime.sharing import shared_gpu

    with ExitStack() as beside:
        beside.enter_context(shared_gpu())
        if asked.ahead:
            beside.callback(end, [go_ahead(stages, asked)])
        for stage in stages:
            began = time.monotonic()
            log = asked.out / f"{stage.name}.log"
            with (asked.out / "commands.txt").open("a") as written:
                written.write("\n".join([f"# {stage.name}", *lines_of(stage, asked), ""]))
            left, failed = run(lines_of(stage, asked), log, until)
            minutes = (time.monotonic() - began) / 60
            say(f"# {stage.name}: {minutes:.1f} minutes, {stage.minutes:g} expected")
            if asked.keep:
                keep(asked.out, asked.keep)
            if left or failed:
                say(*table(asked.out))
            if failed and not left:
                sys.exit(f"{log} says why {failed} failed:\n{tail(log)}")
            if left:
                sys.exit(f"time is over in {stage.name}; the same again goes on.")


def run(lines: list[str], log: Path, until: float) -> tuple[bool, int]:
    """Run commands at once, what they say in a file; tells whether time was over, and how many failed."""
    words = [shlex.split(re.sub(r"^vitrail ", f"{sys.executable} -m vitrail ", line)) for line in lines]
    threads = str(max((os.cpu_count() or 1) // len(lines), 1))
    over, environment = False, {**dict.fromkeys(("OMP_NUM_THREADS", COMPILERS), threads), **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("ab") as said:
        going = [subprocess.Popen(each, stdout=said, stderr=said, env=environment) for each in words]
        try:
            while any(process.poll() is None for process in going) and not over:
                time.sleep(0.2)
                over = time.monotonic() > until
        finally:
            end(going)
    return over, sum(process.returncode != 0 for process in going)


def end(going: list[subprocess.Popen[bytes]]) -> None:
    """Ask processes to save and to end, and end those that do not."""
    for process in going:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in going:
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def go_ahead(stages: list[Stage], asked: argparse.Namespace) -> "subprocess.Popen[bytes]":
    """Take two steps of all that trains, of one seed, in a folder of its own."""
    names = ",".join(stage.name for stage in stages if any(map(TRAINS.match, stage.commands)))
    words = [sys.executable, __file__, asked.recipe, "--data", asked.data, "--out", asked.out / "ahead", "--short"]
    words += ["--seeds", asked.seeds.split(",")[0], "--stages", names, *(["--smoke"] if asked.smoke else [])]
    words += [f"--word={word}" for word in asked.word]
    with (asked.out / "ahead.log").open("ab") as said:
        return subprocess.Popen([str(word) for word in words], stdout=said, stderr=said)


def tail(log: Path) -> str:
    """Give the last words of a log."""
    return log.read_text(errors="replace")[-2000:]


def say(*lines: str) -> None:
    """Print lines."""
    print(*lines, sep="\n", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
