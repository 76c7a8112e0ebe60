"""Images a second through flip, RandAugment and Mixup: `python benchmarks/augment.py [--device cuda]`.

Packed images of 64 pixels, uint8, lie on the device, as after a copy of a packed file; each step flips, applies
RandAugment (2, 15) and Mixup, and gives float32 images and soft targets. Each stage is also timed alone. A figure is
the median of the repeats, with the lowest and highest.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from timing import settle

from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation, RandAugment
from vitrail.data.source import Batch
from vitrail.data.transforms.finish import BatchTransform
from vitrail.data.transforms.randaugment import randaugment, slots
from vitrail.ops.random import Purpose, draws

CLASSES = 1000


def main() -> None:
    """Measure and print a table."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    reader.add_argument("--batch", type=int, default=0, help="images a step; 0: 4096 on a GPU, 256 on the CPU")
    reader.add_argument("--side", type=int, default=64)
    reader.add_argument("--seconds", type=float, default=1.0, help="of each repeat")
    reader.add_argument("--repeats", type=int, default=5)
    arguments = reader.parse_args()
    device = torch.device(arguments.device)
    batch = arguments.batch or (4096 if device.type == "cuda" else 256)
    shown = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {shown}; batch {batch}, {arguments.side} px")  # noqa: T201
    print(f"{'stage':<14}{'images/s':>12}{'lowest':>12}{'highest':>12}{'ms/step':>10}")  # noqa: T201
    for name, step in stages(device, batch, arguments.side).items():
        rates = sorted(rate(step, device, arguments.seconds) * batch for _ in range(arguments.repeats))
        middle = statistics.median(rates)
        print(f"{name:<14}{middle:>12,.0f}{rates[0]:>12,.0f}{rates[-1]:>12,.0f}{1e3 * batch / middle:>10.2f}")  # noqa: T201


def stages(device: torch.device, batch: int, side: int) -> dict[str, Callable[[int], object]]:
    """Give the steps to time: functions of a step's number."""
    levels = np.floor(draws(np.arange(batch), 3 * side * side, 0, 0, 99) * 256).astype(np.uint8)
    images = torch.from_numpy(levels).unflatten(1, (3, side, side)).to(device)
    labels = torch.arange(batch, device=device) % CLASSES
    config = Augmentation(randaugment=RandAugment(layers=2, magnitude=15), mixup=0.2)
    plain = Augmentation(mixup=0.2)

    def samples(step: int) -> np.ndarray:
        return np.arange(step * batch, (step + 1) * batch)

    def rand(step: int) -> torch.Tensor:
        part = config.randaugment or RandAugment()
        return randaugment(images, draws(samples(step), slots(part), 0, 0, Purpose.RANDAUGMENT), part)

    def finish(step: int, augmentation: Augmentation) -> Batch:
        numbers = torch.from_numpy(samples(step))
        given = Batch(images, labels, numbers, numbers, numbers[:0], epoch=0, step=step, skipped=())
        return BatchTransform(augmentation, Preprocessing(), CLASSES, 0)(given)

    return {
        "RandAugment": rand,
        "flip and Mixup": partial(finish, augmentation=plain),
        "everything": partial(finish, augmentation=config),
    }


def rate(step: Callable[[int], object], device: torch.device, seconds: float) -> float:
    """Count the steps a second, two warm-up steps left out."""
    for number in range(2):
        step(number)
    settle(device)
    start, done = time.perf_counter(), 0
    while done < 3 or time.perf_counter() - start < seconds:
        step(done)
        done += 1
        if done % 8 == 0:
            settle(device)  # so that the queue, which the host fills faster, does not outrun the clock
    settle(device)
    return done / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
