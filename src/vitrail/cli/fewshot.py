"""`vitrail fewshot`: what the features of a model are worth with few images of every class (Section 4.1)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from vitrail.cli.asking import read_numbers
from vitrail.cli.data import Pipe, Where
from vitrail.cli.describe import Json
from vitrail.cli.measuring import Batch, Device, Fresh, Limit, Out, Precision, Quiet, Size, Workers, measuring
from vitrail.cli.render import plain_table

if TYPE_CHECKING:
    from vitrail.evaluation.features import Cell, Table
    from vitrail.evaluation.shots import Settings

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or any checkpoint.")]
ShotsOf = Annotated[str, typer.Option("--shots", help="Images of every class, and `all`.")]
Seeds = Annotated[str, typer.Option(help="Each draws other images.")]
Strength = Annotated[float, typer.Option("--l2", help="Of least squares; the authors' by default.")]
Probes = Annotated[str, typer.Option(help="Which classifiers of the features.")]
Neighbors = Annotated[int, typer.Option(help="That vote.")]
Layer = Annotated[
    int | None, typer.Option(help="Read features after so many blocks, not after all.", show_default="the last")
]
Authors = Annotated[
    bool, typer.Option("--as-authors", help="Squash to 8/7 of the size, not antialiased, take the middle.")
]
NAMES = {"ridge": "least squares", "knn": "neighbours", "logistic": "logistic"}
AUTHORS_SHARE = 224 / 256


def fewshot(
    run: Run,
    data: Where,
    shots: ShotsOf = "1,5,10,25",
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
    """Learn linear classifiers of frozen features from few images of every class, and test them.

    Features are kept, so another look at the same images takes seconds. Data without a test split is split by content.
    """
    from vitrail.checkpoint.load import load
    from vitrail.data.open import open_data
    from vitrail.evaluation.features import choose_sets, few_shot_table, results_of
    from vitrail.evaluation.results import document_of, write_document
    from vitrail.evaluation.shots import Settings
    from vitrail.models.build import first_blocks

    settings = Settings(
        shots=tuple(None if word == "all" else read_numbers("shots", word, int)[0] for word in _words(shots)),
        seeds=read_numbers("seeds", seeds, int),
        l2=l2,
        probes=_words(probes),
        neighbors=neighbors,
    )
    sets, said = choose_sets(open_data(data, allow_pipe=allow_pipe), run)
    with measuring(
        device, batch=batch, workers=workers, limit=limit, precision=precision, fresh=fresh, quiet=quiet
    ) as work:
        model = load(run, image_size=image_size, device=work.how.group.device)
        if layer is not None:
            model = first_blocks(model, layer)
        if as_authors:
            views = {"resize": "squash", "crop_share": AUTHORS_SHARE, "interpolation": "bilinear", "antialias": False}
            model.card = replace(model.card, preprocessing=replace(model.card.preprocessing, **views))
        table = few_shot_table(model, sets, work.how, settings, work.tell)
        if not work.how.group.is_main:
            return
    results = results_of(table, run, data, settings)
    document = document_of(
        "fewshot", results, split=said, layer=layer, left_out=table.left_out, short_classes=table.short
    )
    if out is not None:
        write_document(Path(out).expanduser() / "fewshot.json", document)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        show(table, settings, said)


def show(table: "Table", settings: "Settings", said: str) -> None:
    """Print accuracies by shots and probe, and how they depend on l2."""
    from vitrail.evaluation.results import over_seeds

    console = Console(highlight=False)
    plural = "s" if len(settings.seeds) > 1 else ""
    title = f"accuracy on {table.test_images:,} images of {table.classes} classes, {len(settings.seeds)} draw{plural}"
    names = [NAMES[probe] for probe in settings.probes]
    shown = plain_table("shots", *names, title=title, numbers=len(names))
    for cell in table.cells:
        shown.add_row(_shots(cell), *(_said(cell.accuracy[probe]) for probe in settings.probes))
    console.print(shown)
    if "ridge" in settings.probes:
        strengths = [l2 for l2 in table.cells[0].sweep if l2 in (1, 16, 256, 4096, 65536) or l2 == settings.l2]
        sweep = plain_table(
            "shots", *(f"l2 {l2:g}" for l2 in strengths), title="least squares by l2", numbers=len(strengths)
        )
        for cell in table.cells:
            sweep.add_row(_shots(cell), *(f"{over_seeds(cell.sweep[l2])[0]:.1%}" for l2 in strengths))
        console.print(sweep)
    console.print(
        f"{said}; features of {table.computed:,} images computed, {table.reused:,} kept from before", markup=False
    )
    if table.short:
        console.print(
            f"{table.short:,} classes have fewer images than the most shots: all they have are taken", markup=False
        )
    if table.left_out:
        console.print(f"{table.left_out:,} images could not be decoded", markup=False)


def _shots(cell: "Cell") -> str:
    return "all" if cell.shots is None else str(cell.shots)


def _said(values: list[float]) -> str:
    from vitrail.evaluation.results import over_seeds

    mean, spread = over_seeds(values)
    return f"{mean:.1%}" if spread is None else f"{mean:.1%} ± {100 * spread:.1f}"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
