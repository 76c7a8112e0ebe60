"""What a study runs with, by scale: the images, the networks of each family, and how they are trained."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vitrail.config.recipes import RECIPES
from vitrail.studies.table import Cell, Images, Network, Place, Train

FAMILIES = ("ViT", "hybrid", "BiT")
WARM = 0.06  # share of a run's steps that warms up
ROWS = {"oxford-iiit-pet": "pets", "oxford-flowers": "flowers"}  # of Table 4, by the names of sets


def vit(patch: int, width: int, depth: int, *, heads: int | None = None, mlp: int | None = None) -> Network:
    """Give a plain ViT of this shape; heads of 32 features and an MLP of four times the width where none is said."""
    shape = {"width": width, "depth": depth, "mlp_width": mlp or 4 * width, "heads": heads or width // 32}
    return Network(model=f"ViT-Ti/{patch}", fields=shape)


def hybrid(units: tuple[int, ...], stem: int, patch: int, width: int, depth: int) -> Network:
    """Give a hybrid: a ResNet of so many units a stage, and a ViT on its map."""
    shape = {"width": width, "depth": depth, "mlp_width": 4 * width, "heads": width // 32}
    return Network(model="R+ViT-Ti/16", fields={"stem.units": units, "stem.width": stem, "stem.patch": patch, **shape})


def bit(units: tuple[int, ...], width: int) -> Network:
    """Give a BiT of so many units a stage."""
    return Network(model="BiT-R50x1", fields={"units": units, "width": width})


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Everything that the cells of all studies share at a scale."""

    name: str
    words: str  # what it runs on and how long it takes
    upstream: Images  # to pre-train on, and whose test images accuracies are of
    few: Images  # for few shots of frozen features
    shots: int
    targets: tuple[Images, ...]  # to fine-tune on
    networks: Mapping[str, Network]  # the usual one of each family
    steps: int | None  # of a pre-training; None: as its recipe has it
    tuning_steps: int | None
    recipe: str  # of pre-training; {model} stands for the model's name
    tuning_recipe: str  # {data} stands for the row of Table 4
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the pre-training
    tuning_fields: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 3
    minutes: Mapping[str, float] = field(default_factory=dict)  # that a study may take, by its name
    pack: bool = True  # images are decoded once

    def pretrain(self, at: Place, network: Network, *, length: float = 1.0, few: bool = True, **fields: Any) -> Cell:  # noqa: ANN401
        """Train a fresh network on the upstream images; `length` times the usual steps."""
        images = fields.pop("images", self.upstream)
        patience, recipe = fields.pop("patience", None), fields.pop("recipe", self.recipe_of(network))
        given = {**self.fields, **self._length(self.steps, length, recipe), **fields}
        work = Train(
            network=network,
            images=images,
            recipe=recipe,
            fields=given,
            few=self.few if few else None,
            shots=self.shots,
            patience=patience,
        )
        return Cell(at=at, work=work)

    def finetune(self, at: Place, begins: Cell, images: Images, *, length: float = 1.0, **fields: Any) -> Cell:  # noqa: ANN401
        """Fine-tune the network of another cell."""
        assert isinstance(begins.work, Train)
        fresh = bool(fields.pop("fresh_positions", False))
        recipe = self.tuning_recipe.format(data=ROWS.get(images.name, images.name))
        given = {**self.tuning_fields, **self._length(self.tuning_steps, length, recipe), **fields}
        given.setdefault("image_size", images.image_size)
        work = Train(
            network=begins.work.network,
            images=images,
            recipe=recipe,
            fields=given,
            begins=begins.name,
            fresh_positions=fresh,
        )
        return Cell(at=at, work=work)

    @property
    def metric(self) -> str:
        """What the paper compares in its ablations: few shots; at smaller scales accuracy, which is less noisy."""
        return "fewshot" if self.name == "paper" else "accuracy"

    def recipe_of(self, network: Network) -> str:
        """Give the recipe of a network; of one that Table 3 has no row of, that of ViT-B/16."""
        named = self.recipe.format(model=network.model)
        return named if named in RECIPES else self.recipe.format(model="ViT-B/16")

    def _length(self, steps: int | None, length: float, recipe: str) -> dict[str, Any]:
        if steps is not None:
            return lengths(round(steps * length))
        usual = RECIPES[recipe].training
        if length == 1.0:
            return {}
        return {"epochs": usual.epochs * length} if usual.epochs else {"steps": round((usual.steps or 0) * length)}


