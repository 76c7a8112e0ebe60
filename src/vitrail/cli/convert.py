"""`vitrail convert`: weights from any layout to another."""

import json
from typing import Annotated

import typer
from rich.console import Console

from vitrail.cli.describe import GridOption, Json, Settings, read_fields
from vitrail.cli.render import working
from vitrail.cli.sizes import read_pair, read_size
from vitrail.config import name_of

Source = Annotated[
    str, typer.Argument(metavar="IN", help="A file or folder of weights, https://..., or hf:OWNER/NAME.")
]
Target = Annotated[
    str,
    typer.Argument(
        metavar="OUT", help="vitrail and hf: a folder; google: .npz; timm, torchvision: .safetensors, .pth."
    ),
]
LayoutOption = Annotated[str, typer.Option("--layout", help="google, timm, hf, torchvision or vitrail.")]
Lossy = Annotated[bool, typer.Option("--lossy", help="Write although the layout cannot hold all; says what is lost.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace OUT where it exists.")]
ImageSize = Annotated[str | None, typer.Option(metavar="SIDE|HxW", help="New image size: positions are resampled.")]
Classes = Annotated[int | None, typer.Option(help="New zero head of so many classes.")]
KeepHidden = Annotated[bool, typer.Option("--keep-hidden", help="With --classes: keep the pre-training tanh layer.")]
Patch = Annotated[int | None, typer.Option(help="New patch side: the kernel is resized by the pseudo-inverse.")]
Channels = Annotated[int | None, typer.Option(help="New number of input channels.")]
Precision = Annotated[
    str | None, typer.Option("--dtype", help="float32, float16 or bfloat16.", show_default="the file's own")
]


def convert(
    source: Source,
    target: Target,
    layout: LayoutOption,
    lossy: Lossy = False,
    overwrite: Overwrite = False,
    image_size: ImageSize = None,
    classes: Classes = None,
    keep_hidden: KeepHidden = False,
    patch: Patch = None,
    channels: Channels = None,
    grid: GridOption = None,
    dtype: Precision = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Read weights in any layout and write them in another; numbers stay as they are unless an option changes them."""
    size = None if image_size is None else read_size(image_size)
    shape = None if grid is None else read_pair("--grid", grid)
    fields = read_fields(settings or [])
    from vitrail.checkpoint import convert as run

    with working("converting ..."):
        written = run(
            source,
            target,
            layout=layout,
            lossy=lossy,
            overwrite=overwrite,
            image_size=size,
            classes=classes,
            keep_hidden=keep_hidden,
            patch=patch,
            channels=channels,
            grid=shape,
            dtype=dtype,
            **fields,
        )
    came = written.came
    notes = {
        "inferred": came.inferred if came else (),
        "changed": came.changes if came else (),
        "left out": came.left_out if came else (),
        "lost": written.lost,
        "note": written.notes,
    }
    if as_json:
        document = {
            "path": str(written.path),
            "layout": written.layout,
            "from": came.layout if came else None,
            "model": name_of(written.config),
            "parameters": written.parameters,
            **{label.replace(" ", "_"): list(texts) for label, texts in notes.items()},
        }
        typer.echo(json.dumps(document, indent=2))
        return
    console = Console(soft_wrap=True, highlight=False)
    model = name_of(written.config) or "a model"
    console.print(
        f"recognised  {came.layout if came else ''} ({came.container if came else ''}): {model}", markup=False
    )
    for label, texts in notes.items():
        for index, text in enumerate(texts[:8]):
            console.print(f"{'' if index else label:<10}  {text}", markup=False)
        if len(texts) > 8:
            console.print(f"{'':<10}  and {len(texts) - 8} more")
    console.print(f"{'wrote':<10}  {written.path} ({written.layout}, {written.parameters:,} parameters)", markup=False)
