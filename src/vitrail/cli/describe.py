"""`vitrail describe`: what a file of weights is, and anything odd about it."""

import json
from typing import Annotated

import typer

from vitrail.cli.sizes import read_pair, read_size
from vitrail.runtime.reporter import harmless, reporting

Source = Annotated[
    str, typer.Argument(metavar="FILE", help="A file or folder of weights, https://..., or hf:OWNER/NAME.")
]
ImageSize = Annotated[
    str | None, typer.Option(metavar="SIDE|HxW", help="Pixels that it was trained on, where its positions need it.")
]
GridOption = Annotated[str | None, typer.Option("--grid", metavar="ROWSxCOLS", help="Of its position table.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="What the file leaves open, such as heads=6.")
]
Tensors = Annotated[bool, typer.Option("--tensors", help="List every tensor.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]


def describe(
    source: Source,
    image_size: ImageSize = None,
    grid: GridOption = None,
    settings: Settings = None,
    tensors: Tensors = False,
    as_json: Json = False,
) -> None:
    """Say what a file of weights is: layout, architecture, shapes, numbers, and anything odd."""
    size = None if image_size is None else read_size(image_size)
    shape = None if grid is None else read_pair("--grid", grid)
    import vitrail
    from vitrail.checkpoint import read_fields

    with reporting() as report, report.working("reading"):
        found = vitrail.describe(source, image_size=size, grid=shape, **read_fields(settings or []))
    typer.echo(json.dumps(found.document(), indent=2) if as_json else harmless(found.text(tensors=tensors)))
