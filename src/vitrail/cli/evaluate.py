"""`vitrail evaluate`: how good a model is on images with labels, where it errs, and whether another is better."""

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from vitrail.cli.data import Pipe, Where
from vitrail.cli.describe import Json
from vitrail.cli.evaluation import show_evaluation
from vitrail.cli.measuring import (
    Batch,
    Device,
    Fresh,
    Limit,
    Out,
    Precision,
    Quiet,
    Size,
    Split,
    Work,
    Workers,
    measuring,
)
from vitrail.cli.render import harmless, said_command
from vitrail.config.check import whole
from vitrail.errors import ConfigError, DataError

if TYPE_CHECKING:
    from vitrail.data.source import Source
    from vitrail.evaluation.labels import Given
    from vitrail.evaluation.report import Subject
    from vitrail.models import Model

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or any checkpoint with a classifier.")]
Against = Annotated[str | None, typer.Option(metavar="RUN", help="Another model, to compare with on the same images.")]
Labels = Annotated[
    str | None, typer.Option(metavar="JSON", help="Labels of each image instead of the data's, such as ReaL's.")
]
Mapped = Annotated[
    str | None,
    typer.Option("--mapping", metavar="JSON", help="The model's classes for each of the data's, such as ObjectNet's."),
]
Page = Annotated[
    str | None,
    typer.Option("--report", metavar="FOLDER", help="Write a page there too: the worst mistakes, and where it looked."),
]
Worst = Annotated[int, typer.Option(help="Wrong answers to name, the surest first.")]


SHOWN = 8  # images of a page where no answer is wrong
BESIDE = ("evaluation.json", "predictions.csv")  # files of the page's folder


class Opened(NamedTuple):
    """A model, and what its answers are measured by."""

    run: str
    model: "Model"
    labeled: bool  # whether the data's classes are the model's
    given: "Given | None"


