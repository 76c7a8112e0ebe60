"""Small models: how fast one process trains, and several at once: `python benchmarks/small.py [--processes 1,8]`.

A ViT of the shape of the one in the box on packed images of 64 pixels, batch 512, cropped and flipped; images a second
of whole runs after their first steps, what a run takes beside its steps, and, with --profile, where the main thread
spends its time.
"""

import argparse
import cProfile
import multiprocessing
import pstats
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.runtime.sharing import shared_gpu

SIDE, IMAGES, TESTED, CLASSES = 64, 20_000, 10_000, 200
SHAPE = {"depth": 7, "width": 256, "mlp_width": 1024, "heads": 8, "pooling": "mean", "positions": "sinusoidal-2d"}


def make_images(folder: Path) -> None:
    """Pack random images."""
    from vitrail.data.sources.memory import MemorySource
    from vitrail.data.sources.packed import pack

    random = np.random.default_rng(0)
    for split, count in (("train", IMAGES), ("test", TESTED)):
        images = random.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
        labels = np.arange(count) % CLASSES
        pack(MemorySource(images, labels, [f"{k}" for k in range(CLASSES)]), folder / split, SIDE, overwrite=False)


def train(folder: Path, out: Path, seed: int, asked: argparse.Namespace) -> dict[str, float]:
    """Run once; give its rate, and its seconds beside the steps."""
    import vitrail

    fields: dict[str, Any] = {f"model.{name}": value for name, value in SHAPE.items()}
    fields |= {"steps": asked.steps, "batch_size": asked.batch, "image_size": SIDE, "crop_area": (0.35, 1.0)}
    fields |= {"augment_on": asked.augment_on, "ema": None, "validation_share": 0.0, "compile": asked.compile}
    fields |= {"save_every": asked.steps, "stochastic_depth": 0.0}
    start = time.perf_counter()
    run = vitrail.pretrain(
        folder, model="ViT-Ti/8", recipe="small", seed=seed, workers=asked.workers, quiet=True, out=out, **fields
    )
    seconds = time.perf_counter() - start
    rates = [record["time"]["images_per_second"] for record in run.history if record["kind"] == "train"]
    rate = statistics.median(rates[len(rates) // 2 :])
    return {"rate": rate, "beside": seconds - asked.steps * asked.batch / rate, "seconds": seconds}


def child(pipe: Any, folder: Path, out: Path, seed: int, asked: argparse.Namespace) -> None:
    """Run in a process: once to compile, once to measure."""
    for turn in range(2):
        pipe.send(train(folder, out / f"{seed}-{turn}", seed, asked))


def together(folder: Path, out: Path, processes: int, asked: argparse.Namespace) -> None:
    """Run in so many processes at once."""
    context = multiprocessing.get_context("spawn")
    started = []
    for seed in range(processes):
        ours, theirs = context.Pipe()
        process = context.Process(target=child, args=(theirs, folder, out, seed, asked))
        process.start()
        theirs.close()  # so that a process that fails is not waited for
        started.append((process, ours))
    first = [pipe.recv() for _, pipe in started]
    second = [pipe.recv() for _, pipe in started]
    for process, _ in started:
        process.join()
    rates = [found["rate"] for found in second]
    beside = [statistics.median(found["beside"] for found in each) for each in (first, second)]
    print(  # noqa: T201
        f"{processes} processes: {sum(rates):,.0f} images/s together ({min(rates):,.0f} to {max(rates):,.0f} each); "
        f"beside the steps {beside[0]:.1f} s at first, {beside[1]:.1f} s again",
        flush=True,
    )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", default="1,8")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--compile", default="auto")
    parser.add_argument("--augment-on", default="device")
    parser.add_argument("--profile", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        make_images(place / "data")
        with shared_gpu():
            for count in map(int, asked.processes.split(",")):
                together(place / "data", place / f"runs-{count}", count, asked)
        if asked.profile:
            train(place / "data", place / "before", 0, asked)
            profile = cProfile.Profile()
            profile.enable()
            found = train(place / "data", place / "profiled", 1, asked)
            profile.disable()
            print(found)  # noqa: T201
            pstats.Stats(profile).sort_stats("tottime").print_stats(35)
            pstats.Stats(profile).sort_stats("cumtime").print_stats(70)


if __name__ == "__main__":
    main()
