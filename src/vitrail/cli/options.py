"""Options that several commands share, and the words of the command line read as values."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from vitrail.config import as_size
from vitrail.errors import ConfigError


def option(help: str, *flags: str, metavar: str | None = None, default: str | bool = True) -> Any:  # noqa: ANN401
    """Give an option, by the name of its parameter or by these flags; `default` says what it is where none is given."""
    return typer.Option(*flags, metavar=metavar, help=help, show_default=default)


def argument(metavar: str, help: str) -> Any:  # noqa: ANN401
    """Give an argument."""
    return typer.Argument(metavar=metavar, help=help)


Checkpoint = Annotated[str, argument("RUN", "The model: a run folder, any checkpoint, or the name of one.")]
Data = Annotated[
    str, argument("SOURCE", "A folder of classes, .csv, .jsonl, .parquet, .tar, packed, sample, synthetic.")
]
Weights = Annotated[str, argument("FILE", "A file or folder of weights, https://..., or hf:OWNER/NAME.")]
Batch = Annotated[int | None, option("Images in a batch.", "--batch", "--batch-size", default="16; 256 on a GPU")]
Device = Annotated[str | None, option("Where to compute: cpu or cuda.", default="a GPU where there is one")]
Engine = Annotated[
    str, option("plain: the modules as they are; fast: this machine's faster path; auto: that where it repays.")
]
Fresh = Annotated[bool, option("Ignore the cache: compute everything again, and keep nothing.", "--fresh")]
Grid = Annotated[str | None, option("Of its position table.", metavar="ROWSxCOLS")]
Json = Annotated[bool, option("Print one JSON document instead.", "--json")]
Limit = Annotated[
    float,
    option(
        "Stop where more than this share of the images, from 0 to 1, cannot be decoded.",
        "--bad-image-limit",
        metavar="SHARE",
    ),
]
Out = Annotated[str | None, option("Also write the results to this folder.", metavar="FOLDER")]
Pipe = Annotated[bool, option("Allow a pipe: source to run its command.", "--allow-pipe")]
Precision = Annotated[str, option("Number format of the model: float32, bfloat16, int8 (CPU) or float8 (GPU).")]
Quiet = Annotated[bool, option("Print nothing but errors and the result.", "--quiet")]
Said = Annotated[
    list[str] | None,
    option(
        "What the file leaves open: model.heads=4, model.grid=14x10, model.activation=gelu, names=TABLE.toml.",
        "--set",
        metavar="FIELD=VALUE",
    ),
]
Side = Annotated[
    int | None, option("Resize images to this many pixels a side.", metavar="SIDE", default="the model's own size")
]
Prepared = Annotated[
    str | None,
    option(
        "How the model reads images: authors, imagenet, clip, zero-one, mnist, cifar10, cifar100.",
        metavar="NAME",
        default="as its file says; else assumed, and said",
    ),
]
Merging = Annotated[
    float | None,
    option(
        "Let the layers of a ViT merge this share of its patches. 0.6: some 1.5 times as fast, for 0.9 points of "
        "accuracy on the model in the box; 0.3: 1.2 times, for 0.1.",
        metavar="SHARE",
        default="merge none",
    ),
]
Aspect = Annotated[
    bool,
    option(
        "Read each image whole, in its own shape, in at most as many patches as the image size has; images are packed "
        "in one sequence. ViTs alone.",
        "--keep-aspect-ratio",
    ),
]
Windows = Annotated[
    bool,
    option(
        "Segment or detect in images larger than the model's size window by window, not squashed to it.", "--windows"
    ),
]
Mean = Annotated[
    str | None, option("Mean of levels from 0 to 1: one, or one for each channel.", metavar="NUMBER,...", default=False)
]
Deviation = Annotated[str | None, option("Their standard deviation.", metavar="NUMBER,...", default=False)]
Resize = Annotated[
    str | None, option("squash: both sides to the size; crop: the shorter side, then the middle.", metavar="WORD")
]
Crop = Annotated[
    float | None, option("Share of the resized side that the middle keeps.", "--crop", "--crop-share", metavar="SHARE")
]
TrainingCrop = Annotated[
    float | None, option("Share of the resized side that evaluation keeps.", "--crop-share", metavar="SHARE")
]
Interpolation = Annotated[str | None, option("nearest, bilinear, bicubic or lanczos.", metavar="WORD")]
ValueRange = Annotated[
    str | None,
    option(
        "The numbers in files that are black and white, such as 0,65535 or 0,10000: all bits are kept.",
        metavar="LOW,HIGH",
        default="levels of 8 bits",
    ),
]
Split = Annotated[str | None, option("The split to take.", default="test, else val, else the only one")]
Workers = Annotated[int | None, option("Processes that decode images.", default="as many as suit the machine")]


def preparing(
    preprocessing: Prepared = None,
    mean: Mean = None,
    deviation: Deviation = None,
    resize: Resize = None,
    crop_share: Crop = None,
    interpolation: Interpolation = None,
    value_range: ValueRange = None,
) -> None:
    """Share how images are prepared for a model."""


def training_preparing(
    preprocessing: Prepared = None,
    mean: Mean = None,
    deviation: Deviation = None,
    resize: Resize = None,
    crop_share: TrainingCrop = None,
    value_range: ValueRange = None,
) -> None:
    """Share how images are prepared where a model is trained: there, `crop` is how it augments."""


def with_options_of(shared: Callable[..., None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command, beside its own options and in place of its `**options`, those of another."""

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        own, others = (inspect.signature(each).parameters for each in (command, shared))
        parameters = [each for each in own.values() if each.kind is not each.VAR_KEYWORD]
        parameters += [each.replace(kind=each.KEYWORD_ONLY) for each in others.values() if each.name not in own]
        vars(command)["__signature__"] = inspect.Signature(parameters)
        return command

    return extend


@with_options_of(preparing)
def measuring(
    batch_size: Batch = None,
    workers: Workers = None,
    device: Device = None,
    precision: Precision = "float32",
    engine: Engine = "auto",
    bad_image_limit: Limit = 0.01,
    fresh: Fresh = False,
    settings: Said = None,
    allow_pipe: Pipe = False,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Share the options of the commands that measure a model."""


def read_pair(option: str, text: str) -> object:
    """Read `14x10`; the size of an image may be one side, `224`."""
    sides = [side.strip() for side in text.lower().split("x")]
    one = option == "image_size"
    if not all(side.isdecimal() for side in sides) or len(sides) not in ((1, 2) if one else (2,)):
        wanted = "a side or HEIGHTxWIDTH, such as 224 or 224x160" if one else "ROWSxCOLS, such as 14x10"
        raise ConfigError(f"--{option.replace('_', '-')} must be {wanted}; got {text!r}.")
    pair = int(sides[0]), int(sides[-1])
    return as_size(pair) if one else pair


def read_list(option: str, text: str) -> object:
    """Read words or numbers with commas between them."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        return [word if word == "all" else LISTS[option](word) for word in words or [""]]
    except ValueError as error:
        raise ConfigError(f"--{option} must be numbers with commas between them; got {text!r}.") from error


LISTS: dict[str, Callable[[str], object]] = {
    "deviation": float,
    "mean": float,
    "probes": str,
    "rates": float,
    "rows": str,
    "seeds": int,
    "severities": int,
    "shots": int,
    "tasks": str,
    "value_range": float,
}
READERS = {"grid": read_pair, "image_size": read_pair} | dict.fromkeys(LISTS, read_list)
