"""What a request leaves open, chosen from the data and the model, with reasons."""

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from vitrail.checkpoint.adapt import ModelInMemory
from vitrail.checkpoint.run_folder import BEGUN, read_document
from vitrail.config import BiTConfig, HybridStem, ModelConfig, PatchStem, ViTConfig, as_size, row
from vitrail.config.given import is_checkpoint
from vitrail.config.recipe import Augmentation
from vitrail.config.recipes import adjust, hyperrule, recipe
from vitrail.config.task import Classify, task_word
from vitrail.data.decode import ImageError, OpenImage
from vitrail.data.source import Source
from vitrail.data.sources.remote import RemoteShards
from vitrail.errors import ConfigError, DataError, some_of
from vitrail.train.request import Choice, TrainRequest, leaf_of
from vitrail.train.task import NAMED, AnyModel, Start, known_config, training_split

LOOKED_AT = 64  # images whose sides are read to choose by,
MANY = 256  # and those that are looked at for being too small
# A fresh ViT by the middle side of the images: up to this, the image size, the patch.
FRESH = ((32, 28, 7), (48, 32, 4), (80, 64, 8), (160, 96, 8))
LARGE = (224, 16)
PATCHES = (8, 7, 16, 14, 6, 5, 4)  # for an image size that is asked for, where its usual one does not fit
SMALL_DATA = 50_000  # images under which half of ViT-Ti's depth is enough
FEW = 10_000  # images under which augmentation is kept light
SMALL_MODEL = 10_000_000  # parameters under which a checkpoint is not one of the paper's
PIXELS = "ViT-Ti/1"  # whose patches are pixels
TABLE_4 = ((20_000, "finetune/pets"), (500_000, "finetune/cifar10"))  # else as ImageNet
BOX = "vitrail-ti8"  # where fine-tuning begins that names no model
# Fields of a model that leave its weights as they are; any other means a model of one's own.
KEPT = ("attention_dropout", "checkpointing", "cosine_scale", "dropout", "head_bias", "stochastic_depth")
TOLD = {
    "multilabel": "a sigmoid for each label; the best by mean average precision",
    "regression": "numbers less their mean, by their deviation; the best by R2",
    "ordinal": "probabilities of being at or below each class; the best by the mean distance",
}
DEV = ((20_000, 0.1), (500_000, 0.02))  # as the paper: of Pets and Flowers, of CIFAR; else 1 % as of ImageNet


def choose_start(
    request: TrainRequest, splits: Mapping[str, Source], out: Path | None = None
) -> tuple[AnyModel | None, list[str]]:
    """Give the model to begin with, and why: the one in the box where none is named and that one helps.

    A run that was begun in `out` without it goes on without it.
    """
    if request.model is not None or request.kind != "finetune" or request.recipe is not None:
        return request.model, []
    if out is not None and (out / BEGUN).is_file() and read_document(out / BEGUN).get("model") != BOX:
        return None, []
    whole = training_split(splits)
    if isinstance(whole, RemoteShards):
        return None, []
    count = len(whole)
    own = sorted(request.model_fields.keys() - set(KEPT))
    reason = None
    if not request.needs_labels:
        reason = "as labels are not what is learned"
    elif own:
        reason = f"as {own[0]} is given, which its weights decide"
    elif count >= FEW:
        reason = f"as {count:,} images can teach more than it knows"
    if reason is not None:
        return None, [f"not from the model in the box, {reason}; model={BOX} begins with it"]
    patch = FRESH[-1][2]
    words = "which is better than from scratch for so few images"
    return BOX, [
        f"from {BOX}, the model in the box, {words}; another with model=..., a fresh one with model=ViT-Ti/{patch}"
    ]


