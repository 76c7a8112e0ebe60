"""`vitrail.predict` and `vitrail.embed`: what a model says of images, and what it makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.checkpoint.load import of_run
from vitrail.config.check import whole
from vitrail.config.given import check_passes
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.cached import outputs_of_stretch
from vitrail.models import Model, eval_mode
from vitrail.runtime.inference import choose_model, computed_in, inference_options
from vitrail.runtime.joining import all_or_none, join_lists, join_rows, share
from vitrail.runtime.machine import Group
from vitrail.runtime.reporter import SILENT, Reporter
from vitrail.verbs.dense import WINDOWS, refuse_for_dense, task_of
from vitrail.verbs.dense_predict import DensePredictions, predict_dense
from vitrail.verbs.images import ImageList, gather_images
from vitrail.verbs.kept import Kept, keep_rows, pieces_of
from vitrail.verbs.opening import (
    OF_FILES,
    AnyModel,
    ImageSize,
    Options,
    Passing,
    change_passes,
    check_options,
    open_model,
    said_passes,
)
from vitrail.verbs.predictions import Embeddings, Failed, Predictions
from vitrail.verbs.task_predictions import TaskPredictions

STRETCH = 16_384  # images after which what was found of them is put in its place
NAMED = 5  # bad images that a message lists


class PredictOptions(Options, Passing, total=False):
    """How to go through images, their size, and what a file leaves open of its model."""

    image_size: ImageSize | None  # None: the model's own
    fresh: bool  # go on with nothing that was found before this was stopped, and keep nothing meanwhile
    group: Group | None  # processes that share the images out; the first has all answers, another those of its share


def predict(
    model: AnyModel,
    images: object,
    *,
    top: int = 5,
    features: bool = False,
    score: float = 0.5,
    windows: bool = False,
    **options: Unpack[PredictOptions],
) -> Predictions | Any:  # noqa: ANN401  # DensePredictions of a model that segments or detects
    """Classify images: a path or many, folders with all in them, globs, bytes, PIL images, arrays, tensors, a dataset.

    `model` is a name, a file, a run or its folder, or a model in memory. The result is a sequence, of one image too, in
    the order given; images that cannot be read are in its `failed`, with the reason. `top` is how many classes of an
    image rows and tables show; `features=True` keeps what the classifier reads too. Stopped among many image files, the
    same call goes on where it was, unless `fresh`. Options: image_size, batch_size, workers, device, precision, engine,
    fresh, report; and where the file does not say how it reads images,
    preprocessing, mean, deviation, resize, crop_share, interpolation, as in `vitrail.load`; and what it leaves open of
    the model: heads, grid, activation, epsilon.

    Of a model that segments or detects the result has a mask, or objects with boxes, of every image (docs/dense.md);
    `score` is how sure an object must be, and `windows=True` looks at large images window by window.

    `keep_aspect_ratio=True` reads every image whole and in its own shape, in at most as many patches as the model's own
    size (image_size) has, many images packed in one sequence. `token_merging=0.6` lets a ViT's layers merge that share
    of its patches: some 1.5 times the speed, for 0.9 points of accuracy on the model in the box (docs/predicting.md).

    A model of several labels gives each image's `labels` (those that reach their threshold), one of numbers its
    `values`, one of ordered classes the median class and the `expected` place.
    """
    check_options(predict, PredictOptions, options)
    whole("top", top)
    if (task := task_of(of_run(model))) is not None:
        refuse_for_dense(task, {"features": features, **{name: options.get(name) for name in Passing.__annotations__}})
        return _run_dense(model, images, score=score, windows=windows, **options)
    if windows:
        raise ConfigError(WINDOWS)
    found = _run(model, images, ("logits", "features") if features else ("logits",), **options)
    logits, card = found.values["logits"], found.model.card
    held: dict[str, Any] = {
        "names": found.names,
        "logits": logits,
        "class_names": card.class_names or [f"class {number}" for number in range(logits.shape[1])],
        "failed": found.failed,
        "features": found.values.get("features"),
        "classes_shown": top,
        "temperature": card.temperature,
        "setting": said_passes(found.model),
        "computed": found.computed,
    }
    return Predictions(**held) if card.outputs is None else TaskPredictions(**held, outputs=card.outputs)


def embed(model: AnyModel, images: object, **options: Unpack[PredictOptions]) -> Float[Tensor, "N D"]:
    """Give what the classifier reads of each image, a row each, in the order given; float32 on the CPU.

    `model`, `images` and the options are those of `predict`. Images that cannot be read raise a DataError with their
    names, since a row that is missing would move all that follow; `vitrail.verbs.predict.embeddings` skips them and
    names the image of every row.
    """
    check_options(embed, PredictOptions, options)
    found = embeddings(model, images, **options)
    if found.failed:
        some = "; ".join(f"{name}: {reason}" for name, reason in found.failed[:NAMED])
        raise DataError(
            f"{len(found.failed):,} of {len(found.failed) + len(found.names):,} images cannot be read: {some}. Repair "
            "them or leave them out; vitrail.verbs.predict.embeddings skips them and names the image of every row."
        )
    return found.features


def embeddings(model: AnyModel, images: object, **options: Unpack[PredictOptions]) -> Embeddings:
    """Give the features of every image that can be read, with their names, and the images that cannot be."""
    found = _run(model, images, ("features",), **options)
    return Embeddings(names=found.names, features=found.values["features"], failed=found.failed)


def _run_dense(
    model: AnyModel,
    images: object,
    *,
    score: float,
    windows: bool,
    image_size: ImageSize | None = None,
    device: str | torch.device | None = None,
    **options: Any,  # noqa: ANN401
) -> DensePredictions:
    """Send images through a model of pixels or objects."""
    if (group := options.pop("group", None)) is not None and group.world_size > 1:
        raise ConfigError("masks and boxes are predicted by one process: run it without torchrun, or a part each.")
    source = gather_images(images, options.get("report", SILENT))
    opened = open_model(of_run(model), image_size, device, options)
    given = {name: value for name, value in options.items() if name not in (*OF_FILES, *Passing.__annotations__)}
    how = inference_options(Group(device=next(opened.parameters()).device), **given)
    how = replace(how, workers=min(how.workers, len(source) // how.batch_size))
    return predict_dense(opened, source, how, score=score, windows=windows)


class _Found(NamedTuple):
    model: Model
    kept: Kept | None
    names: list[str]
    values: Mapping[str, Tensor]
    failed: list[Failed]
    computed: Mapping[str, Any]


def _run(
    model: AnyModel,
    images: object,
    parts: Sequence[str],
    *,
    image_size: ImageSize | None = None,
    device: str | torch.device | None = None,
    group: Group | None = None,
    **options: Any,  # noqa: ANN401
) -> _Found:
    """Send images through a model; what is held of them are their names and the parts that are asked for."""
    if group is not None and group.world_size > 1:
        return _run_shared(group, model, images, parts, image_size=image_size, device=device, **options)
    found = _run_share(Group(device=torch.device("cpu")), model, images, parts, image_size, device, **options)
    return _given(found)


def _given(found: _Found) -> _Found:
    """Remove what was kept for a call that goes on after it was stopped."""
    if found.kept is not None:
        found.kept.remove()
    return found


def _run_shared(
    group: Group,
    model: AnyModel,
    images: object,
    parts: Sequence[str],
    *,
    report: Reporter = SILENT,
    **options: Any,  # noqa: ANN401
) -> _Found:
    """Let every process send its share of the first one's images through, and join what they found, once."""
    options["report"] = report if group.is_main else SILENT
    source = group.on_main(lambda: gather_images(images, options["report"]))
    own = all_or_none(group, lambda: _run_share(group, model, source, parts, **options))
    values = join_rows(group, own.values)
    found = own._replace(values=values, names=join_lists(group, own.names), failed=join_lists(group, own.failed))
    return _given(found)


