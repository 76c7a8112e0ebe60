"""Options of the commands that measure a model."""

from typing import Annotated

import typer

Checkpoint = Annotated[
    str, typer.Argument(metavar="RUN", help="The model: a run folder, any checkpoint, or the name of one.")
]
Split = Annotated[str | None, typer.Option(help="The split to take.", show_default="test, else val, else the only one")]
Size = Annotated[
    int | None,
    typer.Option(metavar="SIDE", help="Resize images to this many pixels a side.", show_default="the model's own size"),
]
Out = Annotated[str | None, typer.Option(metavar="FOLDER", help="Also write the results to this folder.")]
Batch = Annotated[
    int | None,
    typer.Option("--batch", "--batch-size", help="Images in a batch.", show_default="16; 256 on a GPU"),
]
Workers = Annotated[
    int | None, typer.Option(help="Processes that decode images.", show_default="as many as suit the machine")
]
Device = Annotated[
    str | None, typer.Option(help="Where to compute: cpu or cuda.", show_default="a GPU where there is one")
]
Precision = Annotated[str, typer.Option(help="Number format of the model: float32 or bfloat16.")]
Limit = Annotated[
    float, typer.Option("--bad-image-limit", help="Stop where a larger share of the images cannot be read.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Ignore the cache: compute everything again, and keep nothing.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors and the result.")]
