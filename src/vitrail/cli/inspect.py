"""`vitrail inspect`: every picture of the paper, of any checkpoint, in a folder and on one page."""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from vitrail.cli.data import Pipe
from vitrail.cli.describe import Json
from vitrail.cli.measuring import Device, Quiet, Size, Split, choose_split, showing_progress
from vitrail.cli.render import harmless
from vitrail.config.check import whole
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.data.source import Source
    from vitrail.inspection.drawing import Seen
    from vitrail.inspection.report import Report
    from vitrail.inspection.study import Tell
    from vitrail.models import Model

Checkpoint = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A run folder, or any checkpoint.")]
Images = Annotated[
    str | None,
    typer.Argument(metavar="IMAGES", help="An image, a folder of images, or any data; without, what the weights show."),
]
Against = Annotated[str | None, typer.Option(metavar="CHECKPOINT", help="Another model, beside it.")]
Out = Annotated[str | None, typer.Option(metavar="FOLDER", help="Where to write.", show_default="runs/inspect-NAME")]
Count = Annotated[int, typer.Option("--images", help="Images to look at, spread over all.")]
Search = Annotated[int, typer.Option(help="Images with labels among which the surest mistakes are sought; 0: none.")]
Bias = Annotated[bool, typer.Option("--bias/--no-bias", help="Move the images, drop and exchange their patches.")]


MOST = 256  # images of a page


