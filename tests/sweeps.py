"""Small data and a small model for tests of several runs, with notes of which images each run read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.config.recipes import adjust, recipe
from vitrail.data.decode import Pixels
from vitrail.data.source import Source
from vitrail.data.sources.memory import MemorySource
from vitrail.data.splits import content_hashes
from vitrail.train.run import Outcome, run
from vitrail.train.task import Task

NAMES = ("ant", "bee", "cat")
TINY: Mapping[str, object] = {"depth": 1, "width": 24, "heads": 3, "mlp_width": 29}
Reads = set[tuple[str, int]]  # titles of sources and numbers of images


class Noted(MemorySource):
    """Random images that can be told apart by their class; each read is noted."""

    def __init__(self, title: str, count: int, reads: Reads | None = None, names: tuple[str, ...] = NAMES) -> None:
        generator = np.random.default_rng(sum(title.encode()))
        labels = np.arange(count) % len(names)
        pixels = generator.integers(0, 200, (count, 8, 12, 3), dtype=np.uint8)
        pixels[..., 0] += (labels * 27).astype(np.uint8)[:, None, None]
        super().__init__(pixels, labels, names, title=title)
        self.reads, self.called = set() if reads is None else reads, title

    def read(self, index: int) -> Pixels:
        self.reads.add((self.called, index))
        return super().read(index)


@dataclass
class Spy:
    """Takes the place of `run`: notes each task and what it read, then does it; or answers for it, where told to."""

    reads: Reads
    answer: Callable[[Task], Outcome | None] = lambda task: None
    tasks: dict[str, Task] = field(default_factory=dict)
    read: dict[str, Reads] = field(default_factory=dict)

    def __call__(self, task: Task, *rest: Any) -> Outcome:
        name = "/".join(task.out.parts[-2:])
        self.tasks[name] = task
        self.reads.clear()
        answer = self.answer(task)
        outcome = run(task, *rest) if answer is None else answer
        self.read[name] = set(self.reads)
        return outcome


def task_for(out: Path, splits: Mapping[str, Source], name: str = "finetune/pets", **changes: object) -> Task:
    """A run of two steps, each of which sees all images."""
    small = {"steps": 2, "batch_size": 64, "image_size": (8, 12), "evaluate_every": 9, "save_every": 9, **changes}
    training = adjust(recipe(name).training, small)
    return Task(
        command="vitrail", data="noted", splits=splits, model="ViT-Ti/4", training=training, out=out, changes=TINY
    )


def ended(task: Task, **metrics: float) -> Outcome:
    """A run that came to these numbers."""
    return Outcome(out=task.out, finished=True, step=2, steps=2, metrics=metrics, seconds=0.0)


def contents(source: Source) -> set[bytes]:
    """What a source holds, whatever its order."""
    return {row.tobytes() for row in content_hashes(source)}
