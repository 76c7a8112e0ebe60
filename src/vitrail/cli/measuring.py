"""`vitrail evaluate`, `calibrate`, `fewshot`, `verify` and `inspect`: how good a model is, and what is inside it."""

from pathlib import Path
from typing import Annotated, Any

from vitrail.cli.app import answer, call
from vitrail.cli.options import (
    Aspect,
    Checkpoint,
    Data,
    Device,
    Json,
    Merging,
    Out,
    Pipe,
    Quiet,
    Said,
    Side,
    Split,
    Windows,
    argument,
    measuring,
    option,
    preparing,
    with_options_of,
)
from vitrail.cli.render import is_main, say, show

Against = Annotated[str | None, option("Compare with this other model, on the same images.", metavar="RUN")]
Labels = Annotated[
    str | None, option("Take the labels of each image from this file, such as ReaL's, not the data's.", metavar="JSON")
]
Mapped = Annotated[
    str | None, option("Which of the model's classes each of the data's is, such as ObjectNet's.", metavar="JSON")
]
Page = Annotated[
    str | None, option("Also write a page of the worst mistakes and their attention.", "--report", metavar="FOLDER")
]
Worst = Annotated[int, option("How many wrong answers to list, the most confident first.")]
Corruptions = Annotated[
    bool, option("Also measure under the 15 corruptions of ImageNet-C, beside the clean images.", "--corruptions")
]
Severities = Annotated[str, option("Of the corruptions, from 1 to 5, with commas.")]
Beside = Annotated[
    list[str] | None, option("Another model next to this one, under corruptions; several times for several.")
]
Shots = Annotated[str, option("How many images of every class to learn from, with commas; `all` takes all.")]
Seeds = Annotated[str, option("Seeds of the draws, with commas: each draws other images.")]
Strength = Annotated[float, option("L2 regularization of least squares; the authors' by default.")]
Probes = Annotated[str, option("Classifiers to train on the features, with commas.")]
Neighbors = Annotated[int, option("How many nearest neighbors vote in the knn probe.", "--knn")]
Layer = Annotated[int | None, option("Take the features after this many blocks.", default="all blocks")]
Authors = Annotated[
    bool, option("Preprocess as the authors do: squash to 8/7 of the size, crop the center.", "--as-authors")
]
Gallery = Annotated[int, option("How many images of each person the other images are found by.")]
Far = Annotated[float, option("False accept rate: the share of pairs of different people to accept.")]
Everyone = Annotated[bool, option("Also measure people whom the model was trained on.", "--everyone")]
Flip = Annotated[bool, option("Add the mirrored image's embedding.")]
Images = Annotated[
    str | None,
    argument("IMAGES", "An image, a folder of images, or any data. Without it, the page shows the weights alone."),
]
PageOut = Annotated[str | None, option("The folder to write.", metavar="FOLDER", default="runs/inspect-NAME")]
Count = Annotated[int, option("How many images to show, spread over all of them.", "--images")]
Search = Annotated[int, option("How many labeled images to search for the most confident mistakes; 0 searches none.")]
Drawn = Annotated[
    int | None,
    option(
        "How many images, drawn at random, to compare layers and changes by.", default="12 to 64, by the model's size"
    ),
]
Bias = Annotated[bool, option("Also move images, and drop and exchange their patches; takes longer.")]


@with_options_of(measuring)
def evaluate(
    model: Checkpoint,
    data: Data,
    split: Split = None,
    against: Against = None,
    labels: Labels = None,
    mapping: Mapped = None,
    worst: Worst = 10,
    token_merging: Merging = None,
    keep_aspect_ratio: Aspect = False,
    corruptions: Corruptions = False,
    severities: Severities = "1,2,3,4,5",
    beside: Beside = None,
    windows: Windows = False,
    image_size: Side = None,
    out: Out = None,
    page: Page = None,
    as_json: Json = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Measure accuracy on labeled images, and show where a model errs.

    Every image counts once. Data without a test or val split: the images that the run kept back from training are
    taken; `--split` takes them all. `--out` writes evaluation.json and predictions.csv; `--report` also writes the page
    of `vitrail inspect` for the most confident mistakes. Outputs are cached, so that the same again takes seconds.
    A model that segments or detects is measured on masks or boxes: mean IoU, or COCO's AP; `--windows` looks at large
    images window by window, and `--report` shows the worst ones beside the truth.
    `--preprocessing measure` tries the usual ways on labeled images and takes the best: its accuracy is optimistic.
    """
    found = answer("evaluate", locals())
    if as_json or not is_main():
        return
    if out is not None:
        rows = "predictions.json" if "task" in found.document() else "predictions.csv"
        say(f"evaluation.json and {rows} are in {out}")
    if page is not None:
        say(f"page: {Path(page) / 'report.html'}")


@with_options_of(measuring)
def calibrate(
    model: Checkpoint,
    data: Data,
    split: Split = None,
    as_json: Json = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Fit a temperature on validation images, so that a run is as good as it is sure, and keep it in its card.

    The images are those that the run kept back from training, or else the val split; never test images. Logits and
    answers stay what they are; the probabilities of predict, evaluate and inspect use the temperature.
    """
    answer("calibrate", locals())


@with_options_of(measuring)
def fewshot(
    model: Checkpoint,
    data: Data,
    shots: Shots = "1,5,10,25",
    seeds: Seeds = "0,1,2",
    l2: Strength = 1024.0,
    probes: Probes = "ridge,knn,logistic",
    neighbors: Neighbors = 20,
    image_size: Side = None,
    layer: Layer = None,
    as_authors: Authors = False,
    out: Out = None,
    **options: Any,  # noqa: ANN401
) -> None:
    """Train linear classifiers of frozen features from few images of every class, and test them.

    Data without a test split is split by content. Features are cached, so that other shots of the same images take
    seconds.
    """
    answer("fewshot", locals())


@with_options_of(measuring)
def verify(
    model: Checkpoint,
    data: Data,
    split: Split = None,
    gallery: Gallery = 1,
    far: Far = 0.01,
    flip: Flip = True,
    everyone: Everyone = False,
    image_size: Side = None,
    out: Out = None,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Measure how well a model tells whether two images show one person: all pairs, a folder for each person.

    People whose names are among the model's classes were trained on and are left out; `--everyone` measures them too.
    `--out` writes verification.json and roc.csv.
    """
    found = call("verify", locals())
    if quiet and not as_json and is_main():
        say("\n".join(found.lines(pairs=False)))
    else:
        show(found, as_json=as_json)


@with_options_of(preparing)
def inspect(
    model: Checkpoint,
    images: Images = None,
    against: Against = None,
    out: PageOut = None,
    split: Split = None,
    image_size: Side = None,
    count: Count = 16,
    search: Search = 64,
    drawn: Drawn = None,
    bias: Bias = True,
    device: Device = None,
    settings: Said = None,
    allow_pipe: Pipe = False,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,  # noqa: ANN401
) -> None:
    """Look inside a model: filters, positions, attention, mistakes, layers; as figures, numbers and one page.

    The page opens offline: click a patch, choose layer and head. Without images it shows what the weights show.
    """
    answer("inspect", locals())
    if images is None and not as_json:
        say("Give images to see what it does with them: vitrail inspect RUN IMAGES")
