"""Images of another size than the model was built for, and images that no model can take."""

import pytest
import torch
from families import FAMILIES, RELEASED, family, images_for

import vitrail
from vitrail.config import Card, Preprocessing
from vitrail.errors import ConfigError, ShapeError
from vitrail.models import ViT
from vitrail.ops.positions import resample_positions


@pytest.mark.parametrize("name", [name for name in RELEASED if name != "bit"])
def test_another_size_resamples_positions_and_leaves_the_weights_alone(name: str) -> None:
    model = family(name, torch.float64)
    assert isinstance(model, ViT)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    images = torch.rand(2, 3, 40, 28, dtype=torch.float64) * 2 - 1
    ours = model(images)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())

    grid = model.config.stem.grid(40, 28)
    assert grid != model.config.grid
    resized = family(name, torch.float64, image_size=(40, 28))
    table = resample_positions(before["positions.table.0"], model.config.grid, grid)
    resized.load_state_dict(before | {"positions.table.0": table})
    torch.testing.assert_close(ours, resized(images), atol=0, rtol=0)


def test_resampled_positions_follow_the_weights() -> None:
    model = family("vit")
    images = torch.rand(1, 3, 20, 28)
    with torch.no_grad():
        first = model(images)
        model.get_parameter("positions.table.0").data.mul_(-1)
        assert not torch.allclose(first, model(images))
        model.get_parameter("positions.table.0").data.mul_(-1)
        assert torch.equal(first, model(images))


@pytest.mark.parametrize("name", ["hybrid", "hybrid-root", "bit"])
@pytest.mark.parametrize("size", [(16, 17), (31, 64), (45, 33)])
def test_hybrids_and_resnets_take_any_size(name: str, size: tuple[int, int]) -> None:
    assert family(name)(torch.rand(1, 3, *size)).shape == (1, 7)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 12, 21), r"multiples of the patch side 4; got 12x21\. Resize or crop to 12x20 or 12x24 first"),
        ((3, 12, 20), r"a batch, B C H W; got 3 axes, 3x12x20\. Add the batch axis: images\[None\]"),
        ((2, 12, 20, 3), r"must have 3 channels.*Put the channels first: images\.permute\(0, 3, 1, 2\)"),
        ((2, 1, 12, 20), r"must have 3 channels.*got 1, 2x1x12x20\. Give 3 channels, or build .* channels=1"),
    ],
)
def test_bad_images_are_refused_before_any_compute(untyped: None, shape: tuple[int, ...], message: str) -> None:
    model = family("vit")
    for call in (model, model.represent, model.feature_map):
        with pytest.raises(ShapeError, match=message):
            call(torch.rand(shape))


@pytest.mark.parametrize("name", FAMILIES)
def test_bytes_and_wrong_channels_are_refused_by_every_family(untyped: None, name: str) -> None:
    model = family(name)
    pixels = (images_for(model) * 127).to(torch.uint8)
    said = r"float; got torch.uint8\. Take model\.preprocess\(image\); of bytes, it gives \(x / 255 - "
    with pytest.raises(ShapeError, match=said + r"0\.5\) / 0\.5, by channel"):
        model(pixels)
    model.card = Card(preprocessing=Preprocessing(mean=(0.485, 0.456, 0.406), deviation=(0.229, 0.224, 0.225)))
    with pytest.raises(ShapeError, match=said + r"\(0\.485, 0\.456, 0\.406\)\) / \(0\.229, 0\.224, 0\.225\), by"):
        model(pixels)
    with pytest.raises(ShapeError, match="must have 3 channels"):
        model(images_for(model)[:, :2])


@pytest.mark.parametrize("name", FAMILIES)
def test_images_of_another_kind_precision_or_place_are_refused(untyped: None, name: str) -> None:
    model = family(name)
    images = images_for(model)
    for bad, message in (
        (images.numpy(), r"must be a tensor, B C H W; got ndarray\. Make one: torch.as_tensor"),
        (None, "must be a tensor.*got NoneType"),
        (images.double(), r"the model's precision torch.float32; got torch.float64\. Convert them"),
        (images.bfloat16(), "got torch.bfloat16.*or run under torch.autocast"),
        (images.to_sparse(), r"must be dense; got torch.sparse_coo\. Make them so: images.to_dense"),
        (images.to("meta"), "on the model's device cpu; got meta"),
        (images[:, :, :0], "must have pixels; got 2x3x0x"),
    ):
        with pytest.raises(ShapeError, match=message):
            model(bad)


def test_create_refuses_devices_and_seeds_that_are_not_there(untyped: None) -> None:
    for device in ("nonsense", "cuda:99", 3.5):
        with pytest.raises(ConfigError, match="device must be one of this machine"):
            vitrail.create("ViT-Ti/16", device=device)  # pyright: ignore[reportArgumentType]
    for seed in ("a", -1, 0.5):
        with pytest.raises(ConfigError, match="seed must be a whole number, at least 0"):
            vitrail.create("ViT-Ti/16", seed=seed)  # pyright: ignore[reportArgumentType]


def test_a_model_is_built_where_torch_says() -> None:
    with torch.device("meta"):
        model = vitrail.create("ViT-Ti/16")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_create_takes_sizes_classes_channels_and_fields() -> None:
    model = vitrail.create("ViT-Ti/8", classes=5, image_size=(24, 40), channels=1, depth=2, pooling="mean")
    assert model(torch.rand(1, 1, 24, 40)).shape == (1, 5)
    assert isinstance(model, ViT)
    assert model.get_parameter("positions.table.0").shape == (15, 192)


def test_create_refuses_what_cannot_be() -> None:
    with pytest.raises(ShapeError, match="multiples of the patch side 16; got 225x225"):
        vitrail.create("ViT-B/16", image_size=225)
    with pytest.raises(ConfigError, match="heads must divide the width 192; got 5 heads"):
        vitrail.create("ViT-Ti/16", heads=5)
    with pytest.raises(ConfigError, match=r"no field 'drop_rate'"):
        vitrail.create("ViT-Ti/16", drop_rate=0.1)
    with pytest.raises(ConfigError, match="BiTConfig has no field 'dropout'"):
        vitrail.create("BiT-R50x1", dropout=0.1)
