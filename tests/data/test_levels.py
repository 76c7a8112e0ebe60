"""How bright images are, against numpy."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.data.levels import measure_levels
from vitrail.data.open import open_data


def test_levels_are_those_of_all_pixels(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (7, 6, 5, 3), dtype=np.uint8)
    images[..., 1] //= 2
    images[..., 2] //= 3
    found = measure_levels(open_data((images, np.zeros(7, np.int64)))["all"])
    assert found is not None
    pixels = images.reshape(-1, 3).astype(np.float64) / 255
    assert found.images == 7
    assert found.mean == pytest.approx(pixels.mean(axis=0), abs=1e-6)
    assert found.deviation == pytest.approx(pixels.std(axis=0), abs=1e-6)
    some = measure_levels(open_data((images, np.zeros(7, np.int64)))["all"], channels=1, most=2)
    assert some is not None
    assert (some.images, len(some.mean)) == (2, 1)


def test_a_check_shows_them_one_for_all_channels_of_gray_images(tmp_path: Path) -> None:
    for label, level in (("dark", 51), ("bright", 153)):
        (tmp_path / label).mkdir()
        Image.new("L", (40, 40), level).save(tmp_path / label / "a.png")
    (tmp_path / "dark" / "b.png").write_bytes(b"no image")
    found = vitrail.check_data(tmp_path)
    assert "all: mean 0.4000, deviation 0.2000, of 2 images, from 0 to 1" in str(found)
    assert found.document()["splits"]["all"]["levels"] == {"images": 2, "mean": (0.4,), "deviation": (0.2,)}
