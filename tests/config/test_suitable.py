"""Which models an objective can teach: the refusals, of configurations alone."""

from typing import Any

import pytest
from families import FAMILIES

from vitrail.config import PatchStem, override
from vitrail.config.objective import (
    Labels,
    MaskedAutoencoder,
    MaskedPatches,
    NextPixels,
    Objective,
    check_suitable,
    count_of,
)
from vitrail.errors import ConfigError

EVERY: tuple[Objective, ...] = (MaskedPatches(), MaskedAutoencoder(), NextPixels())
PIXELS: dict[str, Any] = {"stem": PatchStem(patch=1), "image_size": (4, 5)}


@pytest.mark.parametrize("objective", EVERY)
@pytest.mark.parametrize(("name", "words"), [("bit", "a BiT has none"), ("vit-hidden", "the tanh layer before")])
def test_what_has_no_patches_or_a_layer_of_labels_learns_labels_alone(
    name: str, words: str, objective: Objective
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_suitable(FAMILIES[name], objective)
    check_suitable(FAMILIES[name], Labels())


@pytest.mark.parametrize(
    ("name", "changes", "objective", "words"),
    [
        ("vit", {"channels": 1}, MaskedPatches(), r"3 channels; the model has 1\. Set target=pixels"),
        ("vit", {"channels": 1}, MaskedPatches(target="small-colors"), r"the model has 1\. Set target=pixels"),
        ("vit", {"image_size": (4, 4)}, MaskedPatches(), r"an image is one patch, .* Give larger images"),
        ("vit", {"image_size": (4, 4)}, MaskedAutoencoder(), "an image is one patch"),
        (
            "vit",
            {"image_size": (4, 8)},
            MaskedAutoencoder(),
            r"is 2; expected 1 to 1\. Set masked=0\.5,",
        ),
        ("vit", {}, MaskedPatches(corrupted=0.01), r"corrupted=0\.01 of 3 x 5 patches is 0; expected 1 to 15"),
        ("hybrid", {}, MaskedAutoencoder(), "a hybrid's ResNet sees them all"),
        ("axial", {}, MaskedAutoencoder(), "got attention=axial"),
        ("vit-relative", {}, MaskedAutoencoder(), "positions=RelativePositions"),
        ("vit-mean", {"causal": True}, MaskedAutoencoder(), "causal=True"),
        ("vit", {}, MaskedAutoencoder(masked=1), r"masked=1 of 3 x 5 patches is 15; expected 1 to 14"),
        ("vit-mean", {"causal": True}, NextPixels(), "needs a token for every pixel"),
        ("vit-mean", PIXELS, NextPixels(), "needs a causal model"),
    ],
)
def test_what_cannot_learn_what_is_asked_is_refused(
    name: str, changes: dict[str, Any], objective: Objective, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        check_suitable(override(FAMILIES[name], changes), objective)


@pytest.mark.parametrize(
    ("name", "changes", "objective"),
    [
        ("vit", {"channels": 1}, MaskedPatches(target="pixels")),
        ("hybrid", {}, MaskedPatches()),
        ("vit", {}, MaskedAutoencoder()),
        ("vit-mean", {**PIXELS, "causal": True}, NextPixels()),
    ],
)
def test_what_can_is_not(name: str, changes: dict[str, Any], objective: Objective) -> None:
    check_suitable(override(FAMILIES[name], changes), objective)


def test_a_share_is_rounded_as_it_is_written() -> None:
    for patches in range(1, 400):
        for hundredths in range(101):
            assert count_of(hundredths / 100, patches) == (2 * hundredths * patches + 100) // 200
