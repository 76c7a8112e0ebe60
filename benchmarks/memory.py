"""Predicted against measured peak memory of a step: `python benchmarks/memory.py [--device cuda] [--case NAME ...]`.

Each case runs in a process of its own. On a GPU the measure is the allocator's peak over the third step. On the CPU it
is the process's peak resident memory over the third step, less what it held before the model was made; freed memory is
given back at once (MALLOC_MMAP_THRESHOLD_), so that what was freed does not count.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrail.config import ModelConfig
    from vitrail.ops.cost.counts import Step

CASES = {
    "cpu": [
        "ViT-S/16 train batch=16",
        "ViT-B/32 train batch=32 optimiser=adam",
        "ViT-S/16 train batch=32 checkpointing=true optimiser=sgd",
        "ViT-Ti/16 train batch=32 precision=bfloat16",
        "R26+ViT-S/32 train batch=8 image_size=192",
        "BiT-R50x1 train batch=8 optimiser=sgd",
        "ViT-B/16 infer batch=32",
        "BiT-R50x1 infer batch=32",
    ],
    "cuda": [
        "ViT-B/16 train batch=256 precision=bfloat16",
        "ViT-B/16 train batch=128",
        "ViT-L/16 train batch=128 precision=bfloat16",
        "ViT-L/16 train batch=256 precision=bfloat16 checkpointing=true",
        "ViT-H/14 train batch=32 precision=bfloat16",
        "ViT-S/16 train batch=512 precision=bfloat16 optimiser=sgd dropout=0.1",
        "ViT-B/16 train batch=64 precision=bfloat16 image_size=384",
        "R50+ViT-B/16 train batch=128 precision=bfloat16",
        "BiT-R50x1 train batch=128 precision=bfloat16 optimiser=sgd",
        "BiT-R101x3 train batch=32 optimiser=sgd",
        "ViT-L/16 infer batch=512 precision=bfloat16",
        "BiT-R152x2 infer batch=256 precision=bfloat16",
        "Axial-ViT-B/16 train batch=128 precision=bfloat16",
        "ViT-B/16 train batch=64 precision=bfloat16 positions=relative",
        "ViT-Ti/16 train batch=1024 precision=bfloat16",
        "ViT-B/32 train batch=512 optimiser=sgd",
        "ViT-L/16 train batch=8 precision=bfloat16",
        "ViT-S/8 train batch=64 precision=bfloat16",
        "ViT-B/16 train batch=64 precision=bfloat16 norm=post activation=relu positions=sinusoidal",
        "R26+ViT-S/32 train batch=256",
        "R50+ViT-L/16 train batch=64 precision=bfloat16 checkpointing=true",
        "BiT-R50x1 infer batch=512",
        "BiT-R101x1 infer batch=512 precision=bfloat16",
        "R50+ViT-B/16 infer batch=256 precision=bfloat16",
        "ViT-H/14 infer batch=128 precision=bfloat16",
        "ViT-B/16 infer batch=256 positions=relative",
    ],
}


def read(case: str) -> tuple[str, str, dict[str, str], list[str]]:
    """Split a case into model, kind of step, options of the step and settings of the model."""
    model, kind, *words = case.split()
    pairs = dict(word.split("=", 1) for word in words)
    options = {name: pairs.pop(name) for name in ("batch", "precision", "optimiser") if name in pairs}
    return model, kind, options, [f"{name}={value}" for name, value in pairs.items()]


def measure(case: str, device: str) -> dict[str, float]:
    """Run three steps and give the predicted and the measured peak in bytes."""
    import torch

    from vitrail.config import parse, read_settings, row
    from vitrail.ops.cost.counts import Step, peak_memory

    name, kind, options, settings = read(case)
    config = parse(name, read_settings(*row(name), settings))
    step = Step(
        kind=kind,  # pyright: ignore[reportArgumentType]
        batch=int(options.get("batch", 1)),
        precision=options.get("precision", "float32"),  # pyright: ignore[reportArgumentType]
        optimizer=options.get("optimiser", "adam"),  # pyright: ignore[reportArgumentType]
        device=device,  # pyright: ignore[reportArgumentType]
    )
    predicted = peak_memory(config, step).total
    # A tiny model of each family first, so that what the libraries load on first use is in the baseline.
    for tiny in (parse("ViT-Ti/16", {"depth": 1, "image_size": (32, 32)}), parse("BiT-R50x1", {"units": (1,)})):
        runner(tiny, step, device, batch=2)()
    baseline = 0 if device == "cuda" else _resident("VmRSS")
    once = runner(config, step, device, batch=step.batch)
    once()
    once()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        once()
        measured = torch.cuda.max_memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5")
        once()
        measured = _resident("VmHWM") - baseline
    return {"predicted": predicted, "measured": measured}


def runner(config: "ModelConfig", step: "Step", device: str, *, batch: int) -> "Callable[[], None]":
    """Make the model, the optimiser and a batch, and give the step as a function."""
    import torch
    from torch.nn import functional as F

    from vitrail.models import build

    model = build(config, seed=0, device=device).train(mode=step.kind == "train")
    optimizer = {"adam": torch.optim.AdamW, "sgd": torch.optim.SGD}[step.optimizer](
        model.parameters(), lr=1e-4, fused=True, **({"momentum": 0.9} if step.optimizer == "sgd" else {})
    )
    images = torch.rand(batch, config.channels, *config.image_size, device=device)
    labels = torch.randint(config.classes or 1, (batch,), device=device)

    def once() -> None:
        bfloat16 = step.precision == "bfloat16"
        cast = torch.autocast(device, dtype=torch.bfloat16) if bfloat16 else contextlib.nullcontext()
        if step.kind == "infer":
            with torch.inference_mode(), cast:
                model(images)
            return
        with cast:
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return once


def _resident(field: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) * 1024


def main() -> None:
    """Measure every case in a process of its own and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--case", action="append", help="MODEL train|infer [batch=N] [precision=...] [field=value ...]")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        sys.stdout.write(json.dumps(measure(arguments.one, arguments.device)))
        return
    worst = 0.0
    for case in arguments.case or CASES[arguments.device]:
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
        command = [sys.executable, __file__, "--device", arguments.device, "--one", case]
        run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if run.returncode:
            sys.stdout.write(f"{case:<70} failed: {run.stderr.strip().splitlines()[-1]}\n")
            continue
        result = json.loads(run.stdout)
        ratio = result["predicted"] / result["measured"]
        worst = max(worst, abs(ratio - 1))
        sizes = " ".join(f"{key} {value / 2**20:9,.1f} MiB" for key, value in result.items())
        sys.stdout.write(f"{case:<70} {sizes}  {ratio - 1:+7.1%}\n")
        sys.stdout.flush()
    sys.stdout.write(f"worst {worst:.1%}\n")


if __name__ == "__main__":
    main()
