"""`vitrail evaluate`: how good a model is on images with labels."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vitrail.cli.data import Pipe, Where
from vitrail.cli.describe import Json
from vitrail.cli.render import working
from vitrail.errors import DataError

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or any checkpoint with a classifier.")]
Split = Annotated[str | None, typer.Option(help="Which split.", show_default="test, else val, else the only one")]
Batch = Annotated[int, typer.Option(help="Images at once.")]
Workers = Annotated[int, typer.Option(help="Processes that decode images.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda.", show_default="a GPU where there is one")]
Limit = Annotated[float, typer.Option(help="Share of images that may be unreadable.")]


def evaluate(
    run: Run,
    data: Where,
    split: Split = None,
    batch: Batch = 64,
    workers: Workers = 0,
    device: Device = None,
    limit: Limit = 0.01,
    allow_pipe: Pipe = False,
    as_json: Json = False,
) -> None:
    """Measure accuracy; every image counts once.

    Of data without a test or val split, a run is measured on the images that it kept back; `--split` takes them all.
    """
    from vitrail.checkpoint.load import load
    from vitrail.data.open import open_data
    from vitrail.evaluate.accuracy import measure_accuracy
    from vitrail.train.group import Group, choose_device
    from vitrail.train.task import kept_back

    group = Group(device=choose_device(device))
    splits = open_data(data, allow_pipe=allow_pipe)
    chosen = split or next((name for name in ("test", "val") if name in splits), None)
    if chosen is None and len(splits) == 1:
        chosen = next(iter(splits))
    if chosen is None or chosen not in splits:
        raise DataError(f"{data}: there is no split {chosen or 'test'!r}. There are: {', '.join(splits)}.")
    source = splits[chosen]
    part = kept_back(Path(run).expanduser(), source) if split is None and chosen in ("all", "train") else None
    said = chosen if part is None else f"those of {chosen} that the run kept back"
    model = load(run, device=group.device)
    names = model.card.class_names
    if names is not None and source.class_names != names:
        raise DataError(
            f"the model's classes are not the data's: {', '.join(names[:4])} ... against "
            f"{', '.join(source.class_names[:4])} ... Evaluate on data of the same classes."
        )
    if model.config.classes != len(source.class_names):
        raise DataError(f"the model has {model.config.classes} classes, the data {len(source.class_names)}.")
    with working("evaluating ..."):
        found = measure_accuracy(model, part or source, group=group, batch=batch, workers=workers, limit=limit)
    if as_json:
        typer.echo(json.dumps({"run": run, "data": data, "split": said, **found}, indent=2))
        return
    console = Console(highlight=False)
    console.print(f"accuracy {found['accuracy']:.2%} of {found['images']:,.0f} images ({said})", markup=False)
    if "top5" in found:
        console.print(f"among the first five {found['top5']:.2%}", markup=False)
    console.print(f"loss {found['loss']:.4f}", markup=False)
    if found["left_out"]:
        console.print(f"{found['left_out']:,.0f} images could not be decoded", markup=False)