def _run_share(
    group: Group,
    model: AnyModel,
    images: object,
    parts: Sequence[str],
    image_size: ImageSize | None = None,
    device: str | torch.device | None = None,
    **options: Any,  # noqa: ANN401
) -> _Found:
    """Send this process's share of the images through a model."""
    passing = Passing(**{name: options.pop(name) for name in Passing.__annotations__ if name in options})  # pyright: ignore[reportArgumentType]
    check_passes(passing)
    source = images if isinstance(images, ImageList) else gather_images(images, options.get("report", SILENT))
    model = open_model(of_run(model), image_size, device, options)
    options = {name: value for name, value in options.items() if name not in OF_FILES}
    if "logits" in parts and not model.config.classes:
        raise ConfigError(
            "the model has no classifier, so it names no class. Fine-tune it with vitrail.finetune, or take what it "
            "represents with vitrail.embed."
        )
    how = inference_options(Group(device=next(model.parameters()).device), **options)
    model = change_passes(model, passing, precision=how.precision, images=len(source))
    how = replace(how, workers=min(how.workers, len(source) // how.batch_size))  # no process starts for a few images
    model = choose_model(model, len(source), how)
    total, precision = len(source), next(model.parameters()).dtype
    widths = {"logits": model.config.classes or 0, "features": model.config.representation}
    own = pieces_of(share(group, total, how.batch_size, STRETCH), how)
    kept = keep_rows(source, model, parts, how) if len(own) > 1 else None
    values = {part: np.empty((sum(map(len, own)), widths[part]), np.float32) for part in parts}
    found = _Found(model, kept, [], {}, [], computed_in(model, how))

    def read(model: Model, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        features, logits = model.outputs(images.to(precision))
        return {part: features if logits is None or part == "features" else logits for part in parts}

    def compute(some: range) -> None:
        def advance(done: int, _: int) -> None:
            if total > how.batch_size:
                passed = some.start - own[0].start + done
                how.report.progress("predicting", min(passed * group.world_size, total), total)

        numbers = np.arange(some.start, some.stop)
        rows = outputs_of_stretch(model, source, read, replace(how, progress=advance), numbers, kept)
        if rows.reused and not found.names:
            how.report.note("going on where it was stopped")
        sound = np.ones(len(rows.samples), np.bool_)
        for value in rows.values.values():
            sound &= ~np.isnan(value).any(axis=1)
        for part, value in rows.values.items():
            values[part][len(found.names) : len(found.names) + sound.sum()] = value[sound]
        bad = [(skip.sample, skip.reason) for skip in rows.skipped]
        bad += [(int(sample), "the model gives NaN for it") for sample in rows.samples[~sound]]
        found.failed.extend(Failed(source.name(sample), reason) for sample, reason in sorted(bad))
        found.names.extend(source.name(int(sample)) for sample in rows.samples[sound])

    with eval_mode(model):
        for some in own:
            compute(some)
    return found._replace(values={part: torch.from_numpy(value[: len(found.names)]) for part, value in values.items()})
