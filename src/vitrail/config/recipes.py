"""The recipes, as data: Tables 3 and 4 of the paper, BiT's HyperRule, AugReg's levels, and small data from scratch.

Pre-training (Table 3) is `DATA/MODEL`, fine-tuning (Table 4) is `finetune/DATA`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from vitrail.config.fields import make, meant
from vitrail.config.objective import MaskedAutoencoder, MaskedPatches, NextPixels
from vitrail.config.recipe import EMA, SGD, Adam, Augmentation, Curve, RandAugment, Schedule, Training
from vitrail.config.words import suggest
from vitrail.errors import ConfigError

# Table 3: models, data, epochs, base rate, curve, weight decay, dropout.
TABLE_3: tuple[tuple[tuple[str, ...], str, tuple[int, ...], float, Curve, float, float], ...] = (
    (("ViT-B/16", "ViT-B/32"), "jft", (7,), 8e-4, "linear", 0.1, 0.0),
    (("ViT-L/32",), "jft", (7,), 6e-4, "linear", 0.1, 0.0),
    (("ViT-L/16",), "jft", (7, 14), 4e-4, "linear", 0.1, 0.0),
    (("ViT-H/14",), "jft", (14,), 3e-4, "linear", 0.1, 0.0),
    (("BiT-R50x1", "BiT-R50x2"), "jft", (7,), 1e-3, "linear", 0.1, 0.0),
    (("BiT-R101x1",), "jft", (7,), 8e-4, "linear", 0.1, 0.0),
    (("BiT-R152x1", "BiT-R152x2"), "jft", (7,), 6e-4, "linear", 0.1, 0.0),
    (("R50+ViT-B/16", "R50+ViT-B/32"), "jft", (7,), 8e-4, "linear", 0.1, 0.0),
    (("R50+ViT-L/32",), "jft", (7,), 2e-4, "linear", 0.1, 0.0),
    (("R50+ViT-L/16",), "jft", (7, 14), 4e-4, "linear", 0.1, 0.0),
    (("ViT-B/16", "ViT-B/32"), "i21k", (90,), 1e-3, "linear", 0.03, 0.1),
    (("ViT-L/16", "ViT-L/32"), "i21k", (30, 90), 1e-3, "linear", 0.03, 0.1),
    (("ViT",), "i1k", (300,), 3e-3, "cosine", 0.3, 0.1),
)
WARMUP_3, BATCH_3 = 10_000, 4096
LINEAR_END = 1e-5  # of the authors' code
# Table 4: steps, and the rates to choose from; the warm-up is the authors' code's.
TABLE_4 = {
    "imagenet": (20_000, (0.003, 0.01, 0.03, 0.06)),
    "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03)),
    "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03)),
    "pets": (500, (0.001, 0.003, 0.01, 0.03)),
    "flowers": (500, (0.001, 0.003, 0.01, 0.03)),
    "vtab": (2_500, (0.01,)),
}
WARMUP_4 = {500: 100}  # else 500
# BiT's HyperRule: examples below which it holds; end of warm-up, drops, end; Mixup.
HYPERRULE = (
    (20_000, (100, 200, 300, 400, 500), 0.0),
    (500_000, (500, 3000, 6000, 9000, 10_000), 0.1),
    (None, (500, 6000, 12_000, 18_000, 20_000), 0.1),
)
OURS = "made here; LOG.md has what it gives"
# Images of the data that recipes of Table 3 are named after: JFT-300M, ImageNet-21k and ImageNet (Section 4.1).
DATA_IMAGES = {"jft": 303_000_000, "i21k": 14_197_122, "i1k": 1_281_167}
HYPERRULE_SMALL = 96  # pixels under which images are trained on at 128, else at 480
# AugReg: RandAugment's layers and magnitude, Mixup's alpha.
AUGREG = {
    "none": (None, 0.0),
    "light1": ((2, 0), 0.0),
    "light2": ((2, 10), 0.2),
    "medium1": ((2, 15), 0.2),
    "medium2": ((2, 15), 0.5),
    "strong1": ((2, 20), 0.5),
    "strong2": ((2, 20), 0.8),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A recipe: its configuration, where it comes from, and the rates to choose from where it names several."""

    training: Training
    source: str
    rates: tuple[float, ...] = ()


def recipe(name: str, *, examples: int | None = None, side: int = HYPERRULE_SMALL) -> Row:
    """Give a recipe by its name; BiT's HyperRule depends on the number of training images and on their sides."""
    if name == "bit/hyperrule":
        if examples is None:
            raise ConfigError("bit/hyperrule depends on the number of training images. Say examples=.")
        return hyperrule(examples, side)
    if name not in RECIPES:
        raise ConfigError(f"there is no recipe {name!r}.{suggest(name, recipe_names())}")
    return RECIPES[name]


