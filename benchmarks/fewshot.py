"""A whole few-shot table against the bare forward passes: `python benchmarks/fewshot.py [--images 10000]`.

JPEG files of photographs in a folder of classes, half to learn from and half to test on, all shots, three seeds, the
sweep over l2 and every probe; against the same number of images, already in memory, through the model alone, half of
them before and half after. Nothing is kept from before.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch

from vitrail.data.open import open_data
from vitrail.evaluation.features import few_shot_table
from vitrail.evaluation.shots import Settings
from vitrail.models import create
from vitrail.runtime.inference import CPU_BATCH, InferenceOptions
from vitrail.runtime.machine import Group, usual_workers
from vitrail.studies.bench.decoding import photograph


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
        how = InferenceOptions(group=Group(device=torch.device("cpu")), batch_size=CPU_BATCH, workers=arguments.workers)
        sets, settings = (splits["train"], splits["test"]), Settings(shots=(1, 5, 10, 25, None))
        bare(64)
        before = bare(arguments.images // 2)
        start = time.perf_counter()
        table = few_shot_table(model, sets, how, settings)
        ours = time.perf_counter() - start
        alone = before + bare(arguments.images - arguments.images // 2)
        start = time.perf_counter()
        few_shot_table(model, sets, how, settings)
        again = time.perf_counter() - start
    assert table.computed == arguments.images
    lines = (
        f"{arguments.images:,} JPEG of {arguments.side[1]}x{arguments.side[0]}, {arguments.model}",
        f"bare forward passes {alone:.1f} s ({before:.1f} s of it before), {arguments.images / alone:.1f} images/s",
        f"features and the whole table {ours:.1f} s; the same again, features kept, {again:.1f} s",
        f"table / bare {ours / alone:.3f}",
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
