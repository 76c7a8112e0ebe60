"""What sharing weights out (FSDP2) costs on one GPU, and what a checkpoint costs that is written meanwhile.

`torchrun --nproc-per-node 1 benchmarks/sharded.py [--model ViT-H/14] [--batch 64]`

Full training steps (forward, loss, backward, clip, update; bfloat16 under autocast and compiled on a GPU, AdamW fused)
on images that lie on the device: the plain module and the one shared out by its blocks, in turns, so that both see the
same clocks. Then steps of the latter while a checkpoint in parts is on its way to `--folder`, against those without.
What is asked for: at least 0.97 of the plain rate, and at most 5 % more for a step in which a checkpoint is written.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from vitrail.config.recipe import Adam, Training
from vitrail.models import Model, create
from vitrail.models.vit import ViT
from vitrail.runtime.compiled import allow_compilations, backend_for
from vitrail.runtime.machine import Group, joined, shard
from vitrail.train.sharded import ShardWriter
from vitrail.train.state import State, build_optimizer, clip, gradients

CLASSES, WARM = 1000, 5
SAVES, TOGETHER = 3, 5  # checkpoints; steps that are timed as one, as in a run that no step waits for its GPU


def main() -> None:
    """Measure and print."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--model", default="ViT-H/14")
    reader.add_argument("--image-size", type=int, default=224)
    reader.add_argument("--batch", type=int, default=64)
    reader.add_argument("--device", default="cuda")
    reader.add_argument("--steps", type=int, default=10, help="of a repeat")
    reader.add_argument("--repeats", type=int, default=5)
    reader.add_argument("--every", type=int, default=500, help="steps between checkpoints, for what they cost a run")
    reader.add_argument("--folder", type=Path, default=None)
    given = reader.parse_args()
    with joined(given.device) as group, tempfile.TemporaryDirectory(dir=given.folder) as folder:
        say(f"{given.model} at {given.image_size} px, batch {given.batch}, on {group.device}")
        ways = {name: make(given, group, shared=name == "fsdp2") for name in ("plain", "fsdp2")}
        for step, _ in ways.values():
            timed(step, WARM, group.device)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(given.repeats):
            for name, (step, _) in ways.items():
                taken[name].append(timed(step, given.steps, group.device))
        rates = {name: given.batch / statistics.median(seconds) for name, seconds in taken.items()}
        for name, seconds in taken.items():
            spread = f"{given.batch / max(seconds):,.1f} to {given.batch / min(seconds):,.1f}"
            say(f"{name}: {rates[name]:,.1f} images/s ({spread})")
        say(f"fsdp2 over plain: {rates['fsdp2'] / rates['plain']:.3f} (at least 0.97 is asked for)")
        save(given, group, Path(folder), *ways["fsdp2"])


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def make(given: argparse.Namespace, group: Group, *, shared: bool) -> tuple[Callable[[], object], State]:
    """Build a model and what takes one step of it."""
    gpu = group.device.type == "cuda"
    model: Model = create(given.model, image_size=given.image_size, classes=CLASSES, seed=0).to(group.device).train()
    assert isinstance(model, ViT)
    called: nn.Module = model
    backend = backend_for(model.config, group.device)
    if shared:
        parts = list(model.blocks)
        allow_compilations(2 * len(parts) + 2)
        for part in parts:
            part.compile(dynamic=False, backend=backend) if gpu else None
        shard(model, parts)
    elif gpu:
        called = torch.compile(model, dynamic=False, backend=backend)  # pyright: ignore[reportAssignmentType]
    training = Training(optimizer=Adam(learning_rate=1e-4), batch_size=given.batch, steps=1)
    optimizer = build_optimizer(model, training.optimizer, None)
    images = torch.randn(given.batch, 3, *model.config.image_size, device=group.device)
    labels = torch.randint(CLASSES, (given.batch,), device=group.device)

    def step() -> None:
        with torch.autocast(group.device.type, torch.bfloat16, enabled=gpu):
            logits = called(images)
        nn.functional.cross_entropy(logits.float(), labels).backward()
        clip(gradients(optimizer), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    tally = torch.zeros(3, dtype=torch.float64, device=group.device)
    return step, State(model=model, module=model, optimizer=optimizer, average=None, tally=tally)


def timed(step: Callable[[], object], count: int, device: torch.device) -> float:
    """Give the seconds of a step, of so many."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    start = time.perf_counter()
    for _ in range(count):
        step()
    wait()
    return (time.perf_counter() - start) / count


def save(given: argparse.Namespace, group: Group, folder: Path, step: Callable[[], object], state: State) -> None:
    """Measure steps while a checkpoint is written, and what a run pays that writes one every so many steps."""
    (folder / "checkpoints").mkdir()
    writer = ShardWriter(group)
    for number in range(SAVES):
        alone = [timed(step, TOGETHER, group.device) for _ in range(given.steps)]
        state.step += 1
        start = time.perf_counter()
        writer.begin(state, folder / "checkpoints" / f"step-{state.step:09d}", {})
        stopped = time.perf_counter() - start
        meanwhile: list[float] = []
        while writer.thread is not None and writer.thread.is_alive():
            meanwhile.append(timed(step, TOGETHER, group.device))
        path = writer.wait()
        assert path is not None
        total = time.perf_counter() - start
        size = sum(file.stat().st_size for file in path.iterdir())
        usual = statistics.fmean(alone)
        each = statistics.fmean(meanwhile) if meanwhile else usual
        cost = (stopped + TOGETHER * len(meanwhile) * (each - usual)) / (given.every * usual)
        say(
            f"checkpoint {number + 1}: {size / 1e9:.2f} GB in {total:.1f} s; the training stood {stopped:.2f} s; a "
            f"step takes {each:.4f} s meanwhile ({TOGETHER * len(meanwhile)} steps), {usual:.4f} s without: "
            f"{each / usual - 1:+.1%} (at most 5 % is asked for); every {given.every} steps that costs {cost:.2%}",
        )


if __name__ == "__main__":
    main()
