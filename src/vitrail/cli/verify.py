"""`vitrail verify`: how well a model tells people apart whom it was not trained on."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from vitrail.cli.data import Pipe, Where
from vitrail.cli.describe import Json
from vitrail.cli.measuring import (
    Batch,
    Device,
    Fresh,
    Limit,
    Out,
    Precision,
    Quiet,
    Split,
    Workers,
    measuring,
)
from vitrail.cli.render import harmless

if TYPE_CHECKING:
    from vitrail.evaluation.verification import HardPair, Number, Verification

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or any checkpoint, with a classifier or not.")]
Gallery = Annotated[int, typer.Option(help="First images of each person to find the others by.")]
Far = Annotated[float, typer.Option(help="Share of pairs of different people that may be accepted.")]
Everyone = Annotated[bool, typer.Option("--everyone", help="Measure people too whom the model was trained on.")]
Flip = Annotated[bool, typer.Option(help="Average with the mirrored image's embedding.")]


def verify(
    run: Run,
    data: Where,
    split: Split = None,
    gallery: Gallery = 1,
    far: Far = 0.01,
    flip: Flip = True,
    everyone: Everyone = False,
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
    """Measure whether two images are told to be of one person: all pairs of people, a folder each.

    People whose names are among the model's classes were trained on and are left out; `--everyone` measures them too.
    With `--out`, verification.json and roc.csv are written.
    """
    from vitrail.checkpoint.load import load
    from vitrail.data.open import choose_split, open_data
    from vitrail.evaluation.results import write_document
    from vitrail.evaluation.verification import curve_table, document, measure_verification
    from vitrail.files import write_bytes

    splits = open_data(data, allow_pipe=allow_pipe)
    chosen = choose_split(splits, data, split)
    with measuring(
        device, batch=batch, workers=workers, limit=limit, precision=precision, fresh=fresh, quiet=quiet
    ) as work:
        model = load(run, device=work.how.group.device)
        work.tell(f"comparing by {harmless(run)}")
        found = measure_verification(
            model, splits[chosen], work.how, gallery=gallery, far=far, flip=flip, everyone=everyone
        )
        if not work.how.group.is_main:
            return
    made = document(found, run, data, {"split": chosen, "flip": flip})
    if out is not None:
        folder = Path(out).expanduser()
        write_document(folder / "verification.json", made)
        write_bytes(folder / "roc.csv", curve_table(found.curve).encode())
    if as_json:
        typer.echo(json.dumps(made, indent=2))
        return
    _show(found, hardest=not quiet)


def _show(found: "Verification", *, hardest: bool) -> None:
    console = Console(soft_wrap=True, highlight=False)

    def say(text: str) -> None:
        console.print(harmless(text), markup=False)

    left_out = f"; {found.trained_on} others were trained on and are left out" if found.trained_on else ""
    say(f"{found.people:,} people, {found.images:,} images{left_out}")
    if found.skipped:
        say(f"{found.skipped:,} images could not be decoded")
    say(f"{found.curve.genuine:,} pairs of one person, {found.curve.impostors:,} of two")
    say(f"equal error rate {_said(found.eer)}")
    for each in found.at:
        where = "" if each.threshold is None else f", at a cosine of {each.threshold:.3f}"
        say(f"accepted at {each.far:.2%} false accepts {_said(each.tar)}{where}")
    say(f"area under the curve {_said(found.auc)}")
    say(f"nearest other image is of the same person {_said(found.rank1)}")
    if found.gallery_rank1 is not None:
        images = "the first image" if found.gallery == 1 else f"the first {found.gallery} images"
        say(f"found by {images} of each person {_said(found.gallery_rank1)}")
    if hardest:
        _show_pairs(console, "different people, most alike", found.alike)
        _show_pairs(console, "one person, least alike", found.unlike)


def _show_pairs(console: Console, title: str, pairs: "tuple[HardPair, ...]") -> None:
    console.print(f"{title}:", markup=False)
    for pair in pairs:
        console.print(harmless(f"  {pair.score:.3f}  {pair.first}  {pair.second}"), markup=False)


def _said(number: "Number") -> str:
    if number.interval is None:
        return f"{number.value:.2%}"
    low, high = number.interval
    return f"{number.value:.2%} (95 %: {low:.2%} to {high:.2%})"
