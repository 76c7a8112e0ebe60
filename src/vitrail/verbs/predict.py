"""`vitrail.predict` and `vitrail.embed`: what a model says of images, and what it makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.config.check import one_of, whole
from vitrail.data.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.models import Model, eval_mode
from vitrail.runtime.group import Group
from vitrail.runtime.inference import CPU_BATCH, GPU_BATCH, InferenceOptions, compute_outputs
from vitrail.runtime.machine import usual_workers
from vitrail.runtime.reporter import SILENT, Reporter
from vitrail.verbs.images import gather_images
from vitrail.verbs.opening import AnyModel, ImageSize, open_model
from vitrail.verbs.predictions import Embeddings, Failed, Predictions

Precision = Literal["float32", "bfloat16"]
STRETCH = 16_384  # images after which what was found of them is put in its place
NAMED = 5  # bad images that a message lists


class Options(TypedDict, total=False):
    """How to go through images."""

    image_size: ImageSize | None  # None: the model's own
    batch_size: int | None  # None: 16, or 256 on a GPU
    workers: int | None  # processes that decode; None: by the machine
    device: str | torch.device | None  # None: a GPU where there is one; a model in memory stays where it is
    precision: Precision
    report: Reporter


def predict(
    model: AnyModel, images: object, *, top: int = 5, features: bool = False, **options: Unpack[Options]
) -> Predictions:
    """Classify images: a path or many, folders with all in them, globs, bytes, PIL images, arrays, tensors, a source.

    The result is a sequence, of one image too, in the order given; images that cannot be read are in its `failed`, with
    the reason. `top` is how many classes of an image rows and tables show; `features=True` keeps what the classifier
    reads too. Options: image_size, batch_size, workers, device, precision ("float32" or "bfloat16"), report.
    """
    whole("top", top)
    found = _run(model, images, ("logits", "features") if features else ("logits",), **options)
    logits = found.values["logits"]
    return Predictions(
        names=found.names,
        logits=logits,
        class_names=found.model.card.class_names or [f"class {number}" for number in range(logits.shape[1])],
        failed=found.failed,
        features=found.values.get("features"),
        classes_shown=top,
    )


def embed(model: AnyModel, images: object, **options: Unpack[Options]) -> Float[Tensor, "N D"]:
    """Give what the classifier reads of each image, a row each, in the order given; float32 on the CPU.

    Options are those of `predict`. Images that cannot be read raise a DataError with their names, since a row that is
    missing would move all that follow; `vitrail.verbs.predict.embeddings` skips them and names the image of every row.
    """
    found = embeddings(model, images, **options)
    if found.failed:
        some = "; ".join(f"{name}: {reason}" for name, reason in found.failed[:NAMED])
        raise DataError(
            f"{len(found.failed):,} of {len(found.failed) + len(found.names):,} images cannot be read: {some}. Repair "
            "them or leave them out; vitrail.verbs.predict.embeddings skips them and names the image of every row."
        )
    return found.features


def embeddings(model: AnyModel, images: object, **options: Unpack[Options]) -> Embeddings:
    """Give the features of every image that can be read, with their names, and the images that cannot be."""
    found = _run(model, images, ("features",), **options)
    return Embeddings(names=found.names, features=found.values["features"], failed=found.failed)


class _Found(NamedTuple):
    model: Model
    names: list[str]
    values: Mapping[str, Tensor]
    failed: list[Failed]


def _run(
    model: AnyModel,
    images: object,
    parts: Sequence[str],
    *,
    image_size: ImageSize | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: str | torch.device | None = None,
    precision: Precision = "float32",
    report: Reporter = SILENT,
) -> _Found:
    """Send images through a model; refuse what cannot be before anything is computed."""
    one_of("precision", precision, ("float32", "bfloat16"))
    source = gather_images(images, report)
    model = open_model(model, image_size, device)
    if "logits" in parts and not model.config.classes:
        raise ConfigError(
            "the model has no classifier, so it names no class. Fine-tune it with vitrail.finetune, or take what it "
            "represents with vitrail.embed."
        )
    place = next(model.parameters()).device
    gpu = place.type == "cuda"
    batch = (GPU_BATCH if gpu else CPU_BATCH) if batch_size is None else whole("batch_size", batch_size)
    workers = usual_workers(gpu=gpu) if workers is None else whole("workers", workers, least=0)
    how = InferenceOptions(
        group=Group(device=place),
        batch_size=batch,
        workers=min(workers, len(source) // batch),  # no process starts for a few images
        precision=precision,
    )
    return _compute(model, source, parts, how, report)


def _compute(model: Model, source: Source, parts: Sequence[str], how: InferenceOptions, report: Reporter) -> _Found:
    """Go through all images; what is held of them are their names and the parts that are asked for."""
    total, precision = len(source), next(model.parameters()).dtype
    widths = {"logits": model.config.classes or 0, "features": model.config.representation}
    values = {part: np.empty((total, widths[part]), np.float32) for part in parts}
    found = _Found(model, [], {}, [])

    def read(model: Model, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        features = model.represent(images.to(precision))
        return {part: model.head(features) if part == "logits" else features for part in parts}

    def compute(start: int) -> None:
        def advance(done: int, _: int) -> None:
            if total > how.batch_size:
                report.progress("predicting", start + done, total)

        numbers = np.arange(start, min(start + STRETCH, total))
        rows = compute_outputs(model, source, numbers, read, replace(how, progress=advance))
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
        for start in range(0, total, STRETCH):
            compute(start)
    return found._replace(values={part: torch.from_numpy(value[: len(found.names)]) for part, value in values.items()})
