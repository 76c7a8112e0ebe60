"""`vitrail data`: what is wrong with a data set, and data sets as arrays."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitrail.cli.describe import Json
from vitrail.cli.render import harmless, plain_table
from vitrail.cli.sizes import read_size
from vitrail.errors import DataError

if TYPE_CHECKING:
    from vitrail.data.check import DataReport
    from vitrail.data.source import Source

Where = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE", help="A folder of classes, .csv, .jsonl, .parquet, .tar, packed, sample, synthetic."
    ),
]
Out = Annotated[str, typer.Argument(metavar="OUT", help="The folder to write.")]
Sheet = Annotated[
    str | None, typer.Option(metavar="PNG", help="Where to write a contact sheet of a few of each class.")
]
Split = Annotated[
    str | None, typer.Option(help="Which split; all of them, each in a folder of its own, when left out.")
]
ImageSize = Annotated[str, typer.Option(metavar="SIDE|HxW", help="Pixels of the packed images.")]
Channels = Annotated[int, typer.Option(help="3, or 1 for grey.")]
Limit = Annotated[float, typer.Option(metavar="SHARE", help="Share of images that may be left out, from 0 to 1.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace OUT where it is a packed folder.")]
Unlabeled = Annotated[bool, typer.Option("--unlabeled", help="Take images without a label too.")]
Pipe = Annotated[bool, typer.Option("--allow-pipe", help="Run the command of a pipe: source.")]


def check(
    source: Where, sheet: Sheet = None, unlabeled: Unlabeled = False, allow_pipe: Pipe = False, as_json: Json = False
) -> None:
    """Find what cannot be decoded, duplicates, leaks between splits, misnamed files, odd sizes and imbalance.

    The exit status is 1 where something would spoil a run: damage, a leak, or one image with two labels.
    """
    from vitrail.data.check import check_data
    from vitrail.data.open import open_data

    splits = open_data(source, allow_pipe=allow_pipe, unlabeled=unlabeled)
    with _progress("checking") as told:
        report = check_data(splits, progress=told)
    if sheet is not None:
        _write_sheet(Path(sheet), splits)
    if as_json:
        typer.echo(json.dumps(_document(report), indent=2))
    else:
        _show(report, sheet)
    if not report.is_clean:
        raise typer.Exit(1)


def pack(
    source: Where,
    out: Out,
    image_size: ImageSize = "64",
    split: Split = None,
    channels: Channels = 3,
    limit: Limit = 0.01,
    overwrite: Overwrite = False,
    unlabeled: Unlabeled = False,
    allow_pipe: Pipe = False,
    as_json: Json = False,
) -> None:
    """Turn any source into arrays of one size that are mapped, not read: the fastest way to train on small images."""
    from vitrail.data.open import open_data
    from vitrail.data.sources.packed import pack as run

    size = read_size(image_size)
    splits = open_data(source, allow_pipe=allow_pipe, unlabeled=unlabeled)
    if split is not None:
        if split not in splits:
            raise DataError(f"{source}: there is no split {split!r}. There are: {', '.join(splits)}.")
        splits = {split: splits[split]}
    alone = len(splits) == 1
    documents = []
    for name, part in splits.items():
        target = Path(out).expanduser() if alone else Path(out).expanduser() / name
        with _progress(f"packing {name}") as told:
            report = run(part, target, size, overwrite=overwrite, channels=channels, limit=limit, progress=told)
        skipped = [{"name": name, "reason": reason} for name, reason in report.skipped]
        documents.append({"split": name, "path": str(target), "images": report.count, "skipped": skipped})
    if as_json:
        typer.echo(json.dumps(documents, indent=2))
        return
    console = Console(soft_wrap=True, highlight=False)
    for document in documents:
        console.print(
            f"{document['path']}: {document['images']:,} images, {len(document['skipped'])} left out", markup=False
        )
        for skip in document["skipped"][:10]:
            console.print(f"  {harmless(skip['name'])}: {skip['reason']}", markup=False)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how far it is, on standard error."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _write_sheet(path: Path, splits: "Mapping[str, Source]") -> None:
    import numpy as np

    from vitrail.data.check import ROWS, contact_sheet
    from vitrail.data.decode import encode
    from vitrail.files import write_bytes

    source = next(iter(splits.values()))
    labels = np.asarray(source.labels)
    chosen = [index for label in np.unique(labels)[:ROWS] for index in np.flatnonzero(labels == label)[:ROWS]]
    write_bytes(path.expanduser(), encode(contact_sheet(source, np.array(chosen, dtype=np.int64))))


def _document(report: "DataReport") -> dict[str, Any]:
    def findings(found: Any) -> dict[str, Any]:  # noqa: ANN401
        return {"count": found.count, "examples": found.examples}

    return {
        "clean": report.is_clean,
        "splits": {
            name: {
                "images": split.samples,
                "classes": split.class_counts,
                "imbalance": split.imbalance if split.imbalance != float("inf") else None,
                "formats": dict(split.formats),
                "traits": dict(split.traits),
                "problems": {kind: findings(found) for kind, found in split.problems.items()},
            }
            for name, split in report.splits.items()
        },
        "duplicates": {name: findings(found) for name, found in report.duplicates.items()},
        "leaks": {" and ".join(pair): findings(found) for pair, found in report.leaks.items()},
        "conflicts": findings(report.conflicts),
    }


def _show(report: "DataReport", sheet: str | None) -> None:
    console = Console(soft_wrap=True, highlight=False)
    table = plain_table("split", "images", "classes", "largest/smallest", "formats", "traits", title="", numbers=0)
    for name, split in report.splits.items():
        formats, traits = (
            ", ".join(f"{kind} {count:,}" for kind, count in counted.items())
            for counted in (split.formats, split.traits)
        )
        ratio = "a class is empty" if split.imbalance == float("inf") else f"{split.imbalance:.1f}"
        table.add_row(name, f"{split.samples:,}", str(len(split.class_counts)), ratio, formats, traits)
    Console().print(table)
    lines: list[tuple[str, Any]] = [
        (f"{name}: {kind}", found) for name, split in report.splits.items() for kind, found in split.problems.items()
    ]
    lines += [(f"{name}: copies", found) for name, found in report.duplicates.items()]
    lines += [(f"in both {' and '.join(pair)}", found) for pair, found in report.leaks.items()]
    if report.conflicts.count:
        lines.append(("one image, two labels", report.conflicts))
    for label, found in lines:
        console.print(f"{label}: {found.count:,}", markup=False, style="bold")
        for example in found.examples[:5]:
            console.print(f"  {harmless(example)}", markup=False)
    if sheet is not None:
        console.print(f"contact sheet: {sheet}", markup=False)
    console.print("clean" if report.is_clean else "not clean: see above", markup=False)