def inspect(
    checkpoint: Checkpoint,
    images: Images = None,
    against: Against = None,
    out: Out = None,
    split: Split = None,
    image_size: Size = None,
    count: Count = 16,
    search: Search = 64,
    bias: Bias = True,
    device: Device = None,
    allow_pipe: Pipe = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Look inside a model: filters, positions, attention, mistakes, layers; as figures, numbers and one page.

    The page opens offline: click a patch, choose layer and head. Without images it shows what the weights show.
    """
    from vitrail.checkpoint.load import load
    from vitrail.data.open import open_images
    from vitrail.inspection.predictions import open_objective, predict
    from vitrail.inspection.report import check_folder, write_report
    from vitrail.models import find_device

    whole("images", count, most=MOST)
    whole("search", search, least=0)
    source = None
    if images is None and split is not None:
        raise ConfigError(f"--split {split} is of images, and there are none. Name them after the checkpoint.")
    titles = [name_of(checkpoint)] if against is None else titles_of(checkpoint, against)
    folder = Path(out or f"runs/inspect-{slug_of(checkpoint)}").expanduser()
    check_folder(folder, titles[0])
    if images is not None:
        splits = open_images(images, allow_pipe=allow_pipe)
        source = splits[choose_split(splits, images, split)]
    place = find_device(device)
    with showing_progress(quiet=quiet) as (tell, _, say):
        if images is not None and (loose := beside_folders(images)):
            say(f"{loose:,} images that lie beside the folders of classes are not looked at")
        tell(f"loading {harmless(checkpoint)}")
        model = load(checkpoint, image_size=image_size, device=place)
        other = None if against is None else load(against, image_size=image_size, device=place)
        chosen, mistakes = choose(model, source, count, search, tell) if source is not None else ([], [])
        subject, wrong = look_at(titles[0], model, source, chosen, mistakes, say, tell, bias=bias)
        if subject.views is not None and (objective := open_objective(checkpoint, model)) is not None:
            tell("predicting what is hidden")
            subject = subject._replace(predictions=predict(objective, subject.views.images))
        beside, between = None, None
        if against is not None and other is not None:
            shifts = None if subject.found is None else subject.found.shifts
            beside, _ = look_at(titles[1], other, source, chosen, (), say, tell, bias=bias, maps=False, shifts=shifts)
            between = compare(subject, beside)
        made = write_report(
            folder, subject, other=beside, between=between, mistakes=wrong, command=said_command(), tell=tell
        )
    show(made, subject, as_json=as_json)


def choose(model: "Model", source: "Source", count: int, search: int, tell: "Tell") -> tuple[list[int], list[int]]:
    """Choose images spread over the source; of those with labels, up to half are mistakes that the model is sure of."""
    from vitrail.inspection.mistakes import surest_mistakes
    from vitrail.inspection.views import spread

    wrong: list[int] = []
    if search and fits(model, source) and (source.labels >= 0).any():
        tell("seeking mistakes")
        wrong = surest_mistakes(model, source, spread(len(source), search).tolist())[: max(count // 2, 1)]
    others = [number for number in spread(len(source), count).tolist() if number not in wrong]
    return [*wrong, *others][:count], wrong


def fits(model: "Model", source: "Source") -> bool:
    """Tell whether the data's classes are the model's, by their names or, where it has none, by their number."""
    names = model.card.class_names
    return model.config.classes == len(source.class_names) and names in (None, tuple(source.class_names))


def look_at(
    title: str,
    model: "Model",
    source: "Source | None",
    chosen: Sequence[int],
    mistakes: Sequence[int],
    say: "Tell",
    tell: "Tell",
    *,
    bias: bool,
    maps: bool = True,
    shifts: Sequence[int] | None = None,
) -> "tuple[Seen, list[int]]":
    """Study a model, with images where there are any; give the places of its mistakes among them too."""
    from vitrail.inspection.drawing import Seen
    from vitrail.inspection.study import study
    from vitrail.inspection.views import views_of

    if source is None:
        return Seen(title, model, None, None), []
    if model.config.channels not in (1, 3):
        raise ConfigError(f"images have 1 or 3 channels, and the model reads {model.config.channels}. Give no images.")
    views, kept, bad = views_of(model, source, chosen)
    for line in bad:
        say(f"left out {line}")
    found = study(model, views, maps=maps, bias=bias, tell=tell, shifts=shifts)
    names = source.class_names if fits(model, source) else None
    wrong = [place for place, number in enumerate(kept) if number in mistakes]
    return Seen(title, model, views, found, names), wrong


def compare(subject: "Seen", other: "Seen") -> "Tensor | None":
    """Compare the layers of two models that were shown the same images, each as it reads them."""
    from vitrail.inspection.layers import compare_layers

    if subject.found is None or other.found is None or subject.found.layers is None:
        return None
    return compare_layers(subject.found.grams, other.found.grams)


def said_command() -> str:
    """Give the command as it was typed, for the page; nothing where the program is another."""
    return shlex.join(["vitrail", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("vitrail", "__main__") else ""


def name_of(checkpoint: str) -> str:
    """Give a short name to show."""
    return Path(checkpoint.rstrip("/")).stem.replace(":", "-") or "model"


def titles_of(checkpoint: str, against: str) -> list[str]:
    """Name two checkpoints shortly, unless that is one name."""
    short = [name_of(checkpoint), name_of(against)]
    return short if short[0] != short[1] else [checkpoint, against]


def slug_of(checkpoint: str) -> str:
    """Give a name for a folder, which holds the folder of a path too."""
    parts = Path(checkpoint.rstrip("/")).with_suffix("").parts[-2:]
    return re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(parts)).strip("-") or "model"


def beside_folders(images: str) -> int:
    """Count the images of a folder that lie beside its folders of classes."""
    from vitrail.data.sources.files import loose_images

    path = Path(images).expanduser()
    if not path.is_dir() or not any(entry.is_dir() for entry in path.iterdir()):
        return 0
    return len(loose_images(path))


def show(made: "Report", subject: "Seen", *, as_json: bool) -> None:
    """Say what was written and where."""
    document: Mapping[str, Any] = {
        "page": str(made.page),
        "figures": [str(path) for path in made.figures],
        "images": 0 if subject.views is None else len(subject.views.images),
        "bytes": made.bytes,
    }
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{len(made.figures)} figures in {harmless(str(made.page.parent / 'figures'))}", markup=False)
    console.print(f"page: {harmless(str(made.page))} ({made.bytes / 1e6:.1f} MB; opens offline)", markup=False)
    if subject.views is None:
        console.print("Give images to see what it does with them: vitrail inspect CHECKPOINT IMAGES", markup=False)
