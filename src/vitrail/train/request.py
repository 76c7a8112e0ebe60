"""What is asked of a run, read once; and what is left open, chosen from the data and the model, with reasons."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitrail.checkpoint.adapt import ModelInMemory
from vitrail.config import BiTConfig, HybridStem, ModelConfig, PatchStem, ViTConfig, encode, read_settings, row
from vitrail.config.fields import hints, parts_of
from vitrail.config.objective import Labels
from vitrail.config.recipe import Augmentation, Training
from vitrail.config.recipes import RECIPES, adjust, hyperrule, recipe
from vitrail.config.words import ANSWERS, MODEL, TRAINING
from vitrail.data.decode import ImageError, OpenImage
from vitrail.data.source import Source
from vitrail.data.sources.remote import RemoteShards
from vitrail.errors import ConfigError, DataError
from vitrail.runtime.machine import choose_device, usual_workers
from vitrail.train.objective import Objective, own_objective
from vitrail.train.task import AnyModel, Start, Task, check_name, is_checkpoint, known_config, training_split

LOOKED_AT = 64  # images whose sides are read
# A fresh ViT by the middle side of the images: up to this, the image size, the patch.
FRESH = ((32, 28, 7), (48, 32, 4), (80, 64, 8), (160, 96, 8))
LARGE = (224, 16)
SMALL_DATA = 50_000  # images under which half of ViT-Ti's depth is enough
FEW = 10_000  # images under which augmentation is kept light
SMALL_MODEL = 10_000_000  # parameters under which a checkpoint is not one of the paper's
PIXELS = "ViT-Ti/1"  # whose patches are pixels
TABLE_4 = ((20_000, "finetune/pets"), (500_000, "finetune/cifar10"))  # else as ImageNet
DEV = ((20_000, 0.1), (500_000, 0.02))  # as the paper: of Pets and Flowers, of CIFAR; else 1 % as of ImageNet
EVERY_PART = "R50+ViT-B/16"  # has every part that a field of a checkpoint's model may be in
Kind = Literal["pretrain", "finetune", "transfer", "vtab"]


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What is asked of a run; `read_request` makes it."""

    kind: Kind
    data: object
    model: AnyModel | None
    recipe: str | None
    fields: Mapping[str, Any]  # of the training, by their names
    model_fields: Mapping[str, Any]
    objective: Objective | None = None  # of one's own

    @property
    def learns(self) -> str:
        """The word for what is learned, as it is said or as the recipe has it."""
        usual = RECIPES[self.recipe].training.objective if self.recipe in RECIPES else Labels()
        said = self.fields.get("objective", usual)
        return said if isinstance(said, str) else encode(said)["kind"]

    @property
    def needs_labels(self) -> bool:
        """Whether the labels of the images are what is learned."""
        return self.objective is None and self.learns == "labels"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A model, how to train it, and why."""

    model: str
    training: Training
    changes: Mapping[str, Any] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()  # to choose from, where the recipe names several


def read_request(
    kind: Kind,
    data: object,
    model: AnyModel | None,
    recipe_name: str | None,
    settings: Sequence[str],
    fields: Mapping[str, Any],
) -> TrainRequest:
    """Read what is asked, `field=value` texts and values alike, each once; fields of the model are model.FIELD."""
    if isinstance(model, str):
        check_name(model)
    own = own_objective(fields.get("objective"))
    given = {_placed(name): value for name, value in fields.items() if own is None or value is not own}
    settings = [_placed(text.strip()) for text in settings]
    if any(re.match(r"model\.classes\b", name) for name in (*given, *settings)):
        raise ConfigError("the data decides the number of classes. Leave classes out.")
    of_model = {name.removeprefix("model."): value for name, value in given.items() if name.startswith("model.")}
    texts = [text.removeprefix("model.") for text in settings if text.startswith("model.")]
    named = model if isinstance(model, str) and not is_checkpoint(model) else EVERY_PART
    theirs = read_settings(*row(named), texts, of_model) if texts or of_model else {}
    given = {name: value for name, value in given.items() if not name.startswith("model.")}
    ours = _read_training(recipe_name, [text for text in settings if not text.startswith("model.")], given)
    if "steps" in ours and "epochs" in ours:
        raise ConfigError("a run's length is given twice: steps and epochs. Give one.")
    return TrainRequest(
        kind=kind, data=data, model=model, recipe=recipe_name, fields=ours, model_fields=theirs, objective=own
    )


def _placed(text: str) -> str:
    """Give a name, or a setting, of the model as model.FIELD, whatever word for it is said; others as they are."""
    name, equals, value = text.partition("=")
    bare = name.strip().removeprefix("model.")
    field = MODEL.get(bare, bare)
    parts = [leaf for hint in hints(Training).values() for part in parts_of(hint).values() for leaf in hints(part)]
    ours = bare in (*TRAINING, *hints(Training), *ANSWERS, *parts)
    of_model = not ours and field in (*MODEL.values(), *hints(ViTConfig))
    return f"model.{field}{equals}{value}" if of_model or name.startswith("model.") else text


def _read_training(name: str | None, settings: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse fields that the recipe cannot have; where it is chosen later, those that none of the usual ones has."""
    refused: list[ConfigError] = []
    for each in ("scratch", "finetune/imagenet") if name is None else (name,):
        try:
            return read_settings(Training, vars(recipe(each, examples=1).training), settings, given)
        except ConfigError as error:
            refused.append(error)
    raise refused[0]


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
            given={*map(_leaf, request.fields), *later, *(("image_size",) if learns == "next-pixel" else ())},
        )
        if fresh:
            reason = "from scratch, as the model in memory was neither loaded nor trained before"
            found = replace(found, reasons=(*found.reasons, reason))
        small = learns == "next-pixel" and "image_size" not in request.fields
        return found if learns == "labels" else plain_images(found, small=small)
    if name is None:
        raise ConfigError(f"the recipe {request.recipe} needs a model: a name such as ViT-B/16, or a checkpoint.")
    rule = request.recipe == "bit/hyperrule"
    found = recipe(request.recipe, examples=len(whole), side=middle_side(whole)) if rule else recipe(request.recipe)
    dev = {"validation_share": 0.0} if isinstance(whole, RemoteShards) else {}
    return Choice(
        model=name,
        training=adjust(found.training, dev),
        reasons=(f"the recipe {request.recipe}: {found.source}",),
        rates=found.rates,
    )


