"""Preprocessing as people say it: names, fields, other libraries' words, and what is refused."""

import re
from typing import Any

import numpy as np
import pytest

from vitrail.config import Card, Preprocessing, Provenance, read_preprocessing
from vitrail.config.preprocessing import DECISIVE
from vitrail.errors import ConfigError

CAME = Provenance(source="x.pth", layout="timm", container="pth", assumed=DECISIVE)


def test_a_name_is_a_whole_preprocessing_and_fields_are_changes_to_it() -> None:
    found = read_preprocessing({"preprocessing": "imagenet", "mean": 0.25, "device": "cpu"})
    expected = {"mean": (0.25,) * 3, "deviation": (0.229, 0.224, 0.225), "resize": "crop", "crop_share": 0.875}
    assert found == {**expected, "interpolation": "bilinear", "antialias": True, "value_range": None}
    assert read_preprocessing({"preprocessing": "Google"}) == read_preprocessing({"preprocessing": Preprocessing()})
    assert read_preprocessing({"preprocessing": "mnist"})["mean"] == (0.1307,)
    assert read_preprocessing({"mean": None, "image_size": 28}) == {}


def test_words_of_other_libraries_mean_the_fields() -> None:
    said = {"mean": np.array([0.1, 0.2, 0.3]), "std": 0.5, "crop_pct": 0.9, "interpolation": "bicubic"}
    expected = {"mean": (0.1, 0.2, 0.3), "deviation": (0.5,) * 3, "crop_share": 0.9, "interpolation": "bicubic"}
    assert read_preprocessing(said) == expected
    assert read_preprocessing({"preprocessing": said}) == expected
    assert read_preprocessing({"preprocessing": said, "resize": "squash"}) == {**expected, "resize": "squash"}


def test_another_resize_crops_nothing_unless_it_is_said() -> None:
    base = Preprocessing(resize="crop", crop_share=0.875)
    assert base.changed({"resize": "squash"}).crop_share == 1
    assert base.changed({"resize": "crop"}).crop_share == 0.875
    assert base.changed({"resize": "squash", "crop_share": 0.9}).crop_share == 0.9


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"preprocessing": "imagnet"}, "there is no preprocessing 'imagnet'. Did you mean 'imagenet'? There are: auth"),
        ({"preprocessing": "measure"}, "preprocessing=measure chooses by labels, and vitrail.evaluate alone does so"),
        ({"preprocessing": 5}, "preprocessing must be a name, a Preprocessing or its fields; got 5."),
        ({"preprocessing": {"means": 0.5}}, "preprocessing has no field 'means'. Did you mean 'mean'?"),
        ({"deviation": 0}, "deviation must be positive; got 0."),
        ({"std": [0.5, -1, 0.5]}, "deviation must be positive; got -1."),
        ({"deviation": 0.5, "std": 0.5}, "deviation is given twice, as std too. Give it once."),
        ({"mean": "0.5"}, "mean must be a finite number; got '0.5'."),
        ({"mean": []}, "mean must be a number for each channel; got ()."),
        ({"mean": 127.5}, "mean is of levels from 0 to 1; got 127.5. Divide what is of levels from 0 to 255 by 255."),
        ({"mean": (0.1, 0.2), "deviation": (0.1, 0.2, 0.3)}, "mean and deviation must be as many; got 2 and 3."),
        ({"resize": "stretch"}, "resize must be one of 'squash', 'crop'; got 'stretch'."),
        ({"crop": 1.5}, "crop_share must be at most 1; got 1.5."),
        ({"interpolation": "random"}, "interpolation must be one of 'nearest', 'bilinear', 'bicubic', 'lanczos'"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(untyped: None, said: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(error)):
        read_preprocessing(said)


def test_what_is_given_is_no_longer_assumed_and_the_rest_is_still_said() -> None:
    card = Card(provenance=CAME, metrics={"accuracy": 0.5})
    assert card.assumption((224, 160)) == (
        "preprocessing is not in the file: assumed the authors' (mean 0.5, deviation 0.5, squashed to 224x160); "
        "give preprocessing=... where it was another"
    )
    levels = card.prepared({"mean": (0.1,), "deviation": (0.2,)}, channels=3)
    expected = "preprocessing is not all in the file: assumed squashed to 9x9; give resize=... where it was another"
    assert levels.assumption((9, 9)) == expected
    assert levels.metrics == {}
    framed = card.prepared({"resize": "crop", "crop_share": 0.875}, channels=3)
    assert "not all in the file: assumed the authors' (mean 0.5, deviation 0.5); give mean=" in str(
        framed.assumption((9, 9))
    )
    assert levels.prepared({"resize": "squash"}, channels=3).assumption((9, 9)) is None
    assert Card().assumption((9, 9)) is None


def test_means_that_differ_are_never_averaged_silently() -> None:
    known = Provenance(source="x", layout="hf", container="safetensors")
    colors = Card(preprocessing=Preprocessing(mean=(0.1, 0.2, 0.6), deviation=(0.2,) * 3), provenance=known)
    gray = colors.for_channels(1)
    assert gray.preprocessing.mean == pytest.approx((0.3,))
    assert "assumed mean 0.3, deviation 0.2, averaged over the channels; give mean=" in str(gray.assumption((9, 9)))
    alike = Card(preprocessing=Preprocessing(mean=(0.5,) * 3, deviation=(0.5,) * 3), provenance=known)
    assert alike.for_channels(1).assumption((9, 9)) is None
    assert colors.for_channels(3) is colors
    with pytest.raises(ConfigError, match=r"the model reads 1 channel; got mean 0\.485 0\.456 0\.406"):
        colors.prepared(read_preprocessing({"preprocessing": "imagenet"}), channels=1)