def evaluate(
    run: Run,
    data: Where,
    split: Split = None,
    against: Against = None,
    labels: Labels = None,
    mapping: Mapped = None,
    worst: Worst = 10,
    image_size: Size = None,
    out: Out = None,
    page: Page = None,
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
    """Measure accuracy and say where a model errs; every image counts once.

    Of data without a test or val split, a run is measured on the images that it kept back; `--split` takes them all.
    With `--out`, evaluation.json and predictions.csv are written; with `--report`, the page of `vitrail inspect` too,
    of the wrong answers that it is surest of. What was computed is kept, and used again.
    """
    whole("worst", worst, least=0)
    if labels is not None and mapping is not None:
        raise ConfigError("labels are given twice: --labels and --mapping. Give one.")
    from vitrail.data.open import open_data
    from vitrail.evaluation.report import predictions, report, results
    from vitrail.evaluation.results import document_of, write_document
    from vitrail.files import write_bytes
    from vitrail.inspection.report import check_folder, title_of

    if page is not None:
        check_folder(Path(page).expanduser(), title_of(run), BESIDE)
    runs = [run] if against is None else [run, against]
    splits = open_data(data, allow_pipe=allow_pipe)
    source, said, doubts = choose_images(splits, runs, data, split, mapped=mapping is not None)
    with measuring(
        device, batch=batch, workers=workers, limit=limit, precision=precision, fresh=fresh, quiet=quiet
    ) as work:
        for doubt in doubts:
            work.say(doubt)
        opened = [_open(each, source, labels, mapping, image_size, work) for each in runs]
        first, *others = [_ask(each, source, work) for each in opened]  # after all are known to fit
        if not work.how.group.is_main:
            return
    found = report(first, worst=worst, other=others[0] if others else None)
    setting = {"split": said, "precision": precision, "labels": labels, "mapping": mapping, "image_size": image_size}
    rows = results(found, run=run, data=data, setting={name: value for name, value in setting.items() if value})
    time = {"seconds": round(first.found.seconds, 2), "reused": first.found.reused}
    document = document_of("evaluate", rows, run=run, data=data, split=said, **found, time=time)
    if page is not None:
        texts = ((json.dumps(document, indent=2) + "\n").encode(), predictions(first))
        files: dict[str, bytes] = dict(zip(BESIDE, texts, strict=True))
        write_page(Path(page).expanduser(), opened[0], source, document, files, quiet=quiet)
    if out is not None and (page is None or Path(out).expanduser() != Path(page).expanduser()):
        folder = Path(out).expanduser()
        write_document(folder / "evaluation.json", document)
        write_bytes(folder / "predictions.csv", predictions(first))
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        show_evaluation(document, out)
        if page is not None:
            typer.echo(f"page: {harmless(str(Path(page) / 'report.html'))}")


def write_page(
    folder: Path,
    opened: Opened,
    source: "Source",
    document: Mapping[str, Any],
    files: Mapping[str, bytes],
    *,
    quiet: bool,
) -> None:
    """Write the page of the worst mistakes, with where the model looked; of some images where there are none."""
    from vitrail.evaluation.tables import tables_of
    from vitrail.inspection.report import MOST_IMAGES, title_of, write_report
    from vitrail.inspection.study import look_at
    from vitrail.inspection.views import spread
    from vitrail.runtime.reporter import reporting

    worst = document["worst"]["images"][:MOST_IMAGES]
    wrong = [row["sample"] for row in worst]
    with reporting(quiet=quiet) as report:
        chosen = wrong or spread(len(source), SHOWN).tolist()
        subject, places = look_at(title_of(opened.run), opened.model, source, chosen, wrong, bias=False, report=report)
        if worst and subject.views is not None and len(places) == len(worst):  # by whatever labels it was measured
            labels = [row["class"] for row in worst]
            subject = subject._replace(views=subject.views._replace(labels=labels, verdicts=[False] * len(worst)))
        tables = tables_of(document)
        write_report(
            folder, subject, mistakes=places, tables=tables, beside=files, command=said_command(), report=report
        )


def choose_images(
    splits: "Mapping[str, Source]", runs: Sequence[str], data: str, split: str | None, *, mapped: bool = False
) -> "tuple[Source, str, list[str]]":
    """Choose the images to measure runs on, say which they are, and what makes their numbers doubtful."""
    from vitrail.data.open import choose_split
    from vitrail.data.source import Subset
    from vitrail.train.parts import kept_back, was_trained_on, without_held_out

    chosen = choose_split(splits, data, split)
    folders = [Path(run).expanduser() for run in runs]
    source = splits[chosen] if mapped else without_held_out(folders[0], splits[chosen])
    gone = len(splits[chosen].class_names) - len(source.class_names)
    more = f", without the {gone} classes that it kept out of training" if gone else ""
    cuts = [kept_back(folder, source) for folder in folders]
    if split is None and chosen in ("all", "train") and any(cuts):
        kept = [cut[1].indices for cut in cuts if cut is not None]
        numbers = functools.reduce(np.intersect1d, kept)
        if not len(numbers):
            raise DataError("the two runs kept back other images each: there is none that neither was trained on.")
        more = f"those of {chosen} that the {'run' if len(kept) == 1 else 'two runs'} kept back{more}"
        unsure = [run for run, folder, cut in zip(runs, folders, cuts, strict=True) if cut is None]
        doubts = [f"{run} may have been trained on these images, which it did not keep back" for run in unsure]
        return Subset(source, numbers), more, doubts
    trained = [run for run, folder in zip(runs, folders, strict=True) if was_trained_on(folder, source)]
    doubts = [f"{run} may have been trained on these images" for run in trained if chosen in ("all", "train")]
    return source, chosen + more, doubts


def _open(
    run: str, source: "Source", labels: str | None, mapping: str | None, image_size: int | None, work: Work
) -> Opened:
    """Open a model and the labels to measure it by; refuse what does not fit before anything is computed."""
    from vitrail.checkpoint.load import load
    from vitrail.evaluation.answers import check_classifier
    from vitrail.evaluation.labels import Classes, read_labels, read_mapping

    model = load(run, image_size=image_size, device=work.how.group.device)
    check_classifier(model)
    count, names = model.config.classes or 0, model.card.class_names
    fits = count == len(source.class_names) and names in (None, source.class_names)
    if labels is not None:
        return Opened(run, model, fits, read_labels(labels, source, Classes(count, names)))
    if mapping is not None:
        return Opened(run, model, fits, read_mapping(mapping, source, Classes(count, names)))
    if names is not None and source.class_names != names:
        raise DataError(
            f"the model's classes are not the data's: {', '.join(names[:4])} ... against "
            f"{', '.join(source.class_names[:4])} ... Evaluate on data of the same classes, or say with --mapping "
            "which of the model's classes each of the data's is."
        )
    if not fits:
        raise DataError(
            f"the model has {count} classes, the data {len(source.class_names)}. Evaluate on data of the same classes, "
            "or say with --mapping which of the model's classes each of the data's is."
        )
    if not (source.labels >= 0).any():
        raise DataError("none of the images has a label. Give --labels, or data with a folder for each class.")
    return Opened(run, model, fits, None)


def _ask(opened: Opened, source: "Source", work: Work) -> "Subject":
    from vitrail.evaluation.answers import answers
    from vitrail.evaluation.report import Subject

    work.tell(f"evaluating {harmless(opened.run)}")
    names = opened.model.card.class_names or (source.class_names if opened.labeled else None)
    return Subject(
        title=opened.run,
        found=answers(opened.model, source, work.how, labeled=opened.labeled),
        source=source,
        class_names=names,
        labeled=opened.labeled,
        given=opened.given,
    )