def make_task(
    request: TrainRequest,
    choice: Choice,
    splits: Mapping[str, Source],
    start: Start | None,
    *,
    out: Path,
    workers: int | None = None,
    device: str | None = None,
    tensorboard: bool = False,
    command: str = "",
) -> Task:
    """Make the run that was asked for, with what was chosen for it."""
    training = adjust(choice.training, request.fields)
    first, last = training.optimizer.learning_rate, training.schedule.final_learning_rate
    if last > first and "final_learning_rate" in map(_leaf, request.fields):
        raise ConfigError(f"learning_rate={first:g} cannot fall to {last:g}. Set final_learning_rate=0, or less.")
    return Task(
        command=command,
        data=str(request.data) if isinstance(request.data, str | os.PathLike) else "data in memory",
        splits=splits,
        model=choice.model,
        start=start,
        training=training,
        out=out,
        changes={**choice.changes, **request.model_fields},
        objective=request.objective,
        workers=usual_workers(gpu=choose_device(device).type == "cuda") if workers is None else workers,
        device=device,
        tensorboard=tensorboard,
    )


def refuse_fields(request: TrainRequest, reasons: Mapping[str, str]) -> None:
    """Refuse fields that the caller itself decides, each with what to do instead; and learning without labels."""
    for name in request.fields:
        if (reason := reasons.get(_leaf(name))) is not None:
            raise ConfigError(f"{_leaf(name)} is not taken here: {reason}")
    if (learned := request.learns) != "labels":
        raise ConfigError(
            f"accuracy is measured here, so labels are what is learned; got objective {learned}. "
            f"Pre-train with objective={learned}, and give that run as the model."
        )


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


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


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
) -> Choice:
    """Choose for this many images of this size: Table 4 for a checkpoint, small data from scratch otherwise.

    A `small` checkpoint, which Table 4's models are not, is fine-tuned on few images by a recipe of its own. A model
    that is `held` in memory keeps its image size.

    Of fields that are given no reason is told, since they are not chosen.
    """
    count = len(source)
    dev = 0.0 if has_val else next((share for below, share in DEV if count < below), 0.01)
    why = [f"{count:,} training images {_classes_of(source)}"]
    without = len(source.class_names) - int((np.unique(source.labels) >= 0).sum())
    if 2 * without > len(source.class_names):
        why.append(f"{without:,} of these classes have no image: are labels numbered from 0?")
    if not has_val and "validation_share" not in given:
        why.append(f"{dev:.0%} of them kept back to choose by, as there is no val split")
    if not pretrained or model is None:
        return _from_scratch(source, model, held, dev, why, given)
    batch, rule = batch_for(count), hyperrule(count).training
    changes: dict[str, Any] = {"batch_size": batch, "validation_share": dev}
    if resnet:
        why.append(f"BiT's HyperRule: {rule.steps:,} steps for a set of this size")
        return Choice(model=model, training=adjust(rule, {**changes, "image_size": None}), reasons=tuple(why))
    if small and count < FEW and "margin" not in given:  # which images that are mixed have not
        found, changes["steps"] = recipe("finetune/small"), rule.steps
        how = "the recipe finetune/small, as the model is small and the images are few: AdamW{at}, less in lower layers"
        at, length = "1e-3", f"{rule.steps:,} steps of {batch} images; minutes=10 takes as many as fit"
        larger = "larger is slower and often better: image_size=96"
    else:
        found = recipe(next((name for below, name in TABLE_4 if count < below), "finetune/imagenet"))
        changes |= {"image_size": None, "recipe": "finetune"}
        how, at = "Table 4's SGD{at}, cosine, clip 1, zero head", f"{found.training.optimizer.learning_rate:g}"
        length = f"{rule.steps:,} steps, as the paper takes for sets of this size, of {batch} images"
        larger = "the paper goes higher: image_size=384"
    why.append(how.format(at="" if "learning_rate" in given else f" at {at}"))
    if not {"steps", "epochs", "batch_size"} & set(given):
        why.append(length)
    if "image_size" not in given:
        why.append(f"the model's own image size; {larger}")
    return Choice(model=model, training=adjust(found.training, changes), reasons=tuple(why), rates=found.rates)


