"""Moved images, lost and exchanged patches, and alike layers: against slow references and known cases."""

import numpy as np
import pytest
import torch
from families import FAMILIES, family, images_for
from reference import inspection as slow
from torch.nn import functional as F

from vitrail import create, inspection
from vitrail.errors import ConfigError, ShapeError
from vitrail.inspection.bias import answers_of, changed, moved, stride_of
from vitrail.inspection.layers import LayerFeatures, grams_of
from vitrail.ops.patches import patchify
from vitrail.ops.similarity import gram, kernel_alignment


def features(rows: int, cols: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_alignment_equals_its_definition_over_quadruples() -> None:
    one, two = features(7, 5, 0), features(7, 3, 1) + features(7, 5, 0)[:, :3]
    found = kernel_alignment(gram(one), gram(two))
    assert found == pytest.approx(slow.cka(one.numpy(), two.numpy()), abs=1e-10)


def test_alignment_of_rotated_and_scaled_features_is_one() -> None:
    one = features(9, 6, 2)
    rotation, _ = torch.linalg.qr(features(6, 6, 3))
    assert kernel_alignment(gram(one), gram(4 * one @ rotation)) == pytest.approx(1, abs=1e-12)
    assert kernel_alignment(gram(one), gram(one + 5)) == pytest.approx(1, abs=1e-9)  # and moved


def test_alignment_of_unrelated_features_is_about_zero() -> None:
    found = [kernel_alignment(gram(features(40, 30, 2 * s)), gram(features(40, 30, 2 * s + 1))) for s in range(20)]
    assert abs(np.mean(found)) < 0.05


def test_alignment_needs_four_samples() -> None:
    with pytest.raises(ShapeError, match=r"the same 4 samples or more; got 3 and 3\. Give more images"):
        kernel_alignment(torch.eye(3), torch.eye(3))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_layer_is_like_itself(name: str) -> None:
    model = family(name)
    images = torch.randn(6, 3, *model.config.image_size)
    found = inspection.layer_similarity(model, images)
    assert found.shape[0] == found.shape[1] == 2 * (1 + (name == "axial"))
    torch.testing.assert_close(found.diagonal(), torch.ones(len(found)), atol=1e-5, rtol=0)
    torch.testing.assert_close(found, found.T)


def test_layers_are_compared_by_their_features() -> None:
    model = family("vit")
    images = torch.randn(5, 3, 12, 20)
    maps = [layer.detach().double().flatten(1).numpy() for layer in model.feature_map(images, [0, 1])]
    expected = slow.cka(maps[0], maps[1])  # 3 x 5 patches: as they are
    assert inspection.layer_similarity(model, images)[0, 1].item() == pytest.approx(expected, abs=1e-5)
    other = family("bit")
    views = F.interpolate(images, (33, 47))
    across = inspection.layer_similarity(model, images, other, views)
    stages = [stage.detach() for stage in other.feature_map(views, [0, 1])]
    pooled = [F.adaptive_avg_pool2d(stage, (min(stage.shape[2], 8), min(stage.shape[3], 8))) for stage in stages]
    assert across.shape == (2, 2)
    expected = slow.cka(maps[1], pooled[0].double().flatten(1).numpy())
    assert across[1, 0].item() == pytest.approx(expected, abs=1e-5)


def test_images_move_to_the_right_and_are_mirrored() -> None:
    images = torch.arange(5.0)[None, None, None].expand(1, 1, 2, 5)
    torch.testing.assert_close(moved(images, 2)[0, 0, 0], torch.tensor([2.0, 1, 0, 1, 2]))
    assert moved(images, 0) is images


@pytest.mark.parametrize("name", FAMILIES)
def test_what_does_not_move_does_not_change(name: str) -> None:
    model = family(name)
    found = inspection.shift_agreement(model, images_for(model), [0])
    for part in (found.cosine, found.same, found.maps):
        torch.testing.assert_close(part, torch.ones(1), atol=1e-5, rtol=0)


def test_a_shift_is_compared_with_features_that_moved_along() -> None:
    model = family("vit")
    images = images_for(model)
    found = inspection.shift_agreement(model, images, [4])  # a whole patch
    before, after = model.feature_map(images), model.feature_map(moved(images, 4))
    expected = F.cosine_similarity(after[:, :, :, 1:], before[:, :, :, :-1], dim=1).mean()
    assert found.maps.item() == pytest.approx(expected.item(), abs=1e-5)
    cosine = F.cosine_similarity(model.represent(images), model.represent(moved(images, 4)), dim=1).mean()
    assert found.cosine.item() == pytest.approx(cosine.item(), abs=1e-5)
    same = (model(images).argmax(1) == model(moved(images, 4)).argmax(1)).float().mean()
    assert found.same.item() == pytest.approx(same.item())
    half = inspection.shift_agreement(model, images, [2])
    middle = (before[:, :, :, 1:] + before[:, :, :, :-1]) / 2
    after = model.feature_map(moved(images, 2))[:, :, :, 1:]
    assert half.maps.item() == pytest.approx(F.cosine_similarity(after, middle, dim=1).mean().item(), abs=1e-5)


def test_intervals_are_students_and_wilsons() -> None:
    model = family("vit")
    images = images_for(model, batch=5)
    found = inspection.shift_agreement(model, images, [4])
    each = F.cosine_similarity(model.represent(images), model.represent(moved(images, 4)), dim=1).detach().numpy()
    half = 2.776445 * each.std(ddof=1) / np.sqrt(5)  # Student's t of four degrees of freedom, from a table
    expected = [max(each.mean() - half, -1), min(each.mean() + half, 1)]
    np.testing.assert_allclose(found.cosine_interval[0].numpy(), expected, atol=1e-4)
    dropped = inspection.patch_agreement(model, images, [0.0], change="drop")
    np.testing.assert_allclose(
        dropped.same_interval[0].numpy(), [5 / (5 + 3.841459), 1], atol=1e-5
    )  # Wilson's of 5 of 5
    alone = inspection.patch_agreement(model, images[:1], [0.5], change="drop")
    assert alone.cosine_interval.isnan().all()


def test_what_was_answered_before_can_be_given() -> None:
    for name in ("vit", "bit"):
        model = family(name)
        images = images_for(model, batch=5)
        features = LayerFeatures(model.layers)
        before = answers_of(model, images, features)
        for one, two in zip(features.grams(), grams_of(model, images), strict=True):
            torch.testing.assert_close(one, two)
        found = inspection.shift_agreement(model, images, [0, 3], before)
        for one, two in zip(found, inspection.shift_agreement(model, images, [0, 3]), strict=True):
            torch.testing.assert_close(one, two)


def test_without_positions_whole_patches_move_features_along_and_parts_do_not() -> None:
    model = create("ViT-Ti/16", image_size=64, depth=1, positions="none", pooling="mean")
    torch.nn.init.zeros_(model.get_parameter("blocks.0.attention.out.weight"))  # each patch alone
    images = torch.randn(2, 3, 64, 64)
    found = inspection.shift_agreement(model, images, [16, 8])
    assert found.maps[0].item() == pytest.approx(1, abs=1e-4)
    assert found.maps[1].item() < 0.9


def test_a_convolution_moves_its_features_along() -> None:
    model = family("bit")
    assert stride_of(model) == 8
    images = F.interpolate(torch.randn(2, 3, 16, 16), size=(64, 128), mode="bilinear")
    found = inspection.shift_agreement(model, images, [8])
    assert found.maps[0].item() > 0.95


def test_a_shift_must_stay_inside_the_image() -> None:
    with pytest.raises(ConfigError, match="shift"):
        inspection.shift_agreement(family("vit"), torch.zeros(1, 3, 12, 20), [20])


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_a_share_of_the_patches_is_made_gray(share: float) -> None:
    images = torch.randn(3, 3, 12, 20)
    patches = patchify(changed(images, share, "drop", 4, seed=0), 4)
    gray = (patches == 0).all(dim=2)
    assert gray.sum(dim=1).tolist() == [round(15 * share)] * 3
    torch.testing.assert_close(patches[~gray], patchify(images, 4)[~gray])


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_a_share_of_the_patches_is_exchanged_and_none_is_lost(share: float) -> None:
    images = torch.randn(3, 3, 12, 20)
    before, after = patchify(images, 4), patchify(changed(images, share, "shuffle", 4, seed=0), 4)
    others = (before != after).any(dim=2).sum(dim=1).tolist()
    assert others == [round(15 * share)] * 3
    for one, two in zip(before, after, strict=True):
        assert sorted(one.sum(dim=1).tolist()) == pytest.approx(sorted(two.sum(dim=1).tolist()))


def test_larger_shares_hold_smaller_ones_and_seeds_differ() -> None:
    images = torch.randn(2, 3, 12, 20)
    some, more, other = (
        (patchify(changed(images, share, "drop", 4, seed=seed), 4) == 0).all(dim=2)
        for share, seed in ((0.2, 0), (0.6, 0), (0.2, 1))
    )
    assert (more | ~some).all()
    assert not torch.equal(some, other)


def test_without_positions_a_pooled_vit_does_not_see_exchanged_patches() -> None:
    model = create("ViT-Ti/16", image_size=64, depth=2, positions="none", pooling="mean", classes=3)
    images = torch.randn(2, 3, 64, 64)
    found = inspection.patch_agreement(model, images, [0.5, 1.0], change="shuffle")
    torch.testing.assert_close(found.cosine, torch.ones(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.same, torch.ones(2))
    dropped = inspection.patch_agreement(model, images, [0.9], change="drop")
    assert dropped.cosine.item() < 0.999


@pytest.mark.usefixtures("untyped")
def test_what_cannot_be_exchanged_is_refused() -> None:
    model = family("vit")
    with pytest.raises(ShapeError, match=r"patches of 5 pixels must fill the images; got 12x20\. Say patch="):
        inspection.patch_agreement(model, torch.zeros(1, 3, 12, 20), [0.5], change="drop", patch=5)
    with pytest.raises(ConfigError, match="change"):
        inspection.patch_agreement(model, torch.zeros(1, 3, 12, 20), [0.5], change="burn")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="share"):
        inspection.patch_agreement(model, torch.zeros(1, 3, 12, 20), [1.5], change="drop")
