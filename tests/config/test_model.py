import dataclasses

import numpy as np
import pytest

from vitrail.config import BiTConfig, HybridStem, PatchStem, ViTConfig, as_size, override
from vitrail.errors import ConfigError, ShapeError

SMALL = ViTConfig(stem=PatchStem(patch=8), depth=2, width=24, mlp_width=48, heads=3, image_size=(24, 40))


def test_derived_values_follow_the_fields() -> None:
    assert (SMALL.grid, SMALL.tokens, SMALL.head_width, SMALL.representation) == ((3, 5), 16, 8, 24)
    pooled = dataclasses.replace(SMALL, pooling="mean", pre_logits=7)
    assert (pooled.tokens, pooled.class_tokens, pooled.representation) == (15, 0, 7)


@pytest.mark.parametrize(
    ("stem", "size", "grid"),
    [
        (HybridStem(units=(3, 4, 9)), (224, 384), (14, 24)),
        (HybridStem(units=(3, 4, 6, 3)), (225, 33), (8, 2)),
        (HybridStem(units=(), patch=8), (224, 255), (7, 8)),
        (HybridStem(units=(), patch=8), (223, 251), (7, 7)),
        (HybridStem(units=(1,), width=32, patch=3), (50, 49), (4, 4)),
    ],
)
def test_a_hybrid_takes_any_size(stem: HybridStem, size: tuple[int, int], grid: tuple[int, int]) -> None:
    assert stem.grid(*size) == grid


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, r"heads must divide the width 24; got 5 heads\. Take heads=4"),
        ({"heads": 0}, "heads must be a whole number, at least 1; got 0"),
        ({"depth": True}, "depth must be a whole number, at least 1; got True"),
        ({"depth": None}, "depth must be a whole number, at least 1; got None"),
        ({"image_size": (24, 10**12)}, "image_size must be a whole number, at least 1 and at most 1048576"),
        ({"depth": 10**30}, "depth must be a whole number, at least 1 and at most 10000; got 1000"),
        ({"width": 10**12}, "width must be a whole number, at least 1 and at most 1000000000"),
        ({"dropout": 10**400}, "dropout must be a finite number"),
        ({"norm": np.array(["pre"])}, "norm must be one of 'pre', 'post'"),
        ({"dropout": "a"}, "dropout must be a finite number; got 'a'"),
        ({"dropout": None}, "dropout must be a finite number; got None"),
        ({"head_bias": float("nan")}, "head_bias must be a finite number; got nan"),
        ({"epsilon": float("inf")}, "epsilon must be a finite number; got inf"),
        ({"checkpointing": "no"}, "checkpointing must be True or False; got 'no'"),
        ({"stem": 5}, "stem must be a PatchStem or a HybridStem; got 5"),
        ({"positions": 5}, "positions must be none, learned, .* got 5"),
        ({"width": 24.0}, "width must be a whole number"),
        ({"classes": 0}, "classes must be"),
        ({"dropout": 1.0}, "dropout must be at least 0 and under 1; got 1.0"),
        ({"stochastic_depth": -0.1}, "stochastic_depth must be"),
        ({"pooling": "cls"}, "pooling must be one of 'token', 'mean', 'max', .*; got 'cls'"),
        ({"activation": "erf"}, "activation must be one of 'gelu-tanh', 'gelu', 'relu'"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"pre_logits": 0}, "pre_logits must be"),
        ({"image_size": (24, 41)}, r"multiples of the patch side 8; got 24x41\. Resize or crop to 24x40 or 24x48"),
        ({"image_size": (4, 40)}, r"got 4x40\. Resize or crop to 8x40 first"),
        ({"hedas": 3}, r"ViTConfig has no field 'hedas'\. Did you mean 'heads'\?"),
    ],
)
def test_what_cannot_be_is_refused(untyped: None, changes: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigError, ShapeError), match=message):
        override(SMALL, changes)


def test_stems_and_resnets_are_checked(untyped: None) -> None:
    with pytest.raises(ConfigError, match="multiple of the 32 norm groups; got 48"):
        HybridStem(units=(1,), width=48)
    with pytest.raises(ConfigError, match="units must be a whole number, at least 1; got 0"):
        HybridStem(units=(1, 0))
    with pytest.raises(ConfigError, match="units must be a number of units for each stage"):
        BiTConfig(units=(), width=64)
    with pytest.raises(ConfigError, match="a BiT's width must be a multiple of the 32 norm groups; got 48"):
        BiTConfig(units=(1,), width=48)
    with pytest.raises(ShapeError, match=r"over 28 for one patch of 8x8.*got 28x64\. Resize to 32x32 or more"):
        HybridStem(units=(), patch=8).grid(28, 64)
    assert HybridStem(units=(), patch=8).grid(29, 64) == (1, 2)


def test_configurations_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.width = 48  # pyright: ignore[reportAttributeAccessIssue]


def test_an_image_size_is_a_side_or_two(untyped: None) -> None:
    assert as_size(32) == (32, 32)
    assert as_size((3, 5)) == (3, 5)
    assert as_size(np.int64(32)) == (32, 32)
    assert as_size([np.int32(3), 5]) == (3, 5)
    for bad in (0, (3, 5, 7), (3, -5), (3, 5.0), 224.0, None, True, "224", {3, 5}, {3: 5, 5: 3}, np.array(5.0)):
        with pytest.raises(ConfigError, match="image_size must be a"):
            as_size(bad)  # pyright: ignore[reportArgumentType]


def test_any_integer_type_will_do(untyped: None) -> None:
    config = ViTConfig(stem=PatchStem(patch=np.int64(8)), depth=np.int8(2), width=24, mlp_width=48, heads=3)  # pyright: ignore[reportArgumentType]
    assert type(config.depth) is int
    assert type(config.stem.patch) is int
    assert BiTConfig(units=[1, 2], width=64).units == (1, 2)  # pyright: ignore[reportArgumentType]