def _from_scratch(
    source: Source, model: str | None, held: ModelConfig | None, dev: float, why: list[str], given: Collection[str]
) -> Choice:
    count, side = len(source), middle_side(source)
    size, patch = next(((size, patch) for most, size, patch in FRESH if side <= most), LARGE)
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
        model = f"ViT-Ti/{patch}"
        why.append(
            f"a fresh {model} at {size} pixels, as the images are about {side} pixels; model takes a trained one"
        )
        if count < SMALL_DATA:
            shape = {"depth": 6, "positions": "sinusoidal-2d"}
            why.append("6 of its 12 layers, and positions that need not be learned, as the images are few")
    elif "image_size" not in given:
        own = f"the model's own image size; the images are about {side} pixels"
        why.append(f"{size} pixels, as the images are about {side}" if held is None else own)
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


def batch_for(count: int) -> int:
    """Give the paper's batch of 512 for large sets, and fewer images for small ones."""
    return next((batch for below, batch in ((500, 16), (1_000, 32), (5_000, 64), (20_000, 128)) if count < below), 512)


def middle_side(source: Source) -> int:
    """Give the median of the shorter sides of a few images, spread over the source."""
    sides = []
    for index in np.linspace(0, len(source) - 1, min(LOOKED_AT, len(source))).astype(np.int64).tolist():
        try:
            data = source.read(index)
            if isinstance(data, bytes):
                image = OpenImage(data)
                sides.append(min(image.height, image.width))
            else:
                sides.append(min(data.shape[:2]))
        except ImageError:
            continue
    if not sides:
        raise DataError("none of the images looked at can be decoded. vitrail data check says why.")
    return int(np.median(sides))
