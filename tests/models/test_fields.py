"""Fields that other libraries' models need: each does what it says, against formulas written out."""

import pytest
import torch
from families import family, images_for
from torch.nn import functional as F

import vitrail
from vitrail.config import override
from vitrail.errors import ConfigError
from vitrail.models import Model, build
from vitrail.models.resnet import standardize_by_deviation, standardize_by_variance
from vitrail.ops.cost.counts import parameters
from vitrail.ops.positions import resample_positions


def count(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_layer_scale_multiplies_every_residual_feature() -> None:
    scaled, plain = family("vit", layer_scale=0.3), family("vit", layer_scale=0.3)
    for model, value in ((scaled, 2.0), (plain, 1.0)):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("_scale.weight"):
                    parameter.fill_(value)
    with torch.no_grad():
        for index in range(2):
            for layer in ("attention.out", "mlp.contract"):
                plain.get_parameter(f"blocks.{index}.{layer}.weight").mul_(2)
                plain.get_parameter(f"blocks.{index}.{layer}.bias").mul_(2)
    images = images_for(plain)
    torch.testing.assert_close(scaled(images), plain(images))


def test_layer_scale_starts_at_its_value_and_is_counted() -> None:
    model = vitrail.create("ViT-Ti/16", image_size=32, layer_scale=1e-5, qkv_bias=False, classes=None)
    scales = [parameter for name, parameter in model.named_parameters() if name.endswith("_scale.weight")]
    assert len(scales) == 24
    assert all((scale == 1e-5).all() for scale in scales)
    assert count(model) == parameters(model.config).total
    plain = vitrail.create("ViT-Ti/16", image_size=32)
    assert count(plain) - count(model) == 193 * 1000 + 12 * 3 * 192 - 24 * 192


def test_without_biases_query_key_and_value_are_linear() -> None:
    model = family("vit-scaled")
    names = {name for name, _ in model.named_parameters()}
    assert "blocks.0.attention.qkv.bias" not in names
    assert "blocks.0.attention.out.bias" in names
    zero = torch.zeros(1, 4, 24)
    assert all(not part.any() for part in model.blocks[0].attention.project(zero))  # pyright: ignore


@pytest.mark.parametrize("name", ["ViT-Ti/16", "BiT-R50x1"])
def test_without_classes_a_model_gives_its_representation(name: str) -> None:
    model = vitrail.create(name, classes=None, image_size=64).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(model(images), model.represent(images))
    assert not [key for key in model.state_dict() if key.startswith("head.")]
    assert count(model) == parameters(model.config).total


def test_epsilons_and_rules_of_filters_are_fields() -> None:
    images = torch.rand(1, 3, 33, 47) * 2 - 1
    bit = family("bit")
    with torch.no_grad():
        bit.get_parameter("root.weight").mul_(1e-4)
    other = build(override(bit.config, {"filter_epsilon": 1e-6}), seed=0)
    other.load_state_dict(bit.state_dict())
    assert (bit(images) - other.eval()(images)).abs().max() > 1e-4
    weight = torch.randn(4, 3, 5, 5)
    mean = weight.mean(dim=(1, 2, 3), keepdim=True)
    variance = ((weight - mean) ** 2).mean(dim=(1, 2, 3), keepdim=True)
    torch.testing.assert_close(
        standardize_by_variance(weight, 0.1),
        (weight - mean) / (variance + 0.1).sqrt(),  # pyright: ignore
    )
    torch.testing.assert_close(
        standardize_by_deviation(weight, 0.1),
        (weight - mean) / (variance.sqrt() + 0.1),  # pyright: ignore
    )


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("bicubic", {"align_corners": False}),
        ("bicubic-antialias", {"antialias": True}),
        ("bicubic-corners", {"align_corners": True}),
    ],
)
def test_tables_are_resampled_as_other_libraries_do(how: str, options: dict[str, bool]) -> None:
    table = torch.randn(1 + 15, 8)
    maps = table[1:].reshape(3, 5, 8).permute(2, 0, 1)[None]
    expected = F.interpolate(maps, size=(7, 4), mode="bicubic", **options)[0].permute(1, 2, 0).reshape(28, 8)
    resampled = resample_positions(table, (3, 5), (7, 4), how)  # pyright: ignore[reportArgumentType]
    torch.testing.assert_close(resampled, torch.cat([table[:1], expected]), atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("qkv_bias", 1, "qkv_bias must be True or False"),
        ("layer_scale", "x", "layer_scale must be a finite number"),
        ("resampling", "nearest", "positions.resampling must be one of 'bilinear-corners'"),
        ("classes", 0, "classes must be a whole number"),
    ],
)
def test_what_the_fields_cannot_be_is_refused(untyped: None, field: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        vitrail.create("ViT-Ti/16", **{field: value})  # pyright: ignore[reportArgumentType]
