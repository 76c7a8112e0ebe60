"""Adapting: pure, reported, and equal to what others do."""

from pathlib import Path

import numpy as np
import pytest
import torch
from families import FAMILIES, family, images_for
from peers import saved, timm_model

import vitrail
from vitrail.checkpoint.adapt import adapt, change_channels, change_patch, change_size
from vitrail.config import ViTConfig, override
from vitrail.errors import CheckpointError, ConfigError, ShapeError
from vitrail.models import Model
from vitrail.ops.positions import resample_patches


def weights_of(model: Model) -> dict[str, torch.Tensor]:
    return dict(model.state_dict())


def changes_of(model: Model) -> tuple[str, ...]:
    assert model.card.provenance is not None
    return model.card.provenance.changes


def slow_resize(patch: np.ndarray, side: int) -> np.ndarray:
    """Bilinear with half-pixel centres, a pixel at a time."""
    old = patch.shape[0]
    out = np.zeros((side, side))
    for row in range(side):
        for col in range(side):
            for axis_row, share_row in taps(row, old, side):
                for axis_col, share_col in taps(col, old, side):
                    out[row, col] += share_row * share_col * patch[axis_row, axis_col]
    return out


def taps(place: int, old: int, new: int) -> list[tuple[int, float]]:
    source = max((place + 0.5) * old / new - 0.5, 0.0)
    low = min(int(source), old - 1)
    share = source - low if low < old - 1 else 0.0
    return [(low, 1 - share), (min(low + 1, old - 1), share)]


@pytest.mark.parametrize(("old", "new"), [(4, 7), (7, 4), (3, 6), (8, 8), (1, 3)])
def test_a_resized_patch_kernel_is_the_pseudo_inverse_of_a_bilinear_resize(old: int, new: int) -> None:
    kernel = torch.randn(5, old * old * 2, dtype=torch.float64)
    resize = np.stack([slow_resize(basis.reshape(old, old), new).reshape(-1) for basis in np.eye(old * old)])
    inverse = np.linalg.pinv(resize)
    expected = np.einsum("qp,dpc->dqc", inverse, kernel.numpy().reshape(5, old * old, 2)).reshape(5, -1)
    np.testing.assert_allclose(resample_patches(kernel, old, new).numpy(), expected, atol=1e-9)


def test_a_larger_patch_has_the_embedding_of_the_patch_that_it_is_resized_from() -> None:
    patches = torch.randn(6, 1, 5, 5, dtype=torch.float64)
    kernel = torch.randn(3, 25, dtype=torch.float64)
    larger = torch.nn.functional.interpolate(patches, size=(9, 9), mode="bilinear")
    embedded = larger.flatten(1) @ resample_patches(kernel, 5, 9).T
    torch.testing.assert_close(embedded, patches.flatten(1) @ kernel.T)


def test_a_new_patch_equals_timms_resize_by_the_same_rule() -> None:
    from timm.layers.patch_embed import resample_patch_embed

    model = family("vit")
    old = model.config
    assert isinstance(old, ViTConfig)
    new = override(old, {"patch": 6, "image_size": (18, 30)})
    name = "embedding.projection.weight"
    adapted, said = change_patch(weights_of(model), old, new)
    theirs = weights_of(model)[name].unflatten(1, (4, 4, 3)).permute(0, 3, 1, 2)
    theirs = resample_patch_embed(theirs, [6, 6], interpolation="bilinear", antialias=False)
    torch.testing.assert_close(adapted[name], theirs.permute(0, 2, 3, 1).flatten(1), atol=1e-5, rtol=1e-4)
    assert said == ("patches resized from 4 to 6 by the pseudo-inverse",)


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
def test_channels_are_summed_or_repeated_as_timm_does(channels: int, tmp_path: Path) -> None:
    from timm.models import adapt_input_conv

    for name, heads, key, theirs_key in (
        ("test_vit", 2, "embedding.projection.weight", "patch_embed.proj.weight"),
        ("vit_tiny_r_s16_p8_224", 3, "embedding.resnet.root.weight", "patch_embed.backbone.conv.weight"),
    ):
        theirs = timm_model(name, depth=1)
        path = saved(theirs, tmp_path / f"{name}.safetensors")
        ours = vitrail.load(path, channels=channels, heads=heads)
        assert ours.config.channels == channels
        expected = adapt_input_conv(channels, theirs.state_dict()[theirs_key].clone())
        if "projection" in key:
            expected = expected.permute(0, 2, 3, 1).flatten(1)
        torch.testing.assert_close(ours.get_parameter(key), expected)
        assert "channels" in changes_of(ours)[0]


