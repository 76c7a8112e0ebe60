"""`vitrail demo`: a ViT trained on the images in the box, in minutes; or the story of one image's shapes."""

import json
from typing import Annotated

import typer
from rich.console import Console

from vitrail.cli.asking import Asked, Device, Quiet
from vitrail.cli.describe import Json
from vitrail.cli.render import plain_table
from vitrail.cli.training import show_outcome, train

Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Out = Annotated[str, typer.Option(metavar="FOLDER", help="Where the run goes; the same command again continues it.")]
Epochs = Annotated[float, typer.Option(help="Passes over the 2,000 training images.")]
Shapes = Annotated[bool, typer.Option("--shapes", help="Walk one image through a fresh ViT instead, step by step.")]

# The worked example of the paper's readers, then the paper's own model.
EXAMPLES = (("ViT-Ti/8", 16), ("ViT-B/16", 224))
MODEL = "ViT-Ti/7"  # 16 patches of an image of 28 pixels
SETTINGS = (
    *("model.depth=6", "model.positions=sinusoidal-2d", "image_size=28", "rate=1e-3"),
    *("mixup=0", "stochastic_depth=0", "dev=0", "log_every=31"),  # little that makes a short run learn slower
)


def demo(
    out: Out = "runs/demo",
    epochs: Epochs = 18,
    seed: Seed = 0,
    device: Device = None,
    shapes: Shapes = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a small ViT from scratch on the images in the box, and measure it on the test images: about 90 seconds.

    `--shapes` tells the story of one image's way through the model instead.
    """
    if shapes:
        _tell_shapes(seed, as_json=as_json)
        return
    asked = Asked(
        kind="finetune",
        data="sample",
        model=MODEL,
        out=out,
        recipe="small",
        flags={"epochs": epochs, "seed": seed},
        settings=SETTINGS,
    )
    outcome = train(asked, workers=0, device=device, tensorboard=False, allow_pipe=False, quiet=quiet)
    show_outcome(outcome, asked, as_json=as_json)


def _tell_shapes(seed: int, *, as_json: bool) -> None:
    import torch

    from vitrail.inspection import Step, walk
    from vitrail.models import ViT, create

    stories: list[tuple[str, int, int, list[Step]]] = []
    for name, side in EXAMPLES:
        model = create(name, image_size=side, classes=10, seed=seed).eval()
        assert isinstance(model, ViT)
        images = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(seed)) * 2 - 1
        count = sum(parameter.numel() for parameter in model.parameters())
        stories.append((name, side, count, walk(model, images)))
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
