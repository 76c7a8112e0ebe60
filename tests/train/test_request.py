"""What is chosen for a run that says little, by the number and size of the images, and the reasons given."""

import io
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from vitrail.config import Provenance, parse
from vitrail.config.recipe import SGD, Augmentation, Schedule
from vitrail.config.recipes import adjust, recipe
from vitrail.data.decode import ImageError, Pixels
from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.models import Model, create
from vitrail.train.choice import batch_for, choose, choose_recipe, middle_side
from vitrail.train.request import Choice, read_request
from vitrail.train.task import open_start


class Many(Source):
    """As many images as are said, of these sides in turn; each is made when it is read."""

    def __init__(self, count: int, *sides: tuple[int, int], coded: bool = False) -> None:
        self.count, self.sides, self.coded = count, sides, coded
        self.class_names = ("ant", "bee", "cat")
        self.reads = 0

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.zeros(self.count, dtype=np.int64)

    @property
    def fingerprint(self) -> str:
        return "many"

    def read(self, index: int) -> bytes | Pixels:
        self.reads += 1
        height, width = self.sides[index % len(self.sides)]
        if height == 0:
            raise ImageError("spoilt")
        pixels = np.zeros((height, width, 3), dtype=np.uint8)
        if not self.coded:
            return pixels
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        return file.getvalue()

    def name(self, index: int) -> str:
        return str(index)

    def __len__(self) -> int:
        return self.count


@pytest.mark.parametrize(
    ("count", "dev"),
    [(100, 0.1), (19_999, 0.1), (20_000, 0.02), (499_999, 0.02), (500_000, 0.01), (1_300_000, 0.01)],
)
@pytest.mark.parametrize("model", [None, "some.npz"])
def test_the_paper_keeps_back_more_of_fewer_images(count: int, dev: float, model: str | None) -> None:
    source = Many(count, (28, 28))
    pretrained = model is not None
    without = choose(source, model, pretrained=pretrained, has_val=False)
    assert without.training.validation_share == dev
    assert without.reasons[0] == f"{count:,} training images in 3 classes"
    assert f"{dev:.0%} of them kept back to choose by, as there is no val split" in without.reasons
    within = choose(source, model, pretrained=pretrained, has_val=True)
    assert within.training.validation_share == 0
    assert not any("kept back" in reason for reason in within.reasons)


def test_classes_without_images_are_said_where_they_are_most() -> None:
    source = Many(100, (28, 28))
    said = "2 of these classes have no image: are labels numbered from 0?"
    assert said in choose(source, None, pretrained=False, has_val=True).reasons
    source.class_names = ("ant", "bee")
    assert not any("no image" in reason for reason in choose(source, None, pretrained=False, has_val=False).reasons)


@pytest.mark.parametrize(
    ("count", "steps", "warmup", "batch"),
    [
        (499, 500, 100, 16),
        (500, 500, 100, 32),
        (1_000, 500, 100, 64),
        (5_000, 500, 100, 128),
        (19_999, 500, 100, 128),
        (20_000, 10_000, 500, 512),
        (499_999, 10_000, 500, 512),
        (500_000, 20_000, 500, 512),
    ],
)
def test_a_checkpoint_is_fine_tuned_by_table_4(count: int, steps: int, warmup: int, batch: int) -> None:
    source = Many(count, (60, 70))
    choice = choose(source, "some.npz", pretrained=True, has_val=True)
    training = choice.training
    assert (choice.model, dict(choice.changes)) == ("some.npz", {})
    assert (training.steps, training.epochs, training.batch_size) == (steps, None, batch)
    assert training.schedule == Schedule(curve="cosine", warmup_steps=warmup)
    assert training.optimizer == SGD(learning_rate=0.01, momentum=0.9)
    assert (training.clip_norm, training.image_size, training.recipe) == (1.0, None, "finetune")
    text = "; ".join(choice.reasons)
    for said in ("Table 4's SGD at 0.01, cosine, clip 1", f"{steps:,} steps", f"of {batch} images", "image_size=384"):
        assert said in text
    assert source.reads == 0
    assert batch_for(count) == batch
    assert choice.rates == ((0.001, 0.003, 0.01, 0.03) if count < 500_000 else (0.003, 0.01, 0.03, 0.06))
    told = choose(source, "some.npz", pretrained=True, has_val=True, given=["learning_rate"]).reasons
    assert "Table 4's SGD, cosine, clip 1, zero head" in told


@pytest.mark.parametrize(
    ("count", "steps", "mixup"), [(3_000, 500, 0.0), (20_000, 10_000, 0.1), (500_000, 20_000, 0.1)]
)
def test_a_resnet_is_fine_tuned_by_the_hyperrule(count: int, steps: int, mixup: float) -> None:
    choice = choose(Many(count, (60, 70)), "BiT.npz", pretrained=True, has_val=False, resnet=True)
    assert (choice.training.steps, choice.training.optimizer) == (steps, SGD(learning_rate=0.003))
    assert choice.training.schedule.curve == "staircase"
    assert choice.training.augmentation == Augmentation(mixup=mixup)
    assert choice.rates == ()  # its own, alone
    assert choice.reasons[-1] == f"BiT's HyperRule: {steps:,} steps for a set of this size"