def choose_recipe(
    request: TrainRequest, splits: Mapping[str, Source], start: Start | None, *, later: Collection[str] = ()
) -> Choice:
    """Choose a recipe and a model where they are not said; no reason is given for fields that are settled `later`."""
    whole, learns = training_split(splits), request.learns
    if isinstance(whole, RemoteShards) and (request.recipe is None or not request.fields.get("steps")):
        raise ConfigError("of a stream nothing is known ahead. Say the model, the recipe and the steps.")
    name = PIXELS if learns == "next-pixel" and request.model is None else model_name(request.model)
    if request.recipe is None:
        known = known_config(start, {**request.model_fields, **request.fields})
        held = known if isinstance(start, ModelInMemory) else None
        fresh = isinstance(start, ModelInMemory) and start.is_fresh
        found = choose(
            whole,
            name,
            pretrained=known is not None and request.kind != "pretrain" and not fresh,
            held=held,
            has_val=bool(splits.keys() & {"val", "dev"}),
            resnet=isinstance(known, BiTConfig),
            small=request.kind == "finetune" and start is not None and start.parameters < SMALL_MODEL,
            given={*map(leaf_of, request.fields), *later, *(("image_size",) if learns == "next-pixel" else ())},
            values={leaf_of(name): value for name, value in {**request.model_fields, **request.fields}.items()},
        )
        if fresh:
            reason = "from scratch, as the model in memory was neither loaded nor trained before"
            found = replace(found, reasons=(*found.reasons, reason))
        small = learns == "next-pixel" and "image_size" not in request.fields
        return for_task(found, request) if learns == "labels" else plain_images(found, small=small)
    if name is None:
        raise ConfigError(f"the recipe {request.recipe} needs a model: a name such as ViT-B/16, or a checkpoint.")
    rule = request.recipe == "bit/hyperrule"
    found = recipe(request.recipe, examples=len(whole), side=middle_side(whole)) if rule else recipe(request.recipe)
    dev = {"validation_share": 0.0} if isinstance(whole, RemoteShards) else {}
    made = Choice(
        model=name,
        training=adjust(found.training, dev),
        reasons=(f"the recipe {request.recipe}: {found.source}",),
        rates=found.rates,
    )
    return for_task(made, request) if learns == "labels" else made


def for_task(choice: Choice, request: TrainRequest) -> Choice:
    """Leave out what a recipe has for one class an image, where the task is another."""
    if isinstance(request.task, Classify):
        return choice
    changes = {name: 0.0 for name in ("label_smoothing", "head_bias") if getattr(choice.training, name)}
    word = task_word(request.task)
    reasons = (*choice.reasons, f"task={word}: {TOLD[word]}")
    return replace(choice, training=adjust(choice.training, changes), reasons=reasons)


def model_name(model: AnyModel | None) -> str | None:
    """Give the name or path of a model; of one in memory, where it comes from."""
    if model is None or isinstance(model, str):
        return model
    if isinstance(model, os.PathLike):
        return os.fspath(model)
    return "a model in memory" if model.card.provenance is None else model.card.provenance.source


def plain_images(choice: Choice, *, small: bool) -> Choice:
    """Leave out what changes images where they are what is to be predicted; `small` where each pixel is a token."""
    changes: dict[str, object] = {"label_smoothing": 0.0, "augmentation": Augmentation(crop_area=(0.3, 1.0))}
    reasons = [*choice.reasons, "but flips and crops alone, and no labels"]
    if small:
        changes["image_size"] = (32, 32)
        reasons.append("32 x 32 pixels, each a token of a model that is causal")
    return replace(choice, training=adjust(choice.training, changes), reasons=tuple(reasons))


