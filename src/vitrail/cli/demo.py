"""`vitrail demo`: the paper's point in two minutes, pre-training against none; or the story of one image's shapes."""

import json
import shlex
from typing import Annotated

import typer

from vitrail.cli.asking import Device, Quiet, program, same_again
from vitrail.cli.describe import Json
from vitrail.cli.render import said_command, show
from vitrail.runtime.reporter import harmless

Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Out = Annotated[
    str, typer.Option(metavar="FOLDER", help="The folder of both runs; the same command again resumes them.")
]
Epochs = Annotated[float, typer.Option(help="Passes over the 2,000 training images, of each run.")]
Shapes = Annotated[
    bool, typer.Option("--shapes", help="Instead, print the shape of one image at every step through a fresh ViT.")
]


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
    from vitrail.verbs.demo import BOX, demo_shapes
    from vitrail.verbs.demo import demo as run

    if shapes:
        stories = demo_shapes(seed)
        if as_json:
            typer.echo(json.dumps([story.document() for story in stories], indent=2))
        else:
            typer.echo("\n\n".join(map(str, stories)))
            typer.echo("For one image. Next, in Python: vitrail.create('ViT-B/16', classes=10)")
        return
    found = run(out, epochs=epochs, seed=seed, device=device, quiet=quiet, command=said_command())
    show(found, as_json=as_json and found.finished)
    if not found.finished:
        typer.echo(same_again(), err=True)
        raise typer.Exit(130)
    if not as_json:
        one, other = (shlex.quote(harmless(str(made.folder))) for made in found.runs.values())
        typer.echo(f"Next:\n  {program()} evaluate {one} sample --against {other}")
        typer.echo(f"  {program()} fewshot {BOX} sample\n  {program()} finetune photos/ --model {BOX}")
