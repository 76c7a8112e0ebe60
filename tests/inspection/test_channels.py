"""Pages of models that read other images than photographs: more channels, and numbers of 16 bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.inspection.page import with_color


def test_what_is_shown_has_three_channels_of_eight_bits() -> None:
    five = torch.arange(5 * 6, dtype=torch.uint8).reshape(5, 2, 3)
    assert torch.equal(with_color(five), five[:3])
    dark = torch.linspace(3, 9, 101)[None, None]  # levels of 16 bits, few of which a photograph would show
    found = with_color(torch.stack([dark, 20 * dark]))
    assert found.shape == (2, 3, 1, 101)
    assert torch.equal(found[0], found[1])
    assert found[0, 1, 0, [0, 26, 50, 74, 100]].tolist() == [0, 65, 128, 190, 255]  # the hundredth at each end is cut


@pytest.mark.parametrize("kind", [pytest.param("five", marks=pytest.mark.slow), "deep"])
def test_a_page_shows_images_of_five_channels_and_of_16_bits(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "a").mkdir()
    for number in range(2):
        if kind == "five":
            np.save(tmp_path / "a" / f"{number}.npy", rng.integers(0, 255, (16, 16, 5), dtype=np.uint8))
        else:
            deep = rng.integers(0, 4000, (16, 16), dtype=np.uint16)
            Image.fromarray(deep).save(tmp_path / "a" / f"{number}.tif")
    channels = {"five": 5, "deep": 1}[kind]
    model = vitrail.create("ViT-Ti/8", image_size=16, depth=1, width=24, heads=3, classes=3, channels=channels)
    reading: dict[str, Any] = {} if kind == "five" else {"value_range": (0, 4095)}
    vitrail.save(model, tmp_path / "run")
    vitrail.inspect(tmp_path / "run", tmp_path / "a", out=tmp_path / "page", **reading)
    assert "data:image/png;base64," in (tmp_path / "page" / "report.html").read_text()
