"""What somebody is told who gives images and nothing else: where a run begins, and what the images lack."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitrail.checkpoint.run_folder import boxed, write_documents
from vitrail.config import parse
from vitrail.data.decode import Pixels
from vitrail.data.source import Source
from vitrail.data.sources.memory import MemorySource
from vitrail.train.choice import BOX, FEW, choose, choose_recipe, choose_start, describe_small
from vitrail.train.gaps import describe_gaps
from vitrail.train.request import TrainRequest, read_request
from vitrail.train.task import Parts, open_start


class Sized(MemorySource):
    """Images of these sides in turn."""

    sides: Sequence[tuple[int, int]] = ()

    def read(self, index: int) -> Pixels:
        return np.zeros((*self.sides[index % len(self.sides)], 3), dtype=np.uint8)


def images_of(*counts: int, sides: Sequence[tuple[int, int]] = ((40, 50),)) -> Sized:
    """Give so many images of each class."""
    labels = np.repeat(np.arange(len(counts)), counts)
    source = Sized(np.zeros((len(labels), 1, 1, 3), dtype=np.uint8), labels, tuple("abcdefghijkl"[: len(counts)]))
    source.sides = sides
    return source


def request(kind: Any = "finetune", **more: Any) -> TrainRequest:
    fields = {name: value for name, value in more.items() if name not in ("model", "recipe")}
    return read_request(kind, "photos", more.get("model"), more.get("recipe"), (), fields)


def test_a_run_that_names_no_model_begins_with_the_one_in_the_box_and_says_how_not_to() -> None:
    splits = {"all": images_of(30, 30)}
    begins, (why,) = choose_start(request(dropout=0.1, **{"model.checkpointing": True}), splits)
    assert begins == BOX
    assert BOX in boxed()
    assert "the model in the box" in why
    assert "another with model=..., a fresh one with model=ViT-Ti/8" in why
    assert choose_start(request(model="ViT-Ti/16"), splits) == ("ViT-Ti/16", [])
    found = choose_recipe(request(model=begins), splits, open_start(begins))
    assert (found.model, found.training.recipe) == (BOX, "finetune/small")


@pytest.mark.parametrize(
    ("asked", "count", "why"),
    [
        (request(**{"model.depth": 3}), 20, "as depth is given, which its weights decide"),
        (request(patch_size=4), 20, "as stem.patch is given"),
        (request(objective="mae"), 20, "as labels are not what is learned"),
        (request(), FEW, f"as {FEW:,} images can teach more than it knows"),
    ],
)
def test_where_the_box_does_not_suit_the_reason_is_said(asked: TrainRequest, count: int, why: str) -> None:
    source = MemorySource(np.zeros((count, 1, 1, 3), dtype=np.uint8), np.zeros(count, dtype=np.int64), ("a",))
    begins, said = choose_start(asked, {"all": source})
    assert begins is None
    assert said == [f"not from the model in the box, {said[0].split(', ', 1)[1]}"]
    assert why in said[0]
    assert f"model={BOX} begins with it" in said[0]


def test_pretraining_recipes_and_runs_begun_without_the_box_stay_without_it(tmp_path: Path) -> None:
    splits = {"all": images_of(5, 5)}
    assert choose_start(request("pretrain"), splits) == (None, [])
    assert choose_start(request(recipe="small"), splits) == (None, [])
    write_documents(tmp_path, {"training.json": {"model": "ViT-Ti/7"}})
    assert choose_start(request(), splits, tmp_path) == (None, [])
    write_documents(tmp_path, {"training.json": {"model": BOX}})
    assert choose_start(request(), splits, tmp_path)[0] == BOX


@pytest.mark.parametrize(
    ("values", "model", "told"),
    [
        ({"image_size": (64, 64)}, "ViT-Ti/8", "a fresh ViT-Ti/8 at 64 pixels, as asked"),
        ({"image_size": (60, 90)}, "ViT-Ti/6", "a fresh ViT-Ti/6 at 60x90 pixels, as asked"),
        ({"patch": 4, "image_size": (32, 32)}, "ViT-Ti/4", "a fresh ViT-Ti/4 at 32 pixels, as asked"),
        ({}, "ViT-Ti/16", "a fresh ViT-Ti/16 at 224 pixels, as the images are about 300 pixels"),
    ],
)
def test_what_is_told_of_a_fresh_model_is_what_is_made(values: dict[str, Any], model: str, told: str) -> None:
    source = images_of(4, sides=[(300, 400)])
    found = choose(source, None, pretrained=False, has_val=True, given=values, values=values)
    assert found.model == model
    assert any(reason.startswith(told) for reason in found.reasons), found.reasons
    assert parse(model, {**found.changes, "image_size": values.get("image_size", found.training.image_size)})


def test_what_is_given_is_neither_chosen_nor_told_otherwise() -> None:
    source, values = images_of(9, 9), {"depth": 3, "batch_size": 5}
    found = choose(source, None, pretrained=False, has_val=True, given={"batch_size"}, values=values)
    assert found.changes == {"positions": "sinusoidal-2d"}
    assert "positions that need not be learned, as the images are few" in found.reasons
    assert any("100 epochs, 5 images a step" in reason for reason in found.reasons)
    tuned = choose(source, "x", pretrained=True, has_val=True, small=True, given={"batch_size"}, values=values)
    assert any(reason.startswith("500 steps of 5 images") for reason in tuned.reasons)
    short = choose(source, "x", pretrained=True, has_val=True, small=True, given={"epochs"}, values={"epochs": 2})
    assert "16 images a step" in short.reasons
    assert not any("500" in reason for reason in short.reasons)


def gaps(train: Source, val: Source | None = None) -> list[str]:
    return list(describe_gaps(Parts(train=train, val=val, test=None)))


def test_what_the_images_lack_is_said_by_name() -> None:
    assert gaps(images_of(3, 4), images_of(1, 1)) == []
    assert gaps(images_of(3)) == ["there is one class alone, a: nothing to learn from it"]
    for val in (None, images_of(1, 0, 1)):  # said once
        assert gaps(images_of(3, 0, 2), val) == ["no image to train on of b: the model cannot learn it"]
    assert gaps(images_of(3, 1, 2, 1), images_of(1, 0, 0, 1)) == [
        "one image to train on and none to validate with of b",
        "no image to validate with of c",
    ]
    (many,) = gaps(images_of(*[0] * 11, 3))
    assert "of a, b, c, d, e, f, g, h and 3 more: the model cannot learn them" in many


def test_images_smaller_than_a_patch_are_named() -> None:
    source = images_of(3, 2, sides=[(40, 50), (1, 1), (9, 7)])
    (said,) = describe_small(source, parse("ViT-Ti/8"))
    assert said.startswith("3 of the 5 images are smaller than a patch of 8 pixels: ")
    assert "(1x1)" in said
    assert "(9x7)" in said
    assert describe_small(source, parse("BiT-R50x1")) == []
    assert describe_small(images_of(3), parse("ViT-Ti/8")) == []
