"""What a run says of its way of adapting before it starts."""

from typing import Any

import numpy as np
import pytest

import vitrail


@pytest.mark.parametrize(
    ("each", "fields", "said"),
    [
        (2, {}, r"adapt=full, all weights: 2 images a class and a checkpoint of 0.0 million weights are few enough"),
        (12, {}, r"12 images a class .* are enough for all weights to learn"),
        (110, {}, r"110 images a class .* are many"),
        (2, {"adapt": "head"}, r"adapt=head, as asked, with 2 images a class .*: features stay as they are"),
        (2, {"adapt": "lora", "rank": 2}, r"adapt=lora, as asked, .*a change of low rank"),
    ],
)
def test_a_run_says_which_way_it_takes_and_why(
    each: int, fields: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    images = np.zeros((2 * each, 8, 8, 3), dtype=np.uint8)
    model = vitrail.create("ViT-Ti/8", image_size=8, depth=1, width=24, heads=3, classes=2)
    model.card = vitrail.load("vitrail-ti8").card  # it was trained
    splits = {name: (images, np.arange(2 * each) % 2) for name in ("train", "val")}
    vitrail.finetune(splits, model=model, steps=1, batch_size=2, workers=0, device="cpu", **fields)
    assert re.search(said, capsys.readouterr().err)
