"""`vitrail.demo`: the paper's point in two minutes, pre-training against none; and the story of one image's shapes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitrail.checkpoint.load import open_checkpoint
from vitrail.config import encode
from vitrail.inspection import Step, trace_shapes
from vitrail.models import ViT, create
from vitrail.runtime.machine import is_main_process
from vitrail.runtime.reporter import harmless, reporting, text_table
from vitrail.verbs.training import Run, finetune

# The worked example of the paper's readers, then the paper's own model.
EXAMPLES = (("ViT-Ti/8", 16), ("ViT-B/16", 224))
BOX = "vitrail-ti8"
RUNS = {"finetuned": "from the box", "scratch": "from scratch"}
SAME = ("depth", "width", "heads", "mlp_width", "pooling")  # of the box's model, in the one from scratch
# 16 patches an image; little that makes a short run learn slower (LOG.md has the search).
SETTINGS = (
    *("image_size=32", "crop=squash", "mixup=0", "stochastic_depth=0", "ema=none"),
    *("validation_share=0", "batch_size=64", "log_every=31", "save_every=1000"),
)
OWN = {"finetuned": ("learning_rate=2e-3", "layer_decay=0.75"), "scratch": ("learning_rate=5e-4",)}


@dataclass(frozen=True)
class Demo:
    """Two runs of the same model with the same steps, one of them pre-trained; it prints their accuracies."""

    folder: Path
    runs: Mapping[str, Run]  # finetuned and scratch; the second is missing where the first was interrupted

    @property
    def finished(self) -> bool:
        """Whether both runs ended; otherwise the same call resumes."""
        return len(self.runs) == len(RUNS) and all(run.finished for run in self.runs.values())

    def document(self) -> dict[str, Any]:
        """Give both runs as plain values, for JSON."""
        found: dict[str, Any] = {
            name: {
                "out": str(run.folder),
                "steps": run.steps,
                "accuracy": run.metrics["test_accuracy"],
                "images": run.metrics["test_images"],
                "seconds": round(run.seconds, 1),
                "curve": [(each["step"], each["accuracy"]) for each in run.history if each["kind"] == "train"],
            }
            for name, run in self.runs.items()
        }
        return {**found, "difference": found["finetuned"]["accuracy"] - found["scratch"]["accuracy"]}

    def __str__(self) -> str:
        if not self.finished:
            return "\n".join(str(run) for run in self.runs.values())
        document = self.document()
        runs = [document[name] for name in RUNS]
        rows: list[Sequence[str]] = [
            (f"{step:,}", f"{one:.1%}", f"{other:.1%}")
            for (step, one), (_, other) in zip(*(run["curve"] for run in runs), strict=False)
        ]
        rows.append(("test", *(f"{run['accuracy']:.1%}" for run in runs)))
        lines = text_table("accuracy while training, then on 1,000 test images", ("step", *RUNS.values()), rows)
        lines.append(f"Pre-training is worth {100 * document['difference']:.1f} points here, with the same steps.")
        return harmless("\n".join([*lines, f"Both runs are in {self.folder}."]))


class Story(NamedTuple):
    """The shapes of one image on its way through a fresh model; it prints as a table."""

    model: str
    image_size: int
    parameters: int
    steps: list[Step]

    def document(self) -> dict[str, Any]:
        """Give the steps as plain values, for JSON."""
        return {**self._asdict(), "steps": [step._asdict() for step in self.steps]}

    def __str__(self) -> str:
        title = f"{self.model} at {self.image_size}x{self.image_size}: {self.parameters:,} parameters, fresh"
        rows = [(step.what, step.where, " x ".join(map(str, step.shape[1:])), step.words) for step in self.steps]
        return "\n".join(text_table(title, ("step", "paper", "shape", "in words"), rows))


def demo(
    out: str | os.PathLike[str] = "runs/demo",
    *,
    epochs: float = 5,
    seed: int = 0,
    device: str | None = None,
    quiet: bool = False,
    command: str = "",
) -> Demo:
    """Fine-tune the ViT in the box on the images in the box, train the same ViT from scratch as long, and compare.

    About 90 seconds on two cores. Both runs go into `out`; the same call resumes them.
    """
    found: dict[str, Run] = {}
    for name, words in RUNS.items():
        with reporting(quiet=quiet or not is_main_process()) as report:
            report.note(f"\n{words}:")
        model, settings = _asked(name)
        found[name] = finetune(
            "sample",
            model=model,
            out=Path(out) / name,
            recipe="small",
            settings=settings,
            epochs=epochs,
            seed=seed,
            workers=0,
            device=device,
            quiet=quiet,
            command=command,
        )
        if not found[name].finished:
            break
    return Demo(Path(out), found)


def demo_shapes(seed: int = 0) -> list[Story]:
    """Walk one image through two fresh models, step by step: a tiny one, and the paper's ViT-B/16."""
    stories = []
    for name, side in EXAMPLES:
        model = create(name, image_size=side, classes=10, seed=seed).eval()
        assert isinstance(model, ViT)
        images = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(seed)) * 2 - 1
        count = sum(parameter.numel() for parameter in model.parameters())
        stories.append(Story(name, side, count, trace_shapes(model, images)))
    return stories


def _asked(name: str) -> tuple[str, tuple[str, ...]]:
    """Give the model of a run, and its settings: the box's, or the same one fresh."""
    settings = (*SETTINGS, *OWN[name])
    if name != "scratch":
        return BOX, settings
    with open_checkpoint(BOX) as checkpoint:
        config = encode(checkpoint.config)
    settings += (*(f"model.{field}={config[field]}" for field in SAME),)
    return f"ViT-Ti/{config['stem']['patch']}", (*settings, f"model.positions={config['positions']['kind']}")
