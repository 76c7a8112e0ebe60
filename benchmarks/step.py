"""Images a second of a full training step against timm's, and of the training loop against the bare step.

`python benchmarks/step.py [--model ViT-B/16] [--batch 256] [--device cuda]`

In one run, bfloat16 under autocast, compiled, AdamW fused, the same for all:
- bare: forward, cross-entropy, backward, update, on images that lie on the device; timm's model of the same shape
  beside ours, in turns, so that both see the same clocks;
- the loop: `vitrail pretrain`'s own, reading packed arrays with crop, flip, RandAugment (2, 15) and Mixup, in workers,
  with clipping and logging; its rate after the first lines of its log.

A figure is the median of the repeats, with the lowest and highest.
"""

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from timing import rate
from torch import nn

from vitrail.config.recipe import Adam, Augmentation, RandAugment, Schedule, Training
from vitrail.data.sources.memory import MemorySource
from vitrail.data.sources.packed import PackedSource, pack
from vitrail.models import create
from vitrail.runtime.reporter import SILENT
from vitrail.train.run import run
from vitrail.train.task import Task

TIMM = {"ViT-B/16": "vit_base_patch16_224", "ViT-S/16": "vit_small_patch16_224", "ViT-Ti/16": "vit_tiny_patch16_224"}
CLASSES = 1000


def main() -> None:
    """Measure and print a table."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--model", default="ViT-B/16", choices=TIMM)
    reader.add_argument("--batch", type=int, default=256)
    reader.add_argument("--device", default="cuda")
    reader.add_argument("--repeats", type=int, default=7)
    reader.add_argument("--steps", type=int, default=20, help="of each repeat")
    reader.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    reader.add_argument("--images", type=int, default=4096, help="packed")
    reader.add_argument("--loop-steps", type=int, default=200, help="0: no loop")
    reader.add_argument("--no-timm", action="store_true")
    arguments = reader.parse_args()
    device = torch.device(arguments.device)
    shown = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {shown}; {arguments.model}, batch {arguments.batch}, bfloat16")  # noqa: T201
    steppers = {"vitrail": stepper(create(arguments.model, classes=CLASSES), arguments.batch, device)}
    if not arguments.no_timm:
        import timm

        steppers["timm"] = stepper(timm.create_model(TIMM[arguments.model]), arguments.batch, device)
    rates = {name: [] for name in steppers}
    for _ in range(arguments.repeats):
        for name, step in steppers.items():
            rates[name].append(rate(step, arguments.steps, arguments.batch, device))
    for name, found in rates.items():
        show(f"bare step, {name}", found)
    if "timm" in rates:
        print(f"vitrail / timm {statistics.median(rates['vitrail']) / statistics.median(rates['timm']):.3f}")  # noqa: T201
    if arguments.loop_steps:
        steppers.clear()
        found = loop(arguments)
        show("training loop", found)
        print(f"loop / bare {statistics.median(found) / statistics.median(rates['vitrail']):.3f}")  # noqa: T201


def stepper(model: nn.Module, batch: int, device: torch.device) -> Callable[[], object]:
    """Give a full training step on images that are there."""
    model = model.to(device).train()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    images = torch.randn(batch, 3, 224, 224, device=device)
    labels = torch.randint(CLASSES, (batch,), device=device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(compiled(images).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(5):
        step()
    return step


def loop(arguments: argparse.Namespace) -> list[float]:
    """Run the training loop on packed arrays, and give the rates that it logged once it was warm."""
    folder = Path(tempfile.mkdtemp(prefix="vitrail-bench-"))
    try:
        small = np.random.default_rng(0).integers(0, 256, (arguments.images, 28, 28, 3), dtype=np.uint8)
        images = np.repeat(np.repeat(small, 8, axis=1), 8, axis=2)
        labels = np.arange(arguments.images) % CLASSES
        names = tuple(str(number) for number in range(CLASSES))
        pack(MemorySource(images, labels, names), folder / "packed", 224, overwrite=False)
        training = Training(
            optimizer=Adam(learning_rate=1e-4, weight_decay=0.1),
            schedule=Schedule(warmup_steps=10),
            steps=arguments.loop_steps,
            batch_size=arguments.batch,
            micro_batch=arguments.batch,
            clip_norm=1.0,
            augmentation=Augmentation(randaugment=RandAugment(layers=2, magnitude=15), mixup=0.2),
            validation_share=0.0,
            log_every=20,
            save_every=10 * arguments.loop_steps,
        )
        task = Task(
            command="benchmarks/step.py",
            data="packed",
            splits={"train": PackedSource(folder / "packed")},
            model=arguments.model,
            training=training,
            out=folder / "run",
            workers=arguments.workers,
            device=arguments.device,
        )
        records: list[Mapping[str, Any]] = []
        run(task, SILENT, callbacks=[records.append])
        trained = [record["time"]["images_per_second"] for record in records if record["kind"] == "train"]
        return trained[2:-1] or trained
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def show(name: str, rates: list[float]) -> None:
    """Print a row."""
    print(f"{name:<22}{statistics.median(rates):>10,.0f} images/s ({min(rates):,.0f} to {max(rates):,.0f})")  # noqa: T201


if __name__ == "__main__":
    main()
