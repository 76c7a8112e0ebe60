"""Files in the authors' names: their answers, other shapes, and what is adapted on the way."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import family
from hypothesis import HealthCheck, given, settings, strategies as st
from reference import cases, models, shapes

import vitrail
from vitrail.config import BiTConfig, HybridStem, PatchStem, ViTConfig
from vitrail.errors import ConfigError
from vitrail.models import ViT
from vitrail.ops.positions import resample_positions

SMALL: dict[str, Any] = {"width": 24, "depth": 2, "heads": 3, "mlp": 40, "patch": 4, "classes": 7}


def write(path: Path, layout: shapes.Shapes, seed: int = 3) -> dict[str, np.ndarray]:
    arrays = {name: cases.draw(name, shape, seed) for name, shape in layout.items()}
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    return arrays


def images_of(height: int, width: int, channels: int = 3) -> torch.Tensor:
    uniform = np.random.RandomState(1).uniform(-1, 1, (2, height, width, channels))
    return torch.from_numpy(uniform.astype(np.float32))


def expected(arrays: dict[str, np.ndarray], images: torch.Tensor) -> torch.Tensor:
    weights = {name: torch.from_numpy(array).double() for name, array in arrays.items()}
    reference = models.bit if any(name.startswith("resnet/") for name in arrays) else models.vit
    return reference(weights, images.double()).float()


LARGE = ("vit_b32_gap_224",)  # its layers are those of others here


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in cases.MODELS]
)
def test_logits_are_the_authors(name: str, tmp_path: Path) -> None:
    case = cases.read(name)
    np.savez(tmp_path / "weights.npz", **cases.draw_weights(case))  # pyright: ignore[reportArgumentType]
    model = vitrail.load(tmp_path / "weights.npz", image_size=tuple(case["size"]))
    images = torch.from_numpy(cases.draw_images(case)).permute(0, 3, 1, 2)
    with torch.inference_mode():
        logits = model(images)
    torch.testing.assert_close(logits, torch.tensor(case["answers"]["logits"]), atol=5e-5, rtol=0)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    depth=st.integers(1, 3),
    heads=st.integers(1, 4),
    head_width=st.integers(1, 9),
    mlp=st.integers(1, 50),
    patch=st.integers(1, 6),
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    classes=st.integers(1, 9),
    hidden=st.none() | st.integers(1, 20),
    token=st.booleans(),
    channels=st.integers(1, 4),
)
def test_any_vit_is_recognized_and_equals_the_slow_reference(
    tmp_path: Path,
    depth: int,
    heads: int,
    head_width: int,
    mlp: int,
    patch: int,
    grid: tuple[int, int],
    classes: int,
    hidden: int | None,
    token: bool,
    channels: int,
) -> None:
    arrays = write(
        tmp_path / "vit.npz",
        shapes.vit(
            width=heads * head_width,
            depth=depth,
            heads=heads,
            mlp=mlp,
            patch=patch,
            tokens=grid[0] * grid[1] + token,
            classes=classes,
            channels=channels,
            hidden=hidden,
            token=token,
        ),
    )
    model = vitrail.load(tmp_path / "vit.npz", grid=grid)
    assert model.config == ViTConfig(
        stem=PatchStem(patch=patch),
        depth=depth,
        width=heads * head_width,
        mlp_width=mlp,
        heads=heads,
        classes=classes,
        image_size=(grid[0] * patch, grid[1] * patch),
        channels=channels,
        pooling="token" if token else "mean",
        pre_logits=hidden,
    )
    images = images_of(grid[0] * patch, grid[1] * patch, channels)
    torch.testing.assert_close(model(images.permute(0, 3, 1, 2)), expected(arrays, images), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("units", "root", "patch", "size", "grid"),
    [((1, 2), 64, 1, (41, 53), (6, 7)), ((), 32, 3, (50, 37), (4, 3)), ((1, 1, 2, 1), 32, 1, (65, 70), (3, 3))],
)
@pytest.mark.parametrize("token", [True, False])
def test_any_hybrid_is_recognized_and_equals_the_slow_reference(
    tmp_path: Path,
    units: tuple[int, ...],
    root: int,
    patch: int,
    size: tuple[int, int],
    grid: tuple[int, int],
    token: bool,
) -> None:
    tokens = grid[0] * grid[1] + token
    layout = shapes.vit(**{**SMALL, "patch": patch}, tokens=tokens, token=token, units=units, root=root)
    arrays = write(tmp_path / "hybrid.npz", layout)
    model = vitrail.load(tmp_path / "hybrid.npz", image_size=size, grid=grid)
    assert isinstance(model.config, ViTConfig)
    assert model.config.stem == HybridStem(units=units, width=root, patch=patch)
    images = images_of(*size)
    torch.testing.assert_close(model(images.permute(0, 3, 1, 2)), expected(arrays, images), atol=5e-5, rtol=0)


@pytest.mark.parametrize(("units", "factor", "size"), [((1, 2), 1, (37, 52)), ((2, 1, 1, 1), 2, (64, 33))])
def test_any_bit_is_recognized_and_equals_the_slow_reference(
    tmp_path: Path, units: tuple[int, ...], factor: int, size: tuple[int, int]
) -> None:
    arrays = write(tmp_path / "bit.npz", shapes.bit(units=units, factor=factor, classes=5))
    model = vitrail.load(tmp_path / "bit.npz", image_size=size)
    assert model.config == BiTConfig(units=units, width=64 * factor, classes=5, image_size=size)
    images = images_of(*size)
    torch.testing.assert_close(model(images.permute(0, 3, 1, 2)), expected(arrays, images), atol=5e-5, rtol=0)


def test_a_new_image_size_resamples_the_positions(tmp_path: Path) -> None:
    arrays = write(tmp_path / "vit.npz", shapes.vit(**SMALL, tokens=1 + 3 * 5))
    table = torch.from_numpy(arrays["Transformer/posembed_input/pos_embedding"][0])
    model = vitrail.load(tmp_path / "vit.npz", grid=(3, 5), image_size=(28, 16))
    assert isinstance(model, ViT)
    torch.testing.assert_close(
        model.get_parameter("positions.table.0"), resample_positions(table, (3, 5), (7, 4)), atol=0, rtol=0
    )
    on_the_fly = vitrail.load(tmp_path / "vit.npz", grid=(3, 5))
    images = images_of(28, 16).permute(0, 3, 1, 2)
    torch.testing.assert_close(model(images), on_the_fly(images))


def test_a_table_whose_length_is_a_square_is_a_square_grid(tmp_path: Path) -> None:
    write(tmp_path / "vit.npz", shapes.vit(**SMALL, tokens=1 + 36))
    assert vitrail.load(tmp_path / "vit.npz").config.image_size == (24, 24)
    assert vitrail.load(tmp_path / "vit.npz", grid=(4, 9)).config.image_size == (16, 36)
    write(tmp_path / "long.npz", shapes.vit(**SMALL, tokens=1 + 15))
    assert vitrail.load(tmp_path / "long.npz", image_size=(20, 12)).config.image_size == (20, 12)


def test_new_classes_give_a_zero_head_and_drop_the_pretraining_layer(tmp_path: Path) -> None:
    arrays = write(tmp_path / "vit.npz", shapes.vit(**SMALL, tokens=1 + 9, hidden=11))
    images = images_of(12, 12).permute(0, 3, 1, 2)
    kept = vitrail.load(tmp_path / "vit.npz")
    assert kept.config.classes == 7
    fresh = vitrail.load(tmp_path / "vit.npz", classes=5, head_bias=-6.9)
    assert isinstance(kept, ViT)
    assert isinstance(fresh, ViT)
    assert fresh.hidden is None
    assert fresh.get_parameter("head.weight").shape == (5, 24)
    assert (fresh(images) == -6.9).all()
    torch.testing.assert_close(fresh.represent(images), kept.tokens(images)[:, 0])
    tanh = vitrail.load(tmp_path / "vit.npz", classes=5, pre_logits=11)
    torch.testing.assert_close(tanh.represent(images), kept.represent(images))
    assert not tanh.get_parameter("head.weight").any()
    assert arrays["head/kernel"].any()


def test_a_file_without_a_head_gives_its_representation_or_takes_a_new_one(tmp_path: Path) -> None:
    layout = shapes.vit(**SMALL, tokens=1 + 9)
    headless = {name: shape for name, shape in layout.items() if not name.startswith("head/")}
    write(tmp_path / "vit.npz", headless)
    assert vitrail.load(tmp_path / "vit.npz", classes=3)(torch.rand(1, 3, 12, 12)).shape == (1, 3)
    bare = vitrail.load(tmp_path / "vit.npz")
    assert bare.config.classes is None
    images = torch.rand(1, 3, 12, 12)
    assert torch.equal(bare(images), bare.represent(images))


def test_a_loaded_model_evaluates_trains_and_takes_other_fields(tmp_path: Path) -> None:
    write(tmp_path / "vit.npz", shapes.vit(**SMALL, tokens=1 + 9))
    model = vitrail.load(tmp_path / "vit.npz", dropout=0.5, checkpointing=True)
    assert not model.training
    assert model.config.checkpointing
    model.train()(torch.rand(1, 3, 12, 12)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_the_names_of_the_first_release_are_read_too(tmp_path: Path) -> None:
    arrays = write(tmp_path / "vit.npz", shapes.vit(**SMALL, tokens=1 + 9))
    old = {
        "opt/target/"
        + name.replace("Attention_0", "Attention_1")
        .replace("LayerNorm_1", "LayerNorm_2")
        .replace("Block_0", "Block_3"): array
        for name, array in arrays.items()
    }
    np.savez(tmp_path / "old.npz", **old)  # pyright: ignore[reportArgumentType]
    images = images_of(12, 12).permute(0, 3, 1, 2)
    ours, theirs = vitrail.load(tmp_path / "old.npz"), vitrail.load(tmp_path / "vit.npz")
    assert torch.equal(ours(images), theirs(images))


def test_hybrids_and_resnets_of_other_channels_and_widths_are_recognized(tmp_path: Path) -> None:
    layout = shapes.vit(**{**SMALL, "patch": 1}, tokens=1 + 9, units=(1,), root=32, channels=2)
    write(tmp_path / "hybrid.npz", layout)
    assert vitrail.load(tmp_path / "hybrid.npz").config.channels == 2
    write(tmp_path / "bit.npz", shapes.bit(units=(1,), factor=1, classes=5, channels=4))
    assert vitrail.load(tmp_path / "bit.npz").config.channels == 4
    narrow = {
        name: tuple(32 if side == 64 else 128 if side == 256 else side for side in shape)
        for name, shape in shapes.bit(units=(1,), factor=1, classes=5).items()
    }
    write(tmp_path / "narrow.npz", narrow)
    assert vitrail.load(tmp_path / "narrow.npz").config == BiTConfig(units=(1,), width=32, classes=5)


def test_a_model_is_loaded_where_torch_or_the_caller_says(tmp_path: Path) -> None:
    write(tmp_path / "vit.npz", shapes.vit(**SMALL, tokens=1 + 9))
    devices = {parameter.device.type for parameter in vitrail.load(tmp_path / "vit.npz", device="meta").parameters()}
    assert devices == {"meta"}
    with torch.device("meta"):
        placed = vitrail.load(tmp_path / "vit.npz", classes=3)
    assert {parameter.device.type for parameter in placed.parameters()} == {"meta"}
    torch.set_default_dtype(torch.float64)
    try:
        model = vitrail.load(tmp_path / "vit.npz", classes=3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_words_of_other_libraries_are_understood_or_answered(tmp_path: Path) -> None:
    vitrail.save(family("vit-hidden", image_size=(20, 20)), tmp_path / "run")
    words: dict[str, Any] = {
        "num_classes": 5,
        "img_size": (24, 24),
        "in_chans": 1,
        "num_heads": 3,
        "drop_path_rate": 0.1,
    }
    model = vitrail.load(tmp_path / "run", patch_size=8, keep_hidden=True, act_layer="gelu_tanh", **words)
    ours: dict[str, Any] = {"classes": 5, "image_size": (24, 24), "channels": 1, "heads": 3, "stochastic_depth": 0.1}
    other = vitrail.load(tmp_path / "run", patch=8, keep_pre_logits=True, activation="gelu-tanh", **ours)
    assert model.config == other.config
    assert vitrail.load(tmp_path / "run", num_labels=2, representation_width=None).config.classes == 2
    with pytest.raises(ConfigError, match=r"classes and num_classes are one, classes\. Give it once"):
        vitrail.load(tmp_path / "run", classes=3, num_classes=3)
    with pytest.raises(ConfigError, match="load cannot change 'embed_dim', which is width: the file decides"):
        vitrail.load(tmp_path / "run", embed_dim=3)
    with pytest.raises(ConfigError, match="Did you mean 'classes'"):
        vitrail.load(tmp_path / "run", clases=3)