def lengths(steps: int) -> dict[str, Any]:
    """Give a run's length, and what goes with it: its warm-up, and how often it is saved and measured."""
    steps = max(steps, 1)
    every = max(steps // 4, 1)
    return {"steps": steps, "schedule.warmup_steps": round(WARM * steps), "save_every": every, "evaluate_every": every}


def lengthened(cell: Cell, factor: float) -> Cell:
    """Give a cell whose run has so many times the steps."""
    if not isinstance(cell.work, Train) or "steps" not in cell.work.fields:
        return cell
    changed = lengths(round(cell.work.fields["steps"] * factor))
    return Cell(at=cell.at, work=replace(cell.work, fields={**cell.work.fields, **changed}))


# From scratch and alike for all families: nothing that only one of them has.
ALIKE: dict[str, Any] = {
    "validation_share": 0.0,
    "ema": None,
    "stochastic_depth": 0.0,
    "result": "last",
    "keep": 1,
}

SMOKE = Scale(
    name="smoke",
    words="seconds on any machine, to see that all of it runs; its numbers mean nothing",
    upstream=Images(name="scenes-shape", image_size=32, per_class=8),
    few=Images(name="scenes-colour", image_size=32, per_class=8),
    shots=2,
    targets=(
        Images(name="scenes-cell", image_size=32, per_class=3),
        Images(name="scenes-count", image_size=32, per_class=8),
    ),
    networks={"ViT": vit(8, 32, 2), "hybrid": hybrid((1,), 32, 2, 32, 1), "BiT": bit((1,), 32)},
    steps=3,
    tuning_steps=2,
    recipe="small",
    tuning_recipe="small",
    fields={**ALIKE, "batch_size": 8, "image_size": 32},
    tuning_fields={**ALIKE, "batch_size": 8},
    seeds=1,
    pack=False,
)
CPU = Scale(
    name="cpu",
    words="minutes on two cores, on the images in the box and on drawn scenes",
    upstream=Images(name="sample", image_size=28),
    few=Images(name="scenes-shape", image_size=28),
    shots=25,
    targets=(
        Images(name="scenes-shape", image_size=28),
        Images(name="scenes-colour", image_size=28),
        Images(name="scenes-cell", image_size=28),
    ),
    networks={"ViT": vit(7, 96, 4), "hybrid": hybrid((1,), 32, 1, 64, 2), "BiT": bit((1, 1, 1), 32)},
    steps=240,
    tuning_steps=80,
    recipe="small",
    tuning_recipe="small",
    fields={**ALIKE, "batch_size": 64, "image_size": 28, "learning_rate": 1e-3, "mixup": 0.0},
    tuning_fields={**ALIKE, "batch_size": 64, "learning_rate": 5e-4, "mixup": 0.0},
)
GPU = Scale(
    name="gpu",
    words="minutes on one GPU, on Tiny-ImageNet's subset and Oxford-IIIT Pet (--data)",
    upstream=Images(name="tiny-imagenet", image_size=64),
    few=Images(name="oxford-iiit-pet", image_size=64),
    shots=10,
    targets=(
        Images(name="oxford-iiit-pet", image_size=64),
        Images(name="sample", image_size=64),
        Images(name="scenes-orientation", image_size=64),
        Images(name="scenes-count", image_size=64),
    ),
    networks={"ViT": vit(8, 192, 6), "hybrid": hybrid((1, 1), 32, 1, 192, 6), "BiT": bit((2, 2, 2, 2), 64)},
    steps=2000,
    tuning_steps=500,
    recipe="small",
    tuning_recipe="small",
    fields={**ALIKE, "batch_size": 512, "image_size": 64, "learning_rate": 1e-3, "crop_area": (0.35, 1.0)},
    tuning_fields={**ALIKE, "batch_size": 128, "learning_rate": 5e-4, "crop_area": (0.35, 1.0)},
    minutes={
        **dict.fromkeys(("positions", "data-size", "scaling"), 7.5),
        **dict.fromkeys(("head", "resolution", "shape", "transfer"), 5.0),
        **dict.fromkeys(("optimizers", "speed"), 4.0),
        **dict.fromkeys(("axial", "distance"), 3.0),
    },
)
PAPER = Scale(
    name="paper",
    words="the paper's own configuration, for those who have its data and a cluster",
    upstream=Images(name="jft-300m", image_size=224),
    few=Images(name="imagenet", image_size=224),
    shots=5,
    targets=tuple(
        Images(name=name, image_size=384)
        for name in ("imagenet", "cifar10", "cifar100", "oxford-iiit-pet", "oxford-flowers")
    ),
    networks={
        "ViT": Network(model="ViT-B/16"),
        "hybrid": Network(model="R50+ViT-B/16"),
        "BiT": Network(model="BiT-R50x1"),
    },
    steps=None,
    tuning_steps=None,
    recipe="jft/{model}",
    tuning_recipe="finetune/{data}",
)
SCALES = {scale.name: scale for scale in (SMOKE, CPU, GPU, PAPER)}