def choose(
    source: Source,
    model: str | None,
    *,
    pretrained: bool,
    has_val: bool,
    resnet: bool = False,
    small: bool = False,
    held: ModelConfig | None = None,
    given: Collection[str] = (),
    values: Mapping[str, Any] = MappingProxyType({}),
) -> Choice:
    """Choose for this many images of this size: Table 4 for a checkpoint, small data from scratch otherwise.

    A `small` checkpoint, which Table 4's models are not, is fine-tuned on few images by a recipe of its own. A model
    that is `held` in memory keeps its image size.

    Of fields that are given no reason is told, since they are not chosen; the reasons of others keep to their `values`.
    """
    count = len(source)
    dev = 0.0 if has_val else next((share for below, share in DEV if count < below), 0.01)
    why = [f"{count:,} training images {_classes_of(source)}"]
    without = len(source.class_names) - int((np.unique(source.labels) >= 0).sum())
    if source.targets is None and 2 * without > len(source.class_names):
        why.append(f"{without:,} of these classes have no image: are labels numbered from 0?")
    if not has_val and "validation_share" not in given:
        why.append(f"{dev:.0%} of them kept back to choose by, as there is no val split")
    if not pretrained or model is None:
        return _from_scratch(source, model, held, dev, why, given, values)
    batch, rule = batch_for(count), hyperrule(count).training
    changes: dict[str, Any] = {"batch_size": batch, "validation_share": dev, "result": "best"}
    batch = values.get("batch_size", batch)
    if resnet:
        why.append(f"BiT's HyperRule: {rule.steps:,} steps for a set of this size")
        return Choice(model=model, training=adjust(rule, {**changes, "image_size": None}), reasons=tuple(why))
    if small and count < FEW and "margin" not in given:  # which images that are mixed have not
        found, changes["steps"] = recipe("finetune/small"), rule.steps
        how = "the recipe finetune/small, as the model is small and the images are few: AdamW{at}, less in lower layers"
        at, length = "1e-3", f"{rule.steps:,} steps of {batch} images; minutes=10 takes as many as fit"
        larger = "larger is slower and often better, with image_size=96"
    else:
        found = recipe(next((name for below, name in TABLE_4 if count < below), "finetune/imagenet"))
        changes |= {"image_size": None, "recipe": "finetune"}
        how, at = "Table 4's SGD{at}, cosine, clip 1, zero head", f"{found.training.optimizer.learning_rate:g}"
        length = f"{rule.steps:,} steps, as the paper takes for sets of this size, of {batch} images"
        larger = "the paper goes higher: image_size=384"
    why.append(how.format(at="" if "learning_rate" in given else f" at {at}"))
    if not {"steps", "epochs"} & set(given):
        why.append(length)
    elif "batch_size" not in given:
        why.append(f"{batch} images a step")
    if "image_size" not in given:
        why.append(f"the model's own image size; {larger}")
    return Choice(model=model, training=adjust(found.training, changes), reasons=tuple(why), rates=found.rates)


