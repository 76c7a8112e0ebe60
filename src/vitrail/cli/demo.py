"""`vitrail demo`: one made image through fresh models, and the story of its shapes."""

import json
from typing import Annotated

import typer
from rich.console import Console

from vitrail.cli.render import plain_table

Seed = Annotated[int, typer.Option(help="Seed of the image and the weights.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]

# The worked example of the paper's readers, then the paper's own model.
EXAMPLES = (("ViT-Ti/8", 16), ("ViT-B/16", 224))


def demo(seed: Seed = 0, as_json: Json = False) -> None:
    """Walk one image through a fresh Vision Transformer, step by step."""
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
