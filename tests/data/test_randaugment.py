"""RandAugment: the table of magnitudes, every operation by its own function, one by one as in a batch."""

import numpy as np
import pytest
import torch
from torch import Tensor

from vitrail.config.recipe import RandAugment
from vitrail.data.transforms import color, geometry
from vitrail.data.transforms.randaugment import EACH, OPERATIONS, plan, randaugment, slots
from vitrail.errors import ShapeError
from vitrail.ops.random import draws


def images(count: int, height: int = 28, width: int = 35) -> Tensor:
    return torch.randint(20, 230, (count, 3, height, width), dtype=torch.uint8)


def choose(name: str, sign: float = 0.0, column: float = 0.0) -> list[float]:
    return [(list(OPERATIONS).index(name) + 0.5) / len(OPERATIONS), sign, column]


def test_the_sixteen_operations_are_all_there_and_as_likely() -> None:
    which, _ = plan(draws(np.arange(32_000), EACH, 0, 0, 5), 15, 8, 8)
    assert len(OPERATIONS) == 16
    assert np.bincount(which, minlength=16) == pytest.approx(np.full(16, 2000), abs=220)


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        ("posterize", 6),
        ("solarize", 384),
        ("solarize_add", 165),
        ("saturation", 2.8),
        ("contrast", 2.8),
        ("brightness", 2.8),
        ("sharpness", 2.8),
    ],
)
def test_magnitude_15_is_what_the_table_says(name: str, parameter: float) -> None:
    _, table = plan(np.array([choose(name)]), 15, 224, 224)
    assert table[0, 0] == pytest.approx(parameter)


def test_maps_and_boxes_are_what_the_table_says() -> None:
    names = ["rotate", "shear_x", "shear_y", "translate_x", "translate_y", "cutout"]
    _, table = plan(np.array([choose(name, 0.4, 0.8) for name in names]), 10, 224, 112)
    one, none = np.ones(1), np.zeros(1)
    expected = [
        geometry.rotations(30 * one, 224, 112),
        geometry.shears(0.3 * one, none),
        geometry.shears(none, 0.3 * one),
        geometry.translations(50 * one, none),  # 100 pixels of 224 are 50 of 112
        geometry.translations(none, 100 * one),
        np.array([[89 - 40, 89 - 20, 80, 40, 0, 0]]),
    ]
    assert table == pytest.approx(np.concatenate(expected))
    _, other = plan(np.array([choose(name, 0.6) for name in names[:-1]]), 10, 224, 112)
    assert other[1:3] == pytest.approx(
        np.concatenate([geometry.shears(-0.3 * one, none), geometry.shears(none, -0.3 * one)])
    )
    assert other[3:, [2, 5]] == pytest.approx(np.array([[50, 0], [0, 100]]))


def test_each_operation_is_its_function() -> None:
    batch = images(16)
    u = np.array([choose(name, 0.3, 0.7) for name in OPERATIONS])
    made = randaugment(batch, u, RandAugment(layers=1, magnitude=6))
    factor = torch.tensor([0.1 + 1.8 * 0.6])
    _, table = plan(u, 6, 28, 35)
    numbers = torch.from_numpy(table).float()
    for place, name in enumerate(OPERATIONS):
        one, row = batch[place : place + 1], numbers[place : place + 1]
        expected = {
            "autocontrast": lambda image, row: color.autocontrast(image),
            "equalize": lambda image, row: color.equalize(image),
            "invert": lambda image, row: 255 - image,
            "posterize": lambda image, row: image & 0b11000000,
            "solarize": lambda image, row: torch.where(image < 153, image, 255 - image),
            "solarize_add": lambda image, row: color.solarize_add(image, torch.tensor([66])),
            "cutout": lambda image, row: geometry.cutout(image, row[:, :4]),
            "saturation": lambda image, row: color.saturation(image, factor),
            "contrast": lambda image, row: color.contrast(image, factor),
            "brightness": lambda image, row: color.brightness(image, factor),
            "sharpness": lambda image, row: color.sharpness(image, factor),
        }.get(name, geometry.affine)(one, row)
        assert torch.equal(made[place : place + 1], expected), name
        assert not torch.equal(made[place], batch[place]), name


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_one_by_one_is_as_in_a_batch(layers: int) -> None:
    batch, config = images(97), RandAugment(layers=layers, magnitude=15)
    u = draws(np.arange(97), slots(config), 3, 1, 5)
    made = randaugment(batch, u, config)
    alone = [randaugment(batch[i : i + 1], u[i : i + 1], config) for i in range(97)]
    assert torch.equal(made, torch.cat(alone))
    assert (made != batch).flatten(1).any(dim=1).float().mean() > 0.8


def test_layers_follow_each_other() -> None:
    batch = images(2)
    u = np.array([choose("invert") + choose("posterize"), choose("posterize") + choose("invert")])
    made = randaugment(batch, u, RandAugment(layers=2, magnitude=5))
    assert torch.equal(made[0], (255 - batch[0]) & 0b11000000)
    assert torch.equal(made[1], 255 - (batch[1] & 0b11000000))


def test_an_empty_batch_and_other_channels_pass() -> None:
    config = RandAugment(layers=2, magnitude=20)
    assert randaugment(images(0), np.zeros((0, 6)), config).shape == (0, 3, 28, 35)
    gray = torch.randint(0, 256, (64, 1, 9, 7), dtype=torch.uint8)
    assert randaugment(gray, draws(np.arange(64), 6, 0, 0, 5), config).shape == gray.shape


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ShapeError, match="expected 6 numbers for each of 4 images"):
        randaugment(images(4), np.zeros((4, 5)), RandAugment())