def _from_scratch(
    source: Source,
    model: str | None,
    held: ModelConfig | None,
    dev: float,
    why: list[str],
    given: Collection[str],
    values: Mapping[str, Any],
) -> Choice:
    count, side = len(source), middle_side(source)
    asked = as_size(values["image_size"]) if values.get("image_size") else None  # the patch of a fresh model goes by it
    size, patch = next(((size, patch) for most, size, patch in FRESH if min(asked or (side,)) <= most), LARGE)
    kind, fields = (type(held), {}) if model is None or held or is_checkpoint(model) else row(model)
    if isinstance(stem := fields.get("stem"), PatchStem | HybridStem):
        size = -(-size // stem.stride) * stem.stride  # whole patches
    changes: dict[str, Any] = {"validation_share": dev, "batch_size": min(batch_for(count), 128)}
    changes["image_size"] = (size, size) if held is None else None
    if kind is BiTConfig:
        changes["stochastic_depth"] = 0.0  # which it has none of
    few = count < FEW
    training = adjust(recipe("small" if few else "scratch").training, changes)
    shape: dict[str, Any] = {}
    if model is None:
        model = f"ViT-Ti/{values.get('patch') or _whole_patch(patch, asked or (size, size))}"
        pixels = "x".join(map(str, asked[: 1 + (asked[0] != asked[1])])) if asked else f"{size}"
        reason = "as asked" if asked else f"as the images are about {side} pixels"
        why.append(f"a fresh {model} at {pixels} pixels, {reason}; model takes a trained one")
        if count < SMALL_DATA:
            words = {"depth": "6 of its 12 layers", "positions": "positions that need not be learned"}
            shape = {"depth": 6, "positions": "sinusoidal-2d"}
            shape = {name: value for name, value in shape.items() if name not in values}
            if shape:
                why.append(f"{', and '.join(words[name] for name in shape)}, as the images are few")
    elif "image_size" not in given:
        own = f"the model's own image size; the images are about {side} pixels"
        why.append(f"{size} pixels, as the images are about {side}" if held is None else own)
    if not {"steps", "epochs"} & set(given):
        batch = values.get("batch_size", training.batch_size)
        why.append(f"{training.epochs:g} epochs, {batch} images a step; minutes=10 takes as many as fit")
    light = "the recipe small, as the images are few: AdamW, crops, Mixup, stochastic depth, averaged weights"
    strong = "the recipe scratch: AdamW, RandAugment, Mixup and CutMix, erasing, stochastic depth, averaged weights"
    why.append(light if few else strong)
    return Choice(model=model, training=training, changes=shape, reasons=tuple(why))


def describe_small(source: Source, config: ModelConfig) -> list[str]:
    """Say which of many images, spread over the source, are smaller than a patch: of these nothing is to be seen."""
    if isinstance(source, RemoteShards) or not isinstance(config, ViTConfig):
        return []
    looked, patch = _sides(source, MANY), config.stem.stride
    small = [
        f"{source.name(index)} ({height}x{width})" for index, (height, width) in looked if min(height, width) < patch
    ]
    counted = f"{len(small):,} of {'the' if len(looked) == len(source) else 'some'} {len(looked):,} images"
    return [f"{counted} are smaller than a patch of {patch} pixels: {some_of(small, NAMED)}"] if small else []


def _whole_patch(patch: int, size: tuple[int, int]) -> int:
    """Give a patch side like this one that images of this size are whole patches of; this one where none is."""
    fitting = (each for each in (patch, *PATCHES) if not any(length % each for length in size))
    return next(fitting, patch)


def _classes_of(source: Source) -> str:
    """Say how many classes the images are of, and how many of them are of none."""
    if source.targets is not None:
        return f"with {len(source.class_names):,} known of each: {some_of([*source.class_names], NAMED)}"
    without = int((np.asarray(source.labels) < 0).sum())
    if without == len(source):
        return "without labels"
    classes = len(source.class_names)
    words = f"in {classes:,} classes" if classes != 1 else "in 1 class"
    return words + (f", {without:,} of them without a label" if without else "")


def batch_for(count: int) -> int:
    """Give the paper's batch of 512 for large sets, and fewer images for small ones."""
    return next((batch for below, batch in ((500, 16), (1_000, 32), (5_000, 64), (20_000, 128)) if count < below), 512)


def middle_side(source: Source) -> int:
    """Give the median of the shorter sides of a few images, spread over the source."""
    sides = [min(size) for _, size in _sides(source, LOOKED_AT)]
    if not sides:
        raise DataError("none of the images looked at can be decoded. vitrail data check says why.")
    return int(np.median(sides))


def _sides(source: Source, most: int) -> list[tuple[int, tuple[int, int]]]:
    """Give height and width of so many images at most, spread over the source, with their numbers."""
    found = []
    for index in np.linspace(0, len(source) - 1, min(most, len(source))).astype(np.int64).tolist():
        try:
            data = source.read(index)
            if isinstance(data, bytes):
                image = OpenImage(data)
                found.append((index, (image.height, image.width)))
            else:
                found.append((index, (data.shape[0], data.shape[1])))
        except ImageError:
            continue
    return found
