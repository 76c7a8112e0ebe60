"""A plan against what happens: `python benchmarks/plan.py [--device cuda] [--case "MODEL batch=N ..."] [--seconds 8]`.

Twelve configurations, each in a process of its own. A probe of a few seconds, as `vitrail plan --probe` takes it, gives
the time of a step, by which a longer run is predicted; the run is the training loop's own, on drawn images, timed from
its first line in the log to its last. Peak memory is predicted from the configuration alone, and measured over the
steps of the probe: the allocator's peak on a GPU, else the process's resident memory above what it held before the
model was made. A row has the error of each prediction, of what was measured; the last lines have the worst.

On a GPU all processes compile first, several at once (--jobs), by a short probe that does not count; then they are
measured one after another, while the others hold still.
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

CASES = {
    "cpu": [
        "ViT-Ti/16 batch=16 image_size=128",
        "ViT-Ti/16 batch=16 checkpointing=true",
        "ViT-Ti/16 batch=8 precision=bfloat16",
        "ViT-S/16 batch=8 optimizer=sgd",
        "ViT-S/32 batch=32",
        "ViT-S/16 batch=8 image_size=160 checkpointing=true",
        "ViT-B/32 batch=8",
        "ViT-B/32 batch=16 optimizer=sgd",
        "ViT-B/16 batch=4 optimizer=sgd",
        "ViT-L/32 batch=2 optimizer=sgd",
        "R26+ViT-S/32 batch=4 image_size=192",
        "BiT-R50x1 batch=4 optimizer=sgd",
    ],
    "cuda": [
        "ViT-Ti/16 batch=1024",
        "ViT-S/16 batch=512 optimizer=sgd dropout=0.1",
        "ViT-B/16 batch=256",
        "ViT-B/16 batch=128 precision=float32",
        "ViT-B/32 batch=512 optimizer=sgd",
        "ViT-B/16 batch=64 image_size=384",
        "ViT-L/16 batch=128",
        "ViT-L/16 batch=256 checkpointing=true",
        "R26+ViT-S/32 batch=256",
        "R50+ViT-B/16 batch=128",
        "BiT-R50x1 batch=128 optimizer=sgd",
        "BiT-R101x1 batch=64 precision=float32",
    ],
}
BOUNDS = {"cpu": (0.15, 0.15), "cuda": (0.15, 0.10)}  # of time and of memory
LINES = 4  # of the log, of a run
PROBE = 4.0  # seconds
READY = "ready"  # what a process says once it may be measured


def measure(case: str, device: str, seconds: float) -> dict[str, float]:
    """Get ready, wait for the turn, probe, then run, and give what was predicted and measured."""
    import torch

    from vitrail.config import read_model_settings
    from vitrail.config.recipe import SGD, Adam, Training
    from vitrail.runtime.machine import usual_workers
    from vitrail.runtime.memory import resident
    from vitrail.runtime.reporter import SILENT
    from vitrail.runtime.step_memory import step_bytes
    from vitrail.train.probe import drawn_source, probe
    from vitrail.train.run import run
    from vitrail.train.task import Task

    model, *words = case.split()
    said = dict(word.split("=", 1) for word in words)
    optimizer = SGD() if said.pop("optimizer", "adam") == "sgd" else Adam(learning_rate=1e-4)
    batch = int(said.pop("batch"))
    precision: Any = said.pop("precision", "auto")
    changes = read_model_settings([f"{name}={value}" for name, value in said.items()], name=model)
    training = Training(optimizer=optimizer, batch_size=batch, micro_batch=batch, steps=1, precision=precision)
    workers = usual_workers(gpu=device == "cuda")
    if device == "cuda":
        probe(model, training, device, seconds=0.0, changes=changes, workers=workers)
        gc.collect()
        torch.cuda.empty_cache()
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    sys.stdin.readline()
    found = probe(model, training, device, seconds=PROBE, changes=changes, workers=workers)
    needed = step_bytes(found.config, training, batch, device, found.precision)
    predicted = resident(needed, device, checkpointing=found.config.checkpointing)
    every = max(round(seconds / found.seconds / (LINES - 1)), 1)
    long = {"steps": LINES * every, "log_every": every, "save_every": 10**6, "validation_share": 0.0}
    records: list[Mapping[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        task = Task(
            command="benchmarks/plan.py",
            data="drawn",
            splits={"train": drawn_source(found.config.image_size, 3, 1000, batch)},
            model=model,
            training=Training(**{**vars(training), **long}),
            out=Path(folder) / "run",
            changes=changes,
            workers=workers,
            device=device,
        )
        run(task, SILENT, callbacks=[records.append])
    clocks = [record["time"]["clock"] for record in records if record["kind"] == "train"]
    return {
        "predicted seconds": (LINES - 1) * every * found.seconds,
        "real seconds": clocks[-1] - clocks[0],
        "predicted bytes": predicted,
        "real bytes": found.memory or 0,
    }


class Begun(NamedTuple):
    """A process that measures a case, once it is told to."""

    case: str
    process: subprocess.Popen[str]
    said: IO[str]  # what it complains of


def main() -> None:
    """Measure every case in a process of its own, and print a table of the errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--case", action="append", help="MODEL batch=N [optimizer=sgd] [precision=...] [field=value ...]"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="of the longer run, about")
    parser.add_argument("--jobs", type=int, default=6, help="processes that compile at once on a GPU")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        sys.stdout.write(json.dumps(measure(given.one, given.device, given.seconds)))
        return
    errors: list[tuple[float, float]] = []
    row = "{:<54}{:>10}{:>10}{:>8}{:>11}{:>11}{:>8}\n"
    sys.stdout.write(row.format("", "predicted", "took, s", "", "predicted", "MiB", ""))

    def begin(case: str) -> Begun:
        command = [sys.executable, __file__, "--device", given.device, "--seconds", str(given.seconds), "--one", case]
        errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        assert process.stdout is not None
        while process.stdout.readline().strip() not in (READY, ""):
            pass
        return Begun(case, process, errors)

    cases = given.case or CASES[given.device]
    with ThreadPoolExecutor(given.jobs) as pool:
        begun = list(pool.map(begin, cases)) if given.device == "cuda" else map(begin, cases)
    for case, process, said in begun:
        answer, _ = process.communicate("now\n")
        if process.returncode:
            said.seek(0)
            sys.stdout.write(f"{case:<54} failed: {said.read().strip().splitlines()[-1]}\n")
            errors.append((float("inf"), float("inf")))
            continue
        found = json.loads(answer.strip().splitlines()[-1])
        time, memory = (found[f"predicted {what}"] / found[f"real {what}"] - 1 for what in ("seconds", "bytes"))
        errors.append((abs(time), abs(memory)))
        sizes = [f"{found[f'{kind} bytes'] / 2**20:,.0f}" for kind in ("predicted", "real")]
        times = [f"{found[f'{kind} seconds']:.2f}" for kind in ("predicted", "real")]
        sys.stdout.write(row.format(case, *times, f"{time:+.1%}", *sizes, f"{memory:+.1%}"))
        sys.stdout.flush()
    for name, found, bound in zip(("time", "memory"), zip(*errors, strict=True), BOUNDS[given.device], strict=True):
        within = sum(error <= bound for error in found)
        sys.stdout.write(f"{name}: {within} of {len(found)} within {bound:.0%}; worst {max(found):.1%}\n")


if __name__ == "__main__":
    main()
