"""Images of many channels and bits in training: measured against numpy, kept in the card, refused where they differ."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from timm.models import adapt_input_conv

import vitrail
from vitrail.data.levels import range_of, survey
from vitrail.data.open import open_data
from vitrail.errors import ConfigError, DataError

QUICK: dict[str, Any] = {
    "steps": 1,
    "batch_size": 4,
    "image_size": 16,
    "validation_share": 0.0,
    "workers": 0,
    "quiet": True,
}
FRESH = {"model": "ViT-Ti/8", "model.depth": 1, "model.width": 12, "model.heads": 2, "model.mlp_width": 20}


def write(folder: Path, arrays: NDArray[Any]) -> Path:
    for number, array in enumerate(arrays):
        place = folder / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        if number % 4 < 2:
            np.save(place / f"{number}.npy", array)
        else:
            tifffile.imwrite(place / f"{number}.tif", np.moveaxis(array, 2, 0), photometric="minisblack")
    return folder


@pytest.fixture(scope="module")
def arrays() -> NDArray[np.uint16]:
    scale = np.array([100, 400, 900, 0, 3000])
    return (np.random.default_rng(0).random((8, 18, 20, 5)) * scale + [0, 5, 10, 7, 20]).astype(np.uint16)


@pytest.fixture(scope="module")
def deep(arrays: NDArray[np.uint16], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight images of 5 channels with 12 of 16 bits in use; one channel is the same everywhere."""
    return write(tmp_path_factory.mktemp("deep") / "five", arrays)


def test_a_survey_is_what_numpy_says(deep: Path, arrays: NDArray[np.uint16]) -> None:
    found = survey(open_data(deep)["all"])
    assert found is not None
    assert found.value_range == (0, 4095)
    pixels = arrays.reshape(-1, 5).astype(np.float64) / 4095
    assert found.mean == pytest.approx(pixels.mean(axis=0), rel=1e-5)
    assert found.deviation == pytest.approx(pixels.std(axis=0), rel=1e-5, abs=1e-9)
    assert found.least == tuple(arrays.min(axis=(0, 1, 2)))
    assert found.most == tuple(arrays.max(axis=(0, 1, 2)))


def test_real_numbers_are_measured_from_their_least_to_their_most(tmp_path: Path) -> None:
    arrays = (np.random.default_rng(1).normal(3, 2, (6, 9, 11, 2))).astype(np.float32)
    found = survey(open_data(write(tmp_path / "real", arrays))["all"])
    assert found is not None
    low, high = float(arrays.min()), float(arrays.max())
    assert found.value_range == (low, high)
    pixels = (arrays.reshape(-1, 2).astype(np.float64) - low) / (high - low)
    assert found.mean == pytest.approx(pixels.mean(axis=0), rel=1e-5)
    assert found.deviation == pytest.approx(pixels.std(axis=0), rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "least", "most", "expected"),
    [
        ("uint16", 3, 255, (0, 255)),
        ("uint16", 0, 256, (0, 1023)),
        ("uint16", 0, 65535, (0, 65535)),
        ("uint32", 0, 70000, (0, 2**24 - 1)),
        ("float32", 0.1, 1.0, (0, 1)),
        ("float32", -0.1, 0.5, (-0.1, 0.5)),
        ("int16", -1024, 3071, (-1024, 3071)),
        ("float32", 7, 7, (7, 8)),
    ],
)
def test_the_range_is_of_whole_bits_or_of_the_numbers_themselves(
    kind: str, least: float, most: float, expected: tuple[float, float]
) -> None:
    assert range_of(np.dtype(kind), least, most) == expected


