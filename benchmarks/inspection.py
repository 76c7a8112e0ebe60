"""What a report costs: `python benchmarks/inspection.py`, against the forward passes; `--large`, in memory.

A fresh ViT-B/16 at 224 pixels looks at 16 images of noise, and at as many more as are drawn at random: seconds of the
whole report (attention, shifts, patches, layers, all figures in both themes, the page) over those of the 16 images'
forward passes, timed before and after.
`--large`: attention rollout, distances and the page's maps of one image of 1024 pixels through ViT-L/16, and the most
memory that the process ever had.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import torch

import vitrail
from vitrail.inspection.report import write_report
from vitrail.inspection.study import Inspected, drawn_count, study
from vitrail.inspection.views import Views
from vitrail.models import Model


def main() -> None:
    """Measure and print."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--large", action="store_true")
    reader.add_argument("--model", default="ViT-B/16")
    reader.add_argument("--images", type=int, default=16)
    arguments = reader.parse_args()
    if arguments.large:
        model, views = made("ViT-L/16", 1024, 1)
        start = time.perf_counter()
        found = study(model, views, maps=True, bias=False)
        seconds = time.perf_counter() - start
        assert found.attention is not None
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        cells = found.attention.maps[0].grid
        print(f"ViT-L/16 at 1024: {seconds:.0f} s, at most {held:.2f} GiB; maps of {cells} cells")  # noqa: T201
        return
    model, views = made(arguments.model, 224, arguments.images)
    before = forward(model, views)
    random = made(arguments.model, 224, drawn_count(model))[1].images
    start = time.perf_counter()
    found = study(model, views, random, maps=True, bias=True)
    looked = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        report = write_report(Path(folder), Inspected(arguments.model, model, found))
    whole = time.perf_counter() - start
    after = forward(model, views)
    passes = (before + after) / 2
    what = f"{arguments.model}, {arguments.images} images"
    print(f"{what}: forward {passes:.2f} s ({before:.2f} before, {after:.2f} after)")  # noqa: T201
    print(f"looking {looked:.1f} s, the whole report {whole:.1f} s: {whole / passes:.1f} times")  # noqa: T201
    print(f"page {report.bytes / 1e6:.1f} MB")  # noqa: T201


def made(name: str, side: int, count: int) -> tuple[Model, Views]:
    """Give a fresh model and images of noise."""
    model = vitrail.create(name, classes=1000, image_size=side).eval()
    pixels = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)
    return model, Views(pixels, pixels / 127.5 - 1, [f"image {place}" for place in range(count)], [None] * count)


@torch.no_grad()
def forward(model: Model, views: Views) -> float:
    """Give the seconds of the forward passes alone, after a warm-up."""
    model(views.images[:2])
    start = time.perf_counter()
    model(views.images)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