def recipe_names() -> tuple[str, ...]:
    """List every recipe."""
    return (*RECIPES, "bit/hyperrule")


def data_images(name: str) -> int | None:
    """Give the images of the data that a recipe is named after, where it is."""
    return DATA_IMAGES.get(name.split("/")[0].split("-")[0])


def hyperrule(examples: int, side: int = HYPERRULE_SMALL) -> Row:
    """Give BiT's rule for fine-tuning on this many images of such sides (Kolesnikov et al., 2020)."""
    (warmup, *drops, end), mixup = next(
        (steps, mixup) for below, steps, mixup in HYPERRULE if below is None or examples < below
    )
    training = Training(
        recipe="bit/hyperrule",
        optimizer=SGD(learning_rate=0.003),
        schedule=Schedule(curve="staircase", warmup_steps=warmup, milestones=tuple(drops)),
        steps=end,
        batch_size=512,
        result="last",
        image_size=(128, 128) if side < HYPERRULE_SMALL else (480, 480),
        augmentation=Augmentation(mixup=mixup),
    )
    return Row(training=training, source="BiT-HyperRule")


# A length, what it takes the place of, and what that is then.
LENGTHS = (
    ("steps", "epochs", None),
    ("epochs", "steps", None),
    ("schedule.warmup_steps", "schedule.warmup_epochs", None),
    ("schedule.warmup_epochs", "schedule.warmup_steps", 0),
)


def adjust(training: Training, changes: Mapping[str, Any]) -> Training:
    """Change fields; steps take the place of epochs, and the other way round, of the run and of its warm-up."""
    changes = meant(Training, vars(training), changes)
    for one, other, nothing in LENGTHS:
        if changes.get(one) is not None and other not in changes:
            changes[other] = nothing
    return make(Training, vars(training), changes)