def test_channels_of_a_bit_change_too_and_other_ways_are_refused() -> None:
    model = family("bit")
    adapted, _ = change_channels(weights_of(model), model.config, override(model.config, {"channels": 1}))
    torch.testing.assert_close(adapted["root.weight"], model.get_parameter("root.weight").sum(1, keepdim=True))
    two = override(model.config, {"channels": 2})
    with pytest.raises(
        CheckpointError, match="channels can go from 3 to any number, or from any number to 1; got 2 to 5"
    ):
        change_channels(weights_of(model), two, override(two, {"channels": 5}))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("bit", "vit-original")])
def test_a_new_size_computes_what_the_old_model_computes_on_it(name: str) -> None:
    model = family(name)
    size = (model.config.image_size[0] + 16, model.config.image_size[1] + 8)
    new = override(model.config, {"image_size": size})
    weights, said = change_size(weights_of(model), model.config, new)
    from vitrail.checkpoint.load import assemble

    images = torch.rand(2, 3, *size) * 2 - 1
    torch.testing.assert_close(assemble(new, weights).eval()(images), model(images), atol=1e-5, rtol=0)
    assert said[0].startswith("positions resampled from ")


def test_adapting_leaves_what_it_is_given_alone() -> None:
    model = family("vit-hidden")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    new = override(
        model.config,
        {"patch": 2, "image_size": (16, 24), "channels": 1, "classes": 3, "representation_width": None},
    )
    given = weights_of(model)
    adapted, said = adapt(given, model.config, new, new_head=True)
    assert all(torch.equal(given[name], before[name]) for name in before)
    assert given.keys() == before.keys()
    assert len(said) == 4
    assert "hidden.weight" not in adapted
    assert adapted["head.weight"].shape == (3, 24)
    assert not adapted["head.weight"].any()


def test_what_changed_is_reported_step_by_step(tmp_path: Path) -> None:
    vitrail.save(family("vit-hidden"), tmp_path / "run")
    ours = vitrail.load(tmp_path / "run", patch=2, image_size=(16, 24), channels=1, classes=3)
    assert changes_of(ours) == (
        "first layer summed over 3 channels",
        "patches resized from 4 to 2 by the pseudo-inverse",
        "positions resampled from 3x5 to 8x12 (bilinear-corners)",
        "new zero classifier of 3 classes, pre-training layer dropped",
    )
    kept = vitrail.load(tmp_path / "run", classes=3, keep_pre_logits=True)
    assert changes_of(kept) == ("new zero classifier of 3 classes, pre-training layer kept",)
    assert kept.config.representation == 11
    images = images_for(kept)
    torch.testing.assert_close(kept.represent(images), family("vit-hidden").represent(images))
    assert changes_of(vitrail.load(tmp_path / "run")) == ()


def test_what_cannot_be_asked_is_refused_before_any_work(tmp_path: Path) -> None:
    vitrail.save(family("vit-hidden"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"12x20 is no multiple of patches of 8 pixels\. Give image_size="):
        vitrail.load(tmp_path / "run", patch=8)
    with pytest.raises(ShapeError, match="multiples of the patch side 8; got 16x20"):
        vitrail.load(tmp_path / "run", patch=8, image_size=(16, 20))
    with pytest.raises(ConfigError, match=r"pre_logits=None needs a new head\. Give classes="):
        vitrail.load(tmp_path / "run", pre_logits=None)
    with pytest.raises(ConfigError, match="pre_logits=9: the file has one of 11"):
        vitrail.load(tmp_path / "run", pre_logits=9, classes=3)
    with pytest.raises(ConfigError, match="channels must be a whole number"):
        vitrail.load(tmp_path / "run", channels=0)
    vitrail.save(family("bit"), tmp_path / "bit")
    with pytest.raises(ConfigError, match="BiTConfig has no field 'patch'"):
        vitrail.load(tmp_path / "bit", patch=8)
