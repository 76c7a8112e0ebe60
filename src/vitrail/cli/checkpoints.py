"""`vitrail describe` and `vitrail convert`: what a file of weights is, and weights from any layout to another."""

import json
from functools import partial
from typing import Annotated, Any

from vitrail.cli.app import call
from vitrail.cli.options import Grid, Json, Said, Weights, argument, option, preparing, with_options_of
from vitrail.cli.render import say, show
from vitrail.runtime.reporter import reporting

TrainedSize = Annotated[
    str | None, option("Pixels that it was trained on, where its positions need it.", metavar="SIDE|HxW")
]
Base = Annotated[
    str | None,
    option("Of a file of LoRA: the weights that it changes.", metavar="FILE|NAME", default="those that the file names"),
]
Names = Annotated[str | None, option("A table of which tensor is what, a .toml that describe wrote.", metavar="TABLE")]
Propose = Annotated[bool, option("Propose names although a layout is recognised.", "--propose")]
Check = Annotated[
    tuple[str, str] | None,
    option("Images and outputs of its own model: try what is open.", metavar="INPUT.npy OUTPUT.npy"),
]
WriteNames = Annotated[str | None, option("Write the table of names there.", "--write-names", metavar="FILE.toml")]
Tensors = Annotated[bool, option("List every tensor.", "--tensors")]
Target = Annotated[
    str, argument("OUT", "vitrail, hf, timm: a folder; google: .npz; timm, torchvision: .safetensors, .pth.")
]
Layout = Annotated[str, option("google, timm, hf, torchvision, vitrail, or a table of names, TABLE.toml.")]
Lossy = Annotated[bool, option("Write although the layout cannot hold all; says what is lost.", "--lossy")]
Overwrite = Annotated[bool, option("Replace OUT where it exists.", "--overwrite")]
ImageSize = Annotated[str | None, option("New image size: positions are resampled.", metavar="SIDE|HxW")]
Classes = Annotated[int | None, option("New zero head of so many classes.")]
KeepPreLogits = Annotated[
    bool, option("With --classes: keep the pre-training tanh layer.", "--keep-pre-logits", "--keep-hidden")
]
Patch = Annotated[int | None, option("New patch side: the kernel is resized by the pseudo-inverse.")]
Channels = Annotated[int | None, option("New number of input channels.")]
Dtype = Annotated[str | None, option("float32, float16 or bfloat16.", default="the file's own")]


def describe(
    path: Weights,
    image_size: TrainedSize = None,
    grid: Grid = None,
    names: Names = None,
    propose: Propose = False,
    check: Check = None,
    write_names: WriteNames = None,
    overwrite: Overwrite = False,
    settings: Said = None,
    tensors: Tensors = False,
    as_json: Json = False,
) -> None:
    """Say what a file of weights is: layout, architecture, shapes, numbers, and anything odd.

    Of a file whose names nobody knows, propose which tensor is what, and try what is open.
    """
    given = {"path": path, "image_size": image_size, "grid": grid, "settings": settings, "names": names}
    given |= {"propose": propose, "check": check, "write_names": write_names, "overwrite": overwrite}
    with reporting() as report, report.working("reading"):
        found = call("describe", given | {"progress": partial(report.progress, "trying")})
    say(json.dumps(found.document(), indent=2) if as_json else found.text(tensors=tensors))


@with_options_of(preparing)
def convert(
    source: Weights,
    path: Target,
    layout: Layout,
    lossy: Lossy = False,
    overwrite: Overwrite = False,
    image_size: ImageSize = None,
    classes: Classes = None,
    keep_pre_logits: KeepPreLogits = False,
    patch: Patch = None,
    channels: Channels = None,
    grid: Grid = None,
    names: Names = None,
    dtype: Dtype = None,
    base: Base = None,
    settings: Said = None,
    as_json: Json = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Read weights in any layout and write them in another; numbers stay as they are unless an option changes them."""
    given = locals()
    with reporting() as report, report.working("converting"):
        written = call("convert", given)
    show(written, as_json=as_json)
