"""`vitrail demo`: the paper's point in two minutes, pre-training against none; or the story of one image's shapes."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from vitrail.cli.asking import Device, Quiet, program, typed
from vitrail.cli.describe import Json
from vitrail.cli.render import harmless, plain_table
from vitrail.cli.training import show_run

if TYPE_CHECKING:
    from vitrail.verbs.training import Run

Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Out = Annotated[str, typer.Option(metavar="FOLDER", help="Where the runs go; the same command again continues them.")]
Epochs = Annotated[float, typer.Option(help="Passes over the 2,000 training images, of each run.")]
Shapes = Annotated[bool, typer.Option("--shapes", help="Walk one image through a fresh ViT instead, step by step.")]

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


def demo(
    out: Out = "runs/demo",
    epochs: Epochs = 5,
    seed: Seed = 0,
    device: Device = None,
    shapes: Shapes = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune the ViT in the box on the images in the box, train the same ViT from scratch as long, and compare.

    About 90 seconds on two cores. `--shapes` tells the story of one image's way through the model instead.
    """
    if shapes:
        _tell_shapes(seed, as_json=as_json)
        return
    from vitrail.runtime.group import is_main_process
    from vitrail.verbs.training import finetune

    found: dict[str, Run] = {}
    for name, words in RUNS.items():
        if not quiet:
            Console(stderr=True, highlight=False).print(f"\n{words}:", style="bold")
        model, settings = _asked(name)
        run = finetune(
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
            command=typed(),
        )
        if not run.finished:
            show_run(run, "sample", as_json=as_json)
        found[name] = run
    if not is_main_process():
        return
    document = _document(found)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        _show(document, out)


def _asked(name: str) -> tuple[str, tuple[str, ...]]:
    """Give the model of a run, and its settings: the box's, or the same one fresh."""
    settings = (*SETTINGS, *OWN[name])
    if name != "scratch":
        return BOX, settings
    from vitrail.checkpoint.load import config_of
    from vitrail.config import encode

    config = encode(config_of(BOX))
    settings += (*(f"model.{field}={config[field]}" for field in SAME),)
    return f"ViT-Ti/{config['stem']['patch']}", (*settings, f"model.positions={config['positions']['kind']}")


def _document(found: "dict[str, Run]") -> dict[str, Any]:
    runs = {
        name: {
            "out": str(outcome.folder),
            "steps": outcome.steps,
            "accuracy": outcome.metrics["test_accuracy"],
            "images": outcome.metrics["test_images"],
            "seconds": round(outcome.seconds, 1),
            "curve": _curve(outcome),
        }
        for name, outcome in found.items()
    }
    return {**runs, "difference": runs["finetuned"]["accuracy"] - runs["scratch"]["accuracy"]}


def _curve(run: "Run") -> list[tuple[int, float]]:
    """Give the accuracy on the training images of each line of a run's log, by step."""
    return [(record["step"], record["accuracy"]) for record in run.history if record["kind"] == "train"]


def _show(document: dict[str, Any], out: str) -> None:
    console = Console(soft_wrap=True, highlight=False)
    runs = [document[name] for name in RUNS]
    table = plain_table("step", *RUNS.values(), title="accuracy while training, then on 1,000 test images", numbers=3)
    for (step, one), (_, other) in zip(*(run["curve"] for run in runs), strict=False):
        table.add_row(f"{step:,}", f"{one:.1%}", f"{other:.1%}")
    table.add_section()
    table.add_row("test", *(f"{run['accuracy']:.1%}" for run in runs), style="bold")
    console.print(table)
    points = 100 * document["difference"]
    console.print(f"Pre-training is worth {points:.1f} points here, with the same steps.", style="bold", markup=False)
    console.print(f"Both runs are in {harmless(out)}. Next:", markup=False)
    one, other = (shlex.quote(harmless(run["out"])) for run in runs)
    console.print(f"  {program()} evaluate {one} sample --against {other}", markup=False)
    console.print(f"  {program()} fewshot {BOX} sample", markup=False)
    console.print(f"  {program()} finetune photos/ --model {BOX}", markup=False)


def _tell_shapes(seed: int, *, as_json: bool) -> None:
    import torch

    from vitrail.inspection import Step, trace_shapes
    from vitrail.models import ViT, create

    stories: list[tuple[str, int, int, list[Step]]] = []
    for name, side in EXAMPLES:
        model = create(name, image_size=side, classes=10, seed=seed).eval()
        assert isinstance(model, ViT)
        images = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(seed)) * 2 - 1
        count = sum(parameter.numel() for parameter in model.parameters())
        stories.append((name, side, count, trace_shapes(model, images)))
    if as_json:
        document = [
            {"model": name, "image_size": side, "parameters": count, "steps": [step._asdict() for step in steps]}
            for name, side, count, steps in stories
        ]
        typer.echo(json.dumps(document, indent=2))
        return
    console = Console()
    for name, side, count, steps in stories:
        title = f"{name} at {side}x{side}: {count:,} parameters, fresh"
        table = plain_table("step", "paper", "shape", "in words", title=title)
        for step in steps:
            table.add_row(step.what, step.where, " x ".join(map(str, step.shape[1:])), step.words)
        console.print(table)
    console.print("For one image. Next, in Python: vitrail.create('ViT-B/16', classes=10)", highlight=False)
