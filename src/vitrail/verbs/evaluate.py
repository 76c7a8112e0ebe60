"""`vitrail.evaluate`: how good a model is on labeled images, where it errs, and whether another one is better."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from vitrail.checkpoint.load import of_run
from vitrail.config import read_preprocessing
from vitrail.config.check import whole
from vitrail.config.given import check_corruptions, check_passes
from vitrail.config.preprocessing import MEASURE
from vitrail.data.corruptions import SEVERITIES
from vitrail.data.near import LARGEST
from vitrail.data.open import choose_split, open_data
from vitrail.data.source import Source, Subset
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.answers import Classes, Given, answers, check_classifier, read_labels, read_mapping
from vitrail.evaluation.copies import can_compare, have_copies, training_images
from vitrail.evaluation.corrupted import measure_side_by_side
from vitrail.evaluation.page import measured_of
from vitrail.evaluation.preparing import PreprocessingChoice, choose_preprocessing
from vitrail.evaluation.report import Subject, predictions, report as report_of, results
from vitrail.evaluation.results import document_of, text_of, write_document
from vitrail.files import home_path, write_bytes
from vitrail.inspection.report import MOST_IMAGES, check_folder, title_of, write_report
from vitrail.inspection.study import draw_images, drawn_count, look_at
from vitrail.inspection.views import spread
from vitrail.models import Model
from vitrail.runtime.engines import EngineModel
from vitrail.runtime.inference import InferenceOptions, choose_model, computed_in
from vitrail.runtime.reporter import Reporter, harmless
from vitrail.train.task import kept_back, was_trained_on, without_held_out
from vitrail.verbs.dense import WINDOWS, evaluate_dense, refuse_for_dense, task_of
from vitrail.verbs.opening import (
    AnyModel,
    Measuring,
    Passing,
    change_passes,
    data_name,
    hints_of,
    measuring,
    model_name,
    open_model,
    run_of,
    said_passes,
)
from vitrail.verbs.tasks import card_of, refuse_other

SHOWN = 8  # images of a page where no answer is wrong
HEADLINE = (
    "accuracy",
    "interval",
    "images",
    "top5",
    "loss",
    "balanced_accuracy",
    "macro_f1",
    "classes",
)  # of a report, in an evaluation
FILES: tuple[str, str] = ("evaluation.json", "predictions.csv")
CHANGED = "Evaluate on data of the same classes, or give a mapping: which of the model's classes each of the data's is."


@dataclass(frozen=True, kw_only=True, repr=False)
class Evaluation:
    """How good a model is: its numbers, and all of what `vitrail evaluate` prints."""

    accuracy: float
    interval: tuple[float, float]  # of 95 %
    images: int  # that count
    top5: float | None  # None where there are five classes or fewer
    loss: float | None
    balanced_accuracy: float | None  # the mean over classes; None where the classes are not the data's
    macro_f1: float | None
    classes: Sequence[Mapping[str, Any]]  # by class: name, images, accuracy, precision, ...
    confusion: Sequence[Sequence[int]] | None  # by true class and answer; None where the classes are not the data's
    worst: Sequence[Mapping[str, Any]]  # the most confident wrong answers
    predictions: bytes  # a line of CSV for each image
    found: Mapping[str, Any] = field(repr=False)

    def document(self) -> Mapping[str, Any]:
        """Give what `vitrail evaluate --json` prints."""
        return self.found

    def __repr__(self) -> str:
        return text_of(self.found)


class _Opened(NamedTuple):
    """A model, and what its answers are measured by."""

    name: str
    model: Model
    labeled: bool  # whether the data's classes are the model's
    given: Given | None


def evaluate(
    model: AnyModel,
    data: object,
    *,
    split: str | None = None,
    against: AnyModel | None = None,
    labels: str | os.PathLike[str] | None = None,
    mapping: str | os.PathLike[str] | None = None,
    worst: int = 10,
    token_merging: float | None = None,
    keep_aspect_ratio: bool = False,
    corruptions: bool = False,
    severities: Sequence[int] = SEVERITIES,
    beside: Sequence[AnyModel] = (),
    windows: bool = False,
    image_size: int | tuple[int, int] | None = None,
    out: str | os.PathLike[str] | None = None,
    page: str | os.PathLike[str] | None = None,
    allow_pipe: bool = False,
    command: str = "",
    **options: Unpack[Measuring],
) -> Evaluation | Any:  # noqa: ANN401  # DenseEvaluation of a model that segments or detects
    """Measure a classifier on labeled images, each once: accuracy, calibration, classes, confusions, worst mistakes.

    `model` is a name, a file, a run folder or a model in memory, and so is `against`, which is compared with it on the
    same images. `data` is anything that `vitrail.data.open.open_data` opens. Without `split`, the test split is taken,
    else val; of a single split, the images that the run kept back from training. `labels` is a JSON file of labels by
    image (ReaL's), `mapping` one of the model's classes by class of the data (ObjectNet's). `worst` is how many wrong
    answers to name. Where the training images are known, the accuracy is also given without near-copies of them.
    `out` is a folder for evaluation.json and predictions.csv; `page` one for the page of `vitrail.inspect` about the
    mistakes, with both files. Outputs are cached on disk, unless `fresh`.
    `token_merging` lets the layers of `model` merge that share of its patches, and `keep_aspect_ratio` shows it every
    image whole and in its own shape, as in `vitrail.predict`; with `against=model` it is compared with itself, and what
    that costs or brings is measured in pairs.
    `corruptions` measures the 15 corruptions of ImageNet-C too, at these `severities` (1 to 5), and `beside` other
    models next to this one and to `against`, which errors are then divided by: error and calibration by corruption.
    Options: batch_size, workers, device, precision, engine, bad_image_limit, fresh, report; and how
    `model` reads images: preprocessing, mean, deviation, resize, crop_share, interpolation, value_range, as in
    `vitrail.load`; and what the files leave open: heads, grid, activation, epsilon.
    A model that segments or detects is measured on masks or boxes (docs/dense.md): `windows` looks at images larger
    than its size window by window, `out` and `page` have predictions.json as COCO's tools take it.
    `preprocessing="measure"` tries the usual ways on labeled images and takes the best; its accuracy is optimistic.
    """
    model, against, beside = of_run(model), of_run(against), [of_run(each) for each in beside]
    check_corruptions(corruptions=corruptions, severities=severities, beside=beside, passing=bool(keep_aspect_ratio))
    whole("worst", worst, least=0)
    if (task := task_of(model)) is not None:
        asked = {"against": against, "labels": labels, "mapping": mapping, "token_merging": token_merging}
        refuse_for_dense(task, {**asked, "keep_aspect_ratio": keep_aspect_ratio, "corruptions": corruptions})
        where = {"out": out, "page": page, "image_size": image_size, "split": split, "worst": worst}
        return evaluate_dense(
            model, data, task, **where, windows=windows, choose=choose_images, verb=evaluate, options=options
        )
    if windows:
        raise ConfigError(WINDOWS)
    passing = Passing(token_merging=token_merging, keep_aspect_ratio=keep_aspect_ratio)
    check_passes({**passing, "page": page, "preprocessing": options.get("preprocessing")})
    if labels is not None and mapping is not None:
        raise ConfigError("labels and mapping both say what is correct. Give one of them.")
    if (card := card_of(model)) is not None:
        from vitrail.verbs.evaluate_tasks import evaluate_task  # few models need it, and it needs this

        refuse_other(card, {"labels": labels, "mapping": mapping, "page": page, "corruptions": corruptions or None})
        asked = {"split": split, "against": against, "worst": worst, "out": out, "passing": passing}
        return evaluate_task(model, data, card, asked, image_size, options, allow_pipe=allow_pipe)
    name, said_data = model_name(model), data_name(data)
    out, page = (None if folder is None else home_path(folder) for folder in (out, page))
    if page is not None:
        check_folder(page, title_of(name), FILES)
    models = [model] if against is None else [model, against]
    splits = open_data(data, allow_pipe=allow_pipe)
    source, said, doubts = choose_images(splits, [*models, *beside], said_data, split, mapped=mapping is not None)
    said = "; ".join([said, *doubts])
    choice = None
    with measuring(evaluate, model, options) as how:
        for doubt in doubts:
            how.report.note(doubt)
        pairs = zip(models, [options, hints_of(options)], strict=False)  # what is said of images is of the first alone
        opened = [_open(each, source, labels, mapping, image_size, way, how) for each, way in pairs]
        if page is not None and isinstance(opened[0].model, EngineModel):
            raise ConfigError("page shows where the model looked; an exported file does not. Leave page out.")
        changed = change_passes(opened[0].model, passing, precision=how.precision, images=len(source))
        opened[0] = opened[0]._replace(model=changed)
        if is_measured(options):
            opened[0], choice = _choose(opened[0], source, options, how)
        opened += [_open(each, source, labels, mapping, image_size, {}, how) for each in beside]
        asked = [_ask(each, source, how) for each in opened]  # after all are known to fit
        first, other = asked[0], None if against is None else asked[1]
        modules = [each.model for each in opened]
        shaken = measure_side_by_side(asked, modules, severities, how, against=other) if corruptions else None
        train = training_images(splits, choose_split(splits, said_data, split), run_of(model))
        copies = None if train is None else _copies(source, train, how)
        writes = how.group.is_main
    found = report_of(first, worst=worst, other=other, copies=copies)
    if (temperature := opened[0].model.card.temperature) != 1:
        found["temperature"] = temperature
    computed = computed_in(opened[0].model, how)
    setting = {"split": said, "precision": computed["precision"], "labels": labels, "mapping": mapping}
    setting |= {"image_size": image_size, **passing}
    card = opened[0].model.card
    if choice is not None or read_preprocessing(unmeasured(options)):
        setting["preprocessing"] = f"{card.preprocessing.levels()}, {card.preprocessing.framing()}"
    setting = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in setting.items()}
    rows = results(found, run=name, data=said_data, setting={key: value for key, value in setting.items() if value})
    if shaken is not None:
        rows += shaken.results(data=said_data)
        found["corruptions"] = shaken.document()
    found |= said_passes(opened[0].model)
    time = {"seconds": round(first.found.seconds, 2), "reused": first.found.reused}
    document = document_of(
        "evaluate", rows, run=name, data=said_data, split=said, **found, time=time, computed=computed
    )
    if (assumption := card.assumption(opened[0].model.config.image_size)) is not None:
        document["assumed"] = assumption
    if choice is not None:
        document["chosen_by_labels"] = choice.document()
    lines = predictions(first)
    if writes and page is not None:
        files = {FILES[0]: (json.dumps(document, indent=2) + "\n").encode(), FILES[1]: lines}
        _write_page(page, opened[0], source, document, files, command, how.report)
    if writes and out is not None and out != page:
        write_document(out / FILES[0], document)
        write_bytes(out / FILES[1], lines)
    numbers: dict[str, Any] = {name: found.get(name) for name in HEADLINE}
    numbers |= {"confusion": found.get("confusion", {}).get("matrix"), "worst": found["worst"]["images"]}
    return Evaluation(**numbers, predictions=lines, found=document)


def choose_images(
    splits: Mapping[str, Source], models: Sequence[AnyModel], data: str, split: str | None, *, mapped: bool = False
) -> tuple[Source, str, list[str]]:
    """Choose the images to measure models on; say which they are, and what makes their numbers doubtful."""
    chosen = choose_split(splits, data, split)
    names, folders = [model_name(model) for model in models], [run_of(model) for model in models]
    source = splits[chosen] if mapped or folders[0] is None else without_held_out(folders[0], splits[chosen])
    gone = len(splits[chosen].class_names) - len(source.class_names)
    more = f", without the {gone} classes that it kept out of training" if gone else ""
    cuts = [None if folder is None else kept_back(folder, source) for folder in folders]
    if split is None and chosen in ("all", "train") and any(cuts):
        kept = [cut[1].indices for cut in cuts if cut is not None]
        numbers = reduce(np.intersect1d, kept)
        if not len(numbers):
            raise DataError("the two runs kept back other images each: there is none that neither was trained on.")
        more = f"those of {chosen} that the {'run' if len(kept) == 1 else 'two runs'} kept back{more}"
        unsure = [name for name, cut in zip(names, cuts, strict=True) if cut is None]
        doubts = [f"{name} may have been trained on these images, which it did not keep back" for name in unsure]
        return Subset(source, numbers), more, doubts
    pairs = zip(names, folders, strict=True)
    trained = [name for name, folder in pairs if folder is not None and was_trained_on(folder, source)]
    doubts = [f"{name} may have been trained on these images" for name in trained if chosen in ("all", "train")]
    return source, chosen + more, doubts


def _open(
    model: AnyModel,
    source: Source,
    labels: str | os.PathLike[str] | None,
    mapping: str | os.PathLike[str] | None,
    image_size: int | tuple[int, int] | None,
    prepared: Mapping[str, Any],
    options: InferenceOptions,
) -> _Opened:
    """Open a model and the labels to measure it by; refuse what does not fit before anything is computed."""
    if is_measured(prepared) and (labels is not None or mapping is not None):
        raise ConfigError("preprocessing=measure goes by the data's own labels. Leave labels and mapping out.")
    opened, name = open_model(model, image_size, options.group.device, unmeasured(prepared)), model_name(model)
    opened = choose_model(opened, len(source), options)
    count, names = check_classifier(opened), opened.card.class_names
    fits = count == len(source.class_names) and names in (None, source.class_names)
    if labels is not None:
        return _Opened(name, opened, fits, read_labels(os.fspath(labels), source, Classes(count, names)))
    if mapping is not None:
        return _Opened(name, opened, fits, read_mapping(os.fspath(mapping), source, Classes(count, names)))
    if names is not None and source.class_names != names:
        raise DataError(
            f"the model's classes are not the data's: {', '.join(names[:4])} ... against "
            f"{', '.join(source.class_names[:4])} ... {CHANGED}"
        )
    if not fits:
        raise DataError(f"the model has {count} classes, the data {len(source.class_names)}. {CHANGED}")
    if not (source.labels >= 0).any():
        raise DataError("none of the images has a label. Give a file of labels, or data with a folder for each class.")
    return _Opened(name, opened, fits, None)


def is_measured(options: Mapping[str, Any]) -> bool:
    """Tell whether the preprocessing is to be chosen by labels."""
    return str(options.get("preprocessing")).lower() == MEASURE


def unmeasured(options: Mapping[str, Any]) -> dict[str, Any]:
    """Give what is said of the preprocessing beside that it is to be chosen."""
    return {name: value for name, value in options.items() if name != "preprocessing" or not is_measured(options)}


def _choose(
    opened: _Opened, source: Source, said: Mapping[str, Any], options: InferenceOptions
) -> tuple[_Opened, PreprocessingChoice]:
    """Choose the preprocessing by labels, and give the model with it."""
    choice = choose_preprocessing(opened.model, source, read_preprocessing(unmeasured(said)), options)
    model = open_model(opened.model, said={"preprocessing": choice.best.preprocessing})
    return opened._replace(model=model), choice


def _ask(opened: _Opened, source: Source, options: InferenceOptions) -> Subject:
    showing = options.showing(f"evaluating {harmless(opened.name)}")
    return Subject(
        title=opened.name,
        found=answers(opened.model, source, showing, labeled=opened.labeled),
        source=source,
        class_names=opened.model.card.class_names or (source.class_names if opened.labeled else None),
        labeled=opened.labeled,
        given=opened.given,
    )


def _copies(source: Source, train: Source, options: InferenceOptions) -> tuple[NDArray[np.bool_], int] | None:
    """Tell which images have a near-copy among the training images, and how many those are; None where unknown."""
    if not can_compare(train, source):
        options.report.note(f"over {LARGEST:,} images: near-copies of training images are not looked for")
        return None
    progress = partial(options.report.progress, "looking for near-copies of training images")
    return options.group.on_main(lambda: have_copies(source, train, progress)), len(train)


def _write_page(
    folder: Path,
    opened: _Opened,
    source: Source,
    document: Mapping[str, Any],
    files: Mapping[str, bytes],
    command: str,
    report: Reporter,
) -> None:
    """Write the page of the worst mistakes, with where the model looked; of some images where there are none."""
    worst = document["worst"]["images"][:MOST_IMAGES]
    wrong = [row["sample"] for row in worst]
    chosen = wrong or spread(len(source), SHOWN).tolist()
    title, plain = title_of(opened.name), opened.model.plain
    drawn = draw_images(source, drawn_count(plain))
    subject, places = look_at(title, plain, source, chosen, wrong, drawn=drawn, bias=False, report=report)
    if worst and subject.found is not None and len(places) == len(worst):  # by whatever labels it was measured
        labels = [row["class"] for row in worst]
        subject.found.views = subject.found.views._replace(labels=labels, verdicts=[False] * len(worst))
    measured = measured_of(document)
    write_report(folder, subject, mistakes=places, measured=measured, beside=files, command=command, report=report)
