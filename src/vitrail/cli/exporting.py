"""`vitrail export`: a model as a file that another program runs."""

from typing import Annotated, Any

from vitrail.cli.app import answer
from vitrail.cli.options import Checkpoint, Json, Quiet, Said, option, preparing, with_options_of

To = Annotated[str, option("onnx, torch, aotinductor, openvino, executorch or html.", metavar="TARGET")]
Precision = Annotated[str | None, option("float32, float16 or int8.", metavar="WORD", default="float32; html: float16")]
Size = Annotated[
    str | None, option("Its own image size: positions are resampled.", metavar="SIDE|HxW", default="the model's own")
]
Fixed = Annotated[bool, option("Take images of its own size alone.", "--fixed-size")]
Pixels = Annotated[
    bool, option("Scale pixels inside: the input is uint8, B H W C, resized already.", "--with-preprocessing")
]
Calibrate = Annotated[
    str | None, option("Images that int8 is calibrated on.", metavar="SOURCE", default="the sample in the box")
]
Loss = Annotated[
    float | None,
    option("Points of accuracy that int8 may lose on them, where they have labels.", metavar="POINTS", default="0.2"),
]
Out = Annotated[str | None, option("The file.", metavar="FILE", default="named after the model")]
Overwrite = Annotated[bool, option("Replace the file where it exists.", "--overwrite")]


@with_options_of(preparing)
def export(
    model: Checkpoint,
    to: To = "onnx",
    precision: Precision = None,
    image_size: Size = None,
    fixed_size: Fixed = False,
    with_preprocessing: Pixels = False,
    calibrate: Calibrate = None,
    loss: Loss = None,
    out: Out = None,
    overwrite: Overwrite = False,
    settings: Said = None,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Write a model as a file that another program runs; it is compared with the model before it is kept.

    Batch, height and width are free where the model allows it. predict, evaluate and serve take the file as a model:

      vitrail export vitrail-ti8 --out box.onnx

      vitrail predict box.onnx cat.jpg

      vitrail export runs/pets --to openvino --precision int8 --calibrate photos/
    """
    answer("export", locals())
