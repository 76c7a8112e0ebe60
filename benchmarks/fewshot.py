"""A whole few-shot table against the bare forward passes: `python benchmarks/fewshot.py [--images 10000]`.

JPEG files of photographs in a folder of classes, half to learn from and half to test on, all shots, three seeds, the
sweep over l2 and every probe; against the same number of images, already on the device, through the model alone.
Stretches of both are timed in turns, so that both see the same clocks. Nothing is kept from before.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from vitrail.cli.machine import usual_workers
from vitrail.cli.measuring import CPU_BATCH
from vitrail.data.open import open_data
from vitrail.data.splits import Subset
from vitrail.evaluate.features import features_of, few_shot_table
from vitrail.evaluate.rows import PART, Pass
from vitrail.evaluate.shots import Settings
from vitrail.models import create
from vitrail.studies.speed_of_data import photograph
from vitrail.train.group import Group


def main() -> None:
    """Measure and print a table."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--model", default="ViT-Ti/16")
    reader.add_argument("--images", type=int, default=10_000)
    reader.add_argument("--classes", type=int, default=50)
    reader.add_argument("--side", type=int, nargs=2, default=(375, 500))
    reader.add_argument("--bare-batch", type=int, default=CPU_BATCH)
    reader.add_argument("--workers", type=int, default=usual_workers(gpu=False))
    arguments = reader.parse_args()
    model = create(arguments.model, classes=10).eval()
    images = torch.randn(arguments.bare_batch, 3, *model.config.image_size)

    def bare(count: int) -> float:
        start = time.perf_counter()
        with torch.inference_mode():
            for first in range(0, count, arguments.bare_batch):
                model(images[: min(arguments.bare_batch, count - first)])
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory() as place:
        os.environ["VITRAIL_CACHE"] = str(Path(place) / "cache")
        write_photographs(Path(place) / "photos", arguments.images, arguments.classes, tuple(arguments.side))
        splits = open_data(Path(place) / "photos")
        how = Pass(group=Group(device=torch.device("cpu")), batch=CPU_BATCH, workers=arguments.workers)
        bare(64)
        ours, alone, rates = 0.0, 0.0, []
        for source in splits.values():
            for first in range(0, len(source), PART):
                numbers = range(first, min(first + PART, len(source)))
                before = bare(len(numbers) // 2)
                start = time.perf_counter()
                features_of(model, Subset(source, numbers), how)
                spent = time.perf_counter() - start
                after = bare(len(numbers) - len(numbers) // 2)
                ours, alone = ours + spent, alone + before + after
                rates.append(spent / (before + after))
        start = time.perf_counter()
        table = few_shot_table(model, (splits["train"], splits["test"]), how, Settings(shots=(1, 5, 10, 25, None)))
        whole = time.perf_counter() - start
        # The table alone: its features again, which were computed above under another source's name.
        again = time.perf_counter()
        few_shot_table(model, (splits["train"], splits["test"]), how, Settings(shots=(1, 5, 10, 25, None)))
        again = time.perf_counter() - again
    spread = f"{min(rates):.3f} to {max(rates):.3f}, median {statistics.median(rates):.3f}"
    lines = (
        f"{arguments.images:,} JPEG of {arguments.side[1]}x{arguments.side[0]}, {arguments.model}",
        f"bare forward passes {alone:.1f} s, {arguments.images / alone:.1f} images/s",
        f"features {ours:.1f} s; of the bare passes, by stretch, {spread}",
        f"the table from kept features {again:.1f} s ({table.test_images:,} test images); in one go {whole:.1f} s",
        f"features and table / bare {(ours + again) / alone:.3f}",
    )
    print("\n".join(lines))  # noqa: T201


def write_photographs(root: Path, count: int, classes: int, side: tuple[int, ...]) -> None:
    """Write files, 64 different photographs in turn, under train and test."""
    photographs = [photograph(side[0], side[1], seed) for seed in range(64)]
    for index in range(count):
        folder = root / ("train" if index % 2 else "test") / f"class{index // 2 % classes:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index:06d}.jpg").write_bytes(photographs[index % len(photographs)] + index.to_bytes(4, "little"))


if __name__ == "__main__":
    main()
