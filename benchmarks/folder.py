"""Memory and start-up on a folder of many small files: `python benchmarks/folder.py [--files 100000] [--epochs 3]`.

Prints the seconds of the first and the second start (the index is kept in the cache), then the resident memory of this
process and of its workers after each epoch: it must stay flat.
"""

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from vitrail.config.recipe import Augmentation
from vitrail.data.decode import encode
from vitrail.data.feed import Loader
from vitrail.data.open import open_split
from vitrail.data.transforms.resize import TrainTransform


def resident(process: int) -> int:
    """Bytes of a process that no other shares, and its part of what is shared."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def family() -> list[int]:
    """This process and its children."""
    me = os.getpid()
    children = Path(f"/proc/{me}/task/{me}/children").read_text().split()
    return [me, *map(int, children)]


def main() -> None:
    """Make the folder, open it twice, read it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ["VITRAIL_CACHE"] = str(Path(place) / "cache")
        root = Path(place) / "photos"
        generator = np.random.RandomState(0)
        image = encode(generator.randint(0, 256, (24, 24, 3)).astype(np.uint8), "JPEG")
        for label in range(100):
            (root / f"class{label:03d}").mkdir(parents=True)
        for index in range(options.files):
            (root / f"class{index % 100:03d}" / f"{index:06d}.jpg").write_bytes(image)
        time.sleep(0.2)
        for name in ("first", "second"):
            start = time.perf_counter()
            source = open_split(root)
            print(f"{name} start: {time.perf_counter() - start:.2f} s, {len(source):,} files")  # noqa: T201
        take = TrainTransform((24, 24), Augmentation(), seed=0)
        loader = Loader(source, take, batch=250, workers=options.workers)
        torch.set_num_threads(1)
        steps, start = loader.steps, time.perf_counter()
        for step, batch in enumerate(loader.stream()):
            if (step + 1) % steps == 0 or step == 20:
                held = sum(resident(process) for process in family()) / 2**20
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                seconds = time.perf_counter() - start
                print(f"step {step + 1:5d} (epoch {batch.epoch}): {held:7.1f} MiB, {peak:.0f}, {seconds:.0f} s")  # noqa: T201
            if step + 1 == options.epochs * steps:
                break


if __name__ == "__main__":
    main()