def test_a_check_says_the_channels_and_the_range(deep: Path) -> None:
    found = vitrail.check_data(deep)
    assert "all: 5 channels of 16 bits, from 0 to 3" in str(found)
    assert "value_range=0,4095 holds them" in str(found)
    assert "5 channels 8, sixteen_bit 8" in str(found)
    assert found.document()["splits"]["all"]["levels"]["value_range"] == (0, 4095)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_run_keeps_in_its_card_what_was_measured(
    fresh: bool, deep: Path, arrays: NDArray[np.uint16], tmp_path: Path
) -> None:
    model = FRESH if fresh else {"model": "vitrail-ti8"}
    run = vitrail.finetune(deep, **model, **{"model.channels": 5}, out=tmp_path / "run", **QUICK)
    how = run.model.card.preprocessing
    assert how.value_range == (0, 4095)
    pixels = arrays.reshape(-1, 5).astype(np.float64) / 4095
    assert how.mean == pytest.approx(pixels.mean(axis=0), rel=1e-5)
    spread = pixels.std(axis=0)
    assert how.deviation == pytest.approx(np.where(spread > 1e-9, spread, 1), rel=1e-5)
    read = run.model.preprocess(arrays[1])
    own = run.model.preprocess(deep / "b" / "1.npy")
    assert np.abs((read - own).numpy()).max() == 0
    again = vitrail.finetune(deep, **model, **{"model.channels": 5}, out=tmp_path / "run", **QUICK)
    assert again.again


def test_what_is_said_comes_before_what_is_measured(deep: Path) -> None:
    given = {"value_range": (0, 10_000), "mean": 0.25, "deviation": 0.5}
    run = vitrail.finetune(deep, **FRESH, **{"model.channels": 5}, **given, **QUICK)
    how = run.model.card.preprocessing
    assert (how.value_range, how.mean, how.deviation) == ((0, 10_000), (0.25,), (0.5,))


def test_sixteen_bits_of_gray_keep_the_mean_of_a_checkpoint_and_all_their_bits(tmp_path: Path) -> None:
    arrays = (np.random.default_rng(2).random((4, 17, 19, 1)) * 900).astype(np.uint16)
    run = vitrail.finetune(write(tmp_path / "gray", arrays), model="vitrail-ti8", **QUICK)
    how, before = run.model.card.preprocessing, vitrail.load("vitrail-ti8").card.preprocessing
    assert how.value_range == (0, 1023)
    assert (how.mean, how.deviation) == (before.mean, before.deviation)
    image = run.model.preprocess(arrays[0])
    shown = arrays[0].astype(np.float64) / 1023
    assert float(image.std()) == pytest.approx(shown.std() / before.deviation[0], rel=0.5)  # not the dark of 8 bits


def test_photographs_are_read_as_before(tmp_path: Path) -> None:
    arrays = np.random.default_rng(3).integers(0, 256, (4, 17, 19, 3)).astype(np.uint8)
    run = vitrail.finetune(write(tmp_path / "photos", arrays), model="vitrail-ti8", **QUICK)
    assert run.model.card.preprocessing == vitrail.load("vitrail-ti8").card.preprocessing


def test_five_channels_to_a_model_of_three_are_refused_with_the_cure(deep: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has 5 channels; the model reads 3\. .*model\.channels=5"):
        vitrail.finetune(deep, model="vitrail-ti8", out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_augmentation_of_colors_is_refused_or_left_out(
    deep: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="jitter changes the colors of photographs; the images have 5 channels"):
        vitrail.finetune(deep, **FRESH, **{"model.channels": 5}, jitter=0.3, **QUICK)
    said = {**QUICK, "quiet": False}
    vitrail.finetune(deep, **FRESH, recipe="scratch", **{"model.channels": 5}, out=tmp_path / "run", **said)
    assert "without randaugment, which change the colors of photographs" in capsys.readouterr().err


@pytest.mark.parametrize("channels", [2, 5, 10])
def test_the_first_layer_is_widened_by_timms_rule(channels: int) -> None:
    three, more = vitrail.load("vitrail-ti8"), vitrail.load("vitrail-ti8", channels=channels)
    name = "embedding.projection.weight"
    weight, widened = three.state_dict()[name], more.state_dict()[name]
    patch = 8
    shaped = weight.unflatten(1, (patch, patch, 3)).permute(0, 3, 1, 2)
    found = widened.unflatten(1, (patch, patch, channels)).permute(0, 3, 1, 2)
    assert np.allclose(found, adapt_input_conv(channels, shaped), atol=1e-6)
