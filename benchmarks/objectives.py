"""Images a second of a full training step, by objective: labels, masked patches, masked autoencoding.

`python benchmarks/objectives.py [--model ViT-B/16] [--batch 256] [--device cuda]`

In one run, in turns, so that all see the same clocks: what is hidden is drawn on the CPU as in training, then forward,
loss, backward and update, on images that lie on the device; bfloat16 under autocast and compiled on a GPU, AdamW fused.
A figure is the median of the repeats, with the lowest and highest, and the ratio to the supervised step.
"""

import argparse
import statistics
from collections.abc import Callable

import torch
from timing import rate

from vitrail.config.objective import Labels, MaskedAutoencoder, MaskedPatches, Objective
from vitrail.config.recipe import Adam, Training
from vitrail.data.source import Batch
from vitrail.models import create
from vitrail.train.prepare import build_objective
from vitrail.train.state import build_optimizer

CLASSES = 1000
OBJECTIVES: dict[str, Objective] = {
    "labels": Labels(),
    "masked-patch": MaskedPatches(),
    "mae": MaskedAutoencoder(),
    "mae, decoder of 8": MaskedAutoencoder(decoder_depth=8),
}


def main() -> None:
    """Measure and print a table."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--model", default="ViT-B/16")
    reader.add_argument("--image-size", type=int, default=224)
    reader.add_argument("--batch", type=int, default=256)
    reader.add_argument("--device", default="cuda")
    reader.add_argument("--repeats", type=int, default=7)
    reader.add_argument("--steps", type=int, default=20, help="of each repeat")
    asked = reader.parse_args()
    device = torch.device(asked.device)
    shown = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {shown}; {asked.model}, {asked.image_size} pixels, batch {asked.batch}")  # noqa: T201
    steppers = {name: stepper(objective, asked, device) for name, objective in OBJECTIVES.items()}
    rates = {name: [] for name in steppers}
    for _ in range(asked.repeats):
        for name, step in steppers.items():
            rates[name].append(rate(step, asked.steps, asked.batch, device))
    for name, found in rates.items():
        ratio = statistics.median(found) / statistics.median(rates["labels"])
        spread = f"({min(found):,.1f} to {max(found):,.1f})"
        print(f"{name:<20}{statistics.median(found):>10,.1f} images/s {spread}, {ratio:.2f} x")  # noqa: T201


def stepper(objective: Objective, asked: argparse.Namespace, device: torch.device) -> Callable[[], object]:
    """Give a full training step on images that are there."""
    training = Training(
        objective=objective, optimizer=Adam(learning_rate=1e-4, weight_decay=0.1), steps=1, batch_size=asked.batch
    )
    classes = CLASSES if isinstance(objective, Labels) else None
    model = create(asked.model, classes=classes, image_size=asked.image_size, device=device).train()
    made = build_objective(model, training, lambda: torch.empty(0))
    forward = torch.compile(made.module, dynamic=False) if device.type == "cuda" else made.module
    optimizer = build_optimizer(made.module, training.optimizer, None)
    samples = torch.arange(asked.batch)
    images = torch.randn(asked.batch, 3, asked.image_size, asked.image_size, device=device)
    targets = torch.eye(CLASSES, device=device)[samples.to(device) % CLASSES]

    def step() -> None:
        part = Batch(images, samples, samples, samples, samples[:0], 0, 0, (), targets)
        inputs = made.inputs(part)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            outputs = forward(*inputs)
        made.compute_loss(outputs, part, inputs).losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    return step


if __name__ == "__main__":
    main()