def fit(training: Training, steps: int) -> tuple[Training, list[str]]:
    """Fit a schedule into the steps that there are, in its own proportions, and say what changed."""
    schedule, said = training.schedule, []
    end = schedule.milestones[-1] if schedule.milestones else 0
    if 2 * schedule.warmup_steps > steps or end >= steps:
        # A tenth of the run, as BiT's longer rules end a tenth after their last drop.
        whole = -(-end * 10 // 9) if end else 10 * schedule.warmup_steps
        warmup = schedule.warmup_steps * steps // whole
        drops = tuple(sorted({max(drop * steps // whole, 1) for drop in schedule.milestones}))
        what, most = f"warm-up of {warmup} steps", max(schedule.warmup_steps, end)
        if drops:
            what += f" and drops after {', '.join(map(str, drops))}"
        said.append(f"{what}, as {most:,} do not fit into {steps:,}")
        training = adjust(training, {"schedule.warmup_steps": warmup, "schedule.milestones": drops})
    return training, said


def _adam(name: str, learning_rate: float, weight_decay: float = 0.0, second: float = 0.999, **fields: Any) -> Training:  # noqa: ANN401
    """Train as in Table 3 where nothing else is said: Adam, a long warm-up, and large batches of 224 pixels."""
    usual = {"schedule": Schedule(warmup_steps=WARMUP_3), "batch_size": BATCH_3, "image_size": (224, 224)}
    usual["result"] = "last"
    optimizer = Adam(learning_rate=learning_rate, betas=(0.9, second), weight_decay=weight_decay)
    return Training(recipe=name, optimizer=optimizer, **usual | fields)


def _pretraining() -> Iterator[Row]:
    for models, data, epochs, rate, curve, decay, dropout in TABLE_3:
        end = LINEAR_END if curve == "linear" else 0.0
        for model, count in product(models, epochs):
            base = data if model == "ViT" else f"{data}/{model}"
            training = _adam(
                base if count == epochs[0] else f"{base}-{count}ep",
                rate,
                decay,
                schedule=Schedule(curve=curve, warmup_steps=WARMUP_3, final_learning_rate=end),
                epochs=count,
                clip_norm=1.0 if data == "i1k" else None,
                dropout=dropout,
                pre_logits=not model.startswith("BiT"),
            )
            yield Row(training=training, source="Table 3")


def _finetuning() -> Iterator[Row]:
    for data, (steps, rates) in TABLE_4.items():
        training = Training(
            recipe=f"finetune/{data}",
            optimizer=SGD(learning_rate=0.01),  # every row has it
            schedule=Schedule(warmup_steps=WARMUP_4.get(steps, 500)),
            steps=steps,
            image_size=(384, 384),
            clip_norm=1.0,
            dropout=0.0,
            stochastic_depth=0.0,
            result="last",
        )
        yield Row(training=training, source="Table 4", rates=rates)
        for side in (512, 518) if data == "imagenet" else ():  # of ViT-L/16 and of ViT-H/14
            changes = {"recipe": f"finetune/imagenet-{side}", "ema": EMA(decay=0.9999), "image_size": (side, side)}
            yield Row(training=adjust(training, changes), source="Tables 2 and 4", rates=rates)


def _augreg() -> Iterator[Row]:
    for (level, (randaugment, mixup)), rate in product(AUGREG.items(), (0.0, 0.1)):
        part = None if randaugment is None else RandAugment(layers=randaugment[0], magnitude=randaugment[1])
        training = _adam(
            f"augreg/{level}{'-reg' if rate else ''}",
            1e-3,
            0.1,
            epochs=300,
            clip_norm=1.0,
            loss="sigmoid",
            head_bias=-6.9,
            augmentation=Augmentation(randaugment=part, mixup=mixup),
            dropout=rate,
            stochastic_depth=rate,
        )
        yield Row(training=training, source="AugReg (Steiner et al., 2021)")


# A few thousand images and minutes: little that makes learning slower (LOG.md has the search).
SMALL = _adam(
    "small",
    7e-4,
    0.05,
    0.99,
    schedule=Schedule(warmup_steps=100, final_learning_rate=1e-5),
    epochs=100,
    batch_size=64,
    image_size=None,
    clip_norm=1.0,
    label_smoothing=0.1,
    ema=EMA(decay=0.999, ramp=True),
    augmentation=Augmentation(crop_area=(0.8, 1.0), mixup=0.2),
    stochastic_depth=0.1,
    result="best",
)
# A small pre-trained model and few images: as SMALL, with lower layers held back, which the paper's models need not.
SMALL_MODEL = {"recipe": "finetune/small", "learning_rate": 1e-3, "crop_area": (0.4, 1.0), "layer_decay": 0.75}
# Small data from scratch, and hours: what a plain ViT needs to go on learning.
SCRATCH = {
    **{"recipe": "scratch", "learning_rate": 1e-3, "batch_size": 128, "crop_area": (0.3, 1.0)},
    **{"randaugment": RandAugment(layers=2, magnitude=9), "cutmix": 1.0, "random_erasing": 0.25},
}
# Masked patch prediction on JFT; 100,000 steps are nearly as good (Section 4.6).
MASKED = _adam("masked-patch", 2e-4, objective=MaskedPatches(), steps=1_000_000)
# He et al. (2022), Table 8: ImageNet-1k; 40 epochs of warm-up.
MAE = _adam(
    "mae",
    2.4e-3,
    0.05,
    0.95,
    objective=MaskedAutoencoder(),
    schedule=Schedule(warmup_steps=12_500),
    epochs=800,
    augmentation=Augmentation(crop_area=(0.2, 1.0)),
)
# Chen et al. (2020), iGPT-S on ImageNet-1k; an epoch of warm-up.
NEXT_PIXEL = _adam(
    "next-pixel",
    3e-3,
    0.0,
    0.95,
    objective=NextPixels(),
    steps=1_000_000,
    batch_size=128,
    image_size=(32, 32),
    augmentation=Augmentation(crop_area=(0.3, 1.0)),
)

# Pixels and objects: as SMALL_MODEL, with crops and colors that go with masks, and boxes that need longer.
DENSE = {"task": "segment", "recipe": "segment", "mixup": 0.0, "label_smoothing": 0.0, "learning_rate": 1e-3}
DENSE |= {"crop_area": (0.6, 1.0), "jitter": 0.3, "layer_decay": 0.9, "batch_size": 16}
DETECT = {"task": "detect", "recipe": "detect", "epochs": 200}

_ROWS = (
    *_pretraining(),
    *_finetuning(),
    *_augreg(),
    Row(training=SMALL, source=OURS),
    Row(training=adjust(SMALL, SCRATCH), source=OURS),
    Row(training=MASKED, source="Appendix B.1.2"),
    Row(training=MAE, source="MAE (He et al., 2022)"),
    Row(training=NEXT_PIXEL, source="iGPT (Chen et al., 2020)"),
    Row(training=adjust(SMALL, SMALL_MODEL), source=OURS),
    Row(training=adjust(SMALL, DENSE), source=OURS),
    Row(training=adjust(adjust(SMALL, DENSE), DETECT), source=OURS),
)
RECIPES: dict[str, Row] = {row.training.recipe: row for row in _ROWS}
