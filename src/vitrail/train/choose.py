"""Values for a run that says little: chosen from the data and the model, each with its reason."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrail.config import BiTConfig, HybridStem, PatchStem, row
from vitrail.config.recipe import Training
from vitrail.config.recipes import adjust, hyperrule, recipe
from vitrail.data.decode import ImageError, OpenImage, Pixels
from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.train.task import is_checkpoint

LOOKED_AT = 64  # images whose sides are read
# A fresh ViT by the middle side of the images: up to this, the image size, the patch.
FRESH = ((32, 28, 7), (48, 32, 4), (80, 64, 8), (160, 96, 8))
LARGE = (224, 16)
SMALL_DATA = 50_000  # images under which half of ViT-Ti's depth is enough
FEW = 10_000  # images under which augmentation is kept light
TABLE_4 = ((20_000, "finetune/pets"), (500_000, "finetune/cifar10"))  # else as ImageNet
DEV = ((20_000, 0.1), (500_000, 0.02))  # as the paper: of Pets and Flowers, of CIFAR; else 1 % as of ImageNet


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A model, how to train it, and why."""

    model: str
    training: Training
    changes: Mapping[str, Any] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()  # to choose from, where the recipe names several


def choose(
    source: Source,
    model: str | None,
    *,
    pretrained: bool,
    has_val: bool,
    resnet: bool = False,
    small: bool = False,
    given: Collection[str] = (),
) -> Choice:
    """Choose for this many images of this size: Table 4 for a checkpoint, small data from scratch otherwise.

    A `small` checkpoint, which Table 4's models are not, is fine-tuned on few images by a recipe of its own.

    Of fields that are given no reason is told, since they are not chosen.
    """
    count = len(source)
    dev = 0.0 if has_val else next((share for below, share in DEV if count < below), 0.01)
    why = [f"{count:,} training images {_classes_of(source)}"]
    if not has_val and "validation_share" not in given:
        why.append(f"{dev:.0%} of them kept back to choose by, as there is no val split")
    if pretrained and model is not None:
        if small and not resnet and count < FEW and "margin" not in given:  # which images that are mixed have not
            return _finetuning_small(count, model, dev, why, given)
        return _finetuning(count, model, dev, why, given, resnet=resnet)
    return _from_scratch(source, count, model, dev, why, given)


def _finetuning(count: int, model: str, dev: float, why: list[str], given: Collection[str], *, resnet: bool) -> Choice:
    steps = hyperrule(count).training.steps
    batch = batch_for(count)
    if resnet:
        training = adjust(hyperrule(count).training, {"batch_size": batch, "validation_share": dev, "image_size": None})
        why.append(f"BiT's HyperRule: {steps:,} steps for a set of this size")
        return Choice(model=model, training=training, reasons=tuple(why))
    found = recipe(next((name for below, name in TABLE_4 if count < below), "finetune/imagenet"))
    changes = {"batch_size": batch, "validation_share": dev, "image_size": None, "recipe": "finetune"}
    training = adjust(found.training, changes)
    at = "" if "learning_rate" in given else f" at {training.optimizer.learning_rate:g}"
    why.append(f"Table 4's SGD{at}, cosine, clip 1, zero head")
    if not {"steps", "epochs", "batch_size"} & set(given):
        why.append(f"{steps:,} steps, as the paper takes for sets of this size, of {batch} images")
    if "image_size" not in given:
        why.append("the model's own image size; the paper goes higher: --set image_size=384")
    return Choice(model=model, training=training, reasons=tuple(why), rates=found.rates)


def _finetuning_small(count: int, model: str, dev: float, why: list[str], given: Collection[str]) -> Choice:
    steps, batch = hyperrule(count).training.steps, batch_for(count)
    changes = {"batch_size": batch, "validation_share": dev, "steps": steps}
    at = "" if "learning_rate" in given else " at 1e-3"
    why.append(
        f"the recipe finetune/small, as the model is small and the images are few: AdamW{at}, less in lower layers"
    )
    if not {"steps", "epochs", "batch_size"} & set(given):
        why.append(f"{steps:,} steps of {batch} images; --minutes 10 takes as many as fit")
    if "image_size" not in given:
        why.append("the model's own image size; larger is slower and often better: --set image_size=96")
    return Choice(model=model, training=adjust(recipe("finetune/small").training, changes), reasons=tuple(why))


def _from_scratch(
    source: Source, count: int, model: str | None, dev: float, why: list[str], given: Collection[str]
) -> Choice:
    side = middle_side(source)
    size, patch = next(((size, patch) for most, size, patch in FRESH if side <= most), LARGE)
    if model is not None:
        size = whole_patches(model, size)
    changes: dict[str, Any] = {"validation_share": dev, "batch_size": min(batch_for(count), 128)}
    changes["image_size"] = (size, size)
    if model is not None and not is_checkpoint(model) and row(model)[0] is BiTConfig:
        changes["stochastic_depth"] = 0.0  # which it has none of
    few = count < FEW
    training = adjust(recipe("small" if few else "scratch").training, changes)
    shape: dict[str, Any] = {}
    if model is None:
        model = f"ViT-Ti/{patch}"
        why.append(
            f"a fresh {model} at {size} pixels, as the images are about {side} pixels; --model takes a trained one"
        )
        if count < SMALL_DATA:
            shape = {"depth": 6, "positions": "sinusoidal-2d"}
            why.append("6 of its 12 layers, and positions that need not be learned, as the images are few")
    elif "image_size" not in given:
        why.append(f"{size} pixels, as the images are about {side}")
    light = "the recipe small, as the images are few: AdamW, crops, Mixup, stochastic depth, averaged weights"
    strong = "the recipe scratch: AdamW, RandAugment, Mixup and CutMix, erasing, stochastic depth, averaged weights"
    why.append(light if few else strong)
    return Choice(model=model, training=training, changes=shape, reasons=tuple(why))


def _classes_of(source: Source) -> str:
    """Say how many classes the images are of, and how many of them are of none."""
    without = int((np.asarray(source.labels) < 0).sum())
    if without == len(source):
        return "without labels"
    classes = len(source.class_names)
    words = f"in {classes:,} classes" if classes != 1 else "in 1 class"
    return words + (f", {without:,} of them without a label" if without else "")


def whole_patches(model: str, size: int) -> int:
    """Give the image size from this one on that a model of the zoo can cut into patches."""
    stem = None if is_checkpoint(model) else row(model)[1].get("stem")
    return -(-size // stem.stride) * stem.stride if isinstance(stem, PatchStem | HybridStem) else size


def batch_for(count: int) -> int:
    """Give the paper's batch of 512 for large sets, and fewer images for small ones."""
    return next((batch for below, batch in ((500, 16), (1_000, 32), (5_000, 64), (20_000, 128)) if count < below), 512)


def middle_side(source: Source) -> int:
    """Give the median of the shorter sides of a few images, spread over the source."""
    sides = []
    for index in np.linspace(0, len(source) - 1, min(LOOKED_AT, len(source))).astype(np.int64).tolist():
        try:
            sides.append(_shorter_side(source.read(index)))
        except ImageError:
            continue
    if not sides:
        raise DataError("none of the images looked at can be decoded. vitrail data check says why.")
    return int(np.median(sides))


def _shorter_side(data: bytes | Pixels) -> int:
    if not isinstance(data, bytes):
        return min(data.shape[:2])
    image = OpenImage(data)
    return min(image.height, image.width)
