"""`vitrail fewshot`: what the features of a model are worth with few images of every class (Section 4.1)."""

from typing import Annotated

import typer

from vitrail.cli.asking import read_numbers
from vitrail.cli.data import Pipe, Where
from vitrail.cli.describe import Json
from vitrail.cli.measuring import Batch, Checkpoint, Device, Fresh, Limit, Out, Precision, Quiet, Size, Workers
from vitrail.cli.render import show

Shots = Annotated[str, typer.Option(help="How many images of every class to learn from, with commas; `all` takes all.")]
Seeds = Annotated[str, typer.Option(help="Seeds of the draws, with commas: each draws other images.")]
Strength = Annotated[float, typer.Option("--l2", help="L2 regularization of least squares; the authors' by default.")]
Probes = Annotated[str, typer.Option(help="Classifiers to train on the features, with commas.")]
Neighbors = Annotated[int, typer.Option("--knn", help="How many nearest neighbors vote in the knn probe.")]
Layer = Annotated[int | None, typer.Option(help="Take the features after this many blocks.", show_default="all blocks")]
Authors = Annotated[
    bool,
    typer.Option("--as-authors", help="Preprocess as the authors do: squash to 8/7 of the size, crop the center."),
]


def fewshot(
    run: Checkpoint,
    data: Where,
    shots: Shots = "1,5,10,25",
    seeds: Seeds = "0,1,2",
    l2: Strength = 1024.0,
    probes: Probes = "ridge,knn,logistic",
    neighbors: Neighbors = 20,
    image_size: Size = None,
    layer: Layer = None,
    as_authors: Authors = False,
    out: Out = None,
    batch: Batch = None,
    workers: Workers = None,
    device: Device = None,
    precision: Precision = "float32",
    limit: Limit = 0.01,
    fresh: Fresh = False,
    allow_pipe: Pipe = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train linear classifiers of frozen features from few images of every class, and test them.

    Data without a test split is split by content. Features are cached, so that other shots of the same images take
    seconds.
    """
    from vitrail import fewshot as run_fewshot
    from vitrail.runtime.reporter import reporting

    with reporting(quiet=quiet) as report:
        found = run_fewshot(
            run,
            data,
            shots=[word if word == "all" else read_numbers("shots", word, int)[0] for word in _words(shots)],
            seeds=read_numbers("seeds", seeds, int),
            l2=l2,
            probes=_words(probes),
            neighbors=neighbors,
            image_size=image_size,
            layer=layer,
            as_authors=as_authors,
            out=out,
            batch_size=batch,
            workers=workers,
            device=device,
            precision=precision,
            bad_image_limit=limit,
            fresh=fresh,
            allow_pipe=allow_pipe,
            report=report,
        )
    show(found, as_json=as_json)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