@pytest.mark.parametrize(
    ("side", "size", "patch"),
    [
        (28, 28, 7),
        (32, 28, 7),
        (33, 32, 4),
        (48, 32, 4),
        (64, 64, 8),
        (80, 64, 8),
        (96, 96, 8),
        (160, 96, 8),
        (161, 224, 16),
    ],
)
def test_a_fresh_model_goes_by_the_side_of_the_images(side: int, size: int, patch: int) -> None:
    choice = choose(Many(600, (side, side + 50), (side + 90, side)), None, pretrained=False, has_val=False)
    assert choice.model == f"ViT-Ti/{patch}"
    assert choice.training.image_size == (size, size)
    assert dict(choice.changes) == {"depth": 6, "positions": "sinusoidal-2d"}
    assert parse(choice.model, {**choice.changes, "image_size": choice.training.image_size})
    expected = f"a fresh ViT-Ti/{patch} at {size} pixels, as the images are about {side}"
    assert any(expected in reason for reason in choice.reasons)


@pytest.mark.parametrize(("count", "name"), [(600, "small"), (9_999, "small"), (10_000, "scratch")])
def test_few_images_have_the_light_recipe(count: int, name: str) -> None:
    choice = choose(Many(count, (32, 32)), None, pretrained=False, has_val=False)
    base = recipe(name).training
    changes = {"validation_share": 0.1, "batch_size": choice.training.batch_size, "image_size": (28, 28)}
    assert choice.training == adjust(base, changes)
    assert choice.reasons[-1].startswith(f"the recipe {name}")
    assert ("RandAugment" in choice.reasons[-1]) == (base.augmentation.randaugment is not None)
    assert ("CutMix" in choice.reasons[-1]) == (base.augmentation.cutmix > 0)


def test_a_small_set_has_a_shallow_model_and_small_batches() -> None:
    for count, depth, batch in ((49_999, 6, 128), (50_000, None, 128), (700, 6, 32)):
        choice = choose(Many(count, (32, 32)), None, pretrained=False, has_val=True)
        assert choice.changes.get("depth") == depth
        assert choice.training.batch_size == batch
        assert any("6 of its 12 layers" in why for why in choice.reasons) == (depth == 6)


@pytest.mark.parametrize(
    ("model", "side", "size"),
    [("ViT-B/16", 28, 32), ("ViT-B/32", 40, 32), ("ViT-H/14", 64, 70), ("R50+ViT-B/16", 28, 32), ("BiT-R50x1", 28, 28)],
)
def test_a_named_model_gets_an_image_size_that_its_patches_fit(model: str, side: int, size: int) -> None:
    choice = choose(Many(600, (side, side)), model, pretrained=False, has_val=False)
    assert (choice.model, choice.training.image_size, dict(choice.changes)) == (model, (size, size), {})
    assert parse(model, {"image_size": (size, size)})
    assert f"{size} pixels, as the images are about {side}" in choice.reasons


def test_the_middle_of_a_few_shorter_sides_is_taken_whatever_cannot_be_read() -> None:
    source = Many(1000, (30, 99), (99, 50), (0, 0), (70, 80), coded=True)
    assert middle_side(source) == 50
    assert source.reads == 64
    assert middle_side(Many(3, (30, 99), (99, 50), (70, 80))) == 50
    with pytest.raises(DataError, match=r"none of the images looked at can be decoded\. vitrail data check says why"):
        middle_side(Many(5, (0, 0)))


def test_a_small_checkpoint_and_few_images_have_a_recipe_of_their_own() -> None:
    choice = choose(Many(720, (224, 224)), "vitrail-ti8", pretrained=True, has_val=False, small=True)
    assert choice.training.recipe == "finetune/small"
    assert (choice.training.layer_decay, choice.training.steps, choice.training.batch_size) == (0.75, 500, 32)
    assert any("finetune/small" in reason for reason in choice.reasons)
    with_margin = choose(Many(720, (224, 224)), "x", pretrained=True, has_val=False, small=True, given={"margin"})
    assert with_margin.training.recipe == "finetune"
    many = choose(Many(12_000, (224, 224)), "vitrail-ti8", pretrained=True, has_val=False, small=True)
    assert many.training.recipe == "finetune"


def chosen_for(model: str | Model, kind: Literal["finetune", "pretrain"] = "finetune") -> Choice:
    request = read_request(kind, "photos", model, None, (), {})
    return choose_recipe(request, {"all": Many(600, (40, 40))}, open_start(model))


@pytest.mark.parametrize(("name", "size"), [("ViT-Ti/8", 40), pytest.param("BiT-R50x1", 40, marks=pytest.mark.slow)])
def test_a_fresh_model_in_memory_is_trained_as_its_name_would_be(name: str, size: int) -> None:
    model = create(name, image_size=size)
    by_name, fresh = chosen_for(name), chosen_for(model)
    assert fresh.training == adjust(by_name.training, {"image_size": None})
    assert "from scratch, as the model in memory was neither loaded nor trained before" in fresh.reasons
    assert "the model's own image size; the images are about 40 pixels" in fresh.reasons
    assert chosen_for(model, "pretrain").training == fresh.training
    loaded = create(name, image_size=size)
    loaded.card = replace(loaded.card, provenance=Provenance(source="a.npz", layout="google", container="npz"))
    trained = create(name, image_size=size)
    with torch.no_grad():
        trained.get_parameter("norm.bias").add_(0.01)
    for other in (loaded, trained):
        assert chosen_for(other).training.recipe == ("bit/hyperrule" if "BiT" in name else "finetune/small")
        assert not any("from scratch" in reason for reason in chosen_for(other).reasons)
