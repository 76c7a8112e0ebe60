"""`vitrail convert`: weights from any layout to another."""

import json
from typing import Annotated

import typer

from vitrail.cli.describe import GridOption, Json, Settings
from vitrail.cli.sizes import read_pair, read_size
from vitrail.runtime.reporter import harmless, reporting

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
KeepPreLogits = Annotated[
    bool,
    typer.Option("--keep-pre-logits", "--keep-hidden", help="With --classes: keep the pre-training tanh layer."),
]
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
    keep_pre_logits: KeepPreLogits = False,
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
    import vitrail
    from vitrail.checkpoint import read_fields

    with reporting() as report, report.working("converting"):
        written = vitrail.convert(
            source,
            target,
            layout=layout,
            lossy=lossy,
            overwrite=overwrite,
            image_size=size,
            classes=classes,
            keep_pre_logits=keep_pre_logits,
            patch=patch,
            channels=channels,
            grid=shape,
            dtype=dtype,
            **read_fields(settings or []),
        )
    typer.echo(json.dumps(written.document(), indent=2) if as_json else harmless(str(written)))
