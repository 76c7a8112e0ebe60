"""Rollout, what the class token looks at, and how far heads look: against slow references and known cases."""

import math

import numpy as np
import pytest
import torch
from families import FAMILIES, family, images_for
from peak import peak_bytes
from reference import inspection as slow
from torch import Tensor

from vitrail import create, inspection
from vitrail.config import PatchStem, ViTConfig
from vitrail.errors import ConfigError, ShapeError
from vitrail.inspection.attention import AttentionShape, Weights, roll_on
from vitrail.inspection.page import QueryMaps, plan_maps, to_levels
from vitrail.inspection.views import unwrap
from vitrail.models import ViT, build
from vitrail.ops import attention_chunks
from vitrail.ops.similarity import distance_sums, distances_from, patch_places

VITS = [name for name in FAMILIES if name != "bit"]


def vit(name: str, dtype: torch.dtype = torch.float64) -> ViT:
    model = family(name, dtype)
    assert isinstance(model, ViT)
    return model


def seen(model: ViT, images: Tensor) -> list[np.ndarray]:
    return [layer.double().numpy() for layer in model.attention_maps(images)]  # L of B h T T


def test_a_rollout_by_hand() -> None:
    # Three tokens, two layers: every token looks at the next one, then all look at the first.
    first = torch.tensor([[[0.0, 1, 0], [0, 0, 1], [1, 0, 0]]])
    second = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [1, 0, 0]]])
    once = roll_on(None, first)
    torch.testing.assert_close(once, torch.tensor([[[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]]]))
    twice = roll_on(once, second)
    torch.testing.assert_close(twice, torch.tensor([[[0.5, 0.5, 0], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]]))


@pytest.mark.parametrize("name", VITS)
def test_rollout_equals_a_slow_reference_for_every_family(name: str) -> None:
    model = vit(name)
    images = images_for(model, dtype=torch.float64)
    layers = seen(model, images)
    rows, cols = model.grid_of(images)
    whole = inspection.rollout_matrix(model, images)
    maps = inspection.rollout(model, images)
    assert maps.shape == (len(images), rows, cols)
    for number in range(len(images)):
        expected = slow.rollout([layer[number] for layer in layers])
        np.testing.assert_allclose(whole[number].numpy(), expected, atol=1e-12)
        leading = model.config.class_tokens
        read = expected[0] if leading else expected.mean(axis=0)
        np.testing.assert_allclose(maps[number].numpy().ravel(), read[leading:], atol=1e-12)
    torch.testing.assert_close(whole.sum(dim=2), torch.ones_like(whole[:, :, 0]))


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("name", VITS)
def test_distances_equal_a_slow_reference_for_every_family(name: str, normalized: bool) -> None:
    model = vit(name)
    images = images_for(model, dtype=torch.float64)
    grid = model.grid_of(images)
    found = inspection.attention_distance(model, images, normalized=normalized)
    for layer, weights in enumerate(seen(model, images)):
        for number in range(len(images)):
            expected = slow.attention_distance(
                weights[number], *grid, model.config.stem.stride, model.config.class_tokens, normalized
            )
            np.testing.assert_allclose(found[number, layer].numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("name", VITS)
def test_what_the_classifier_reads_attends_as_its_row_says(name: str) -> None:
    model = vit(name)
    images = images_for(model, dtype=torch.float64)
    found = inspection.pooled_attention(model, images)
    leading = model.config.class_tokens
    for layer, weights in enumerate(seen(model, images)):
        row = weights[:, :, 0, 1:] if leading else weights.mean(axis=2)
        np.testing.assert_allclose(found[:, layer].flatten(2).numpy(), row, atol=1e-6)


def every_distance(grid: tuple[int, int], stride: int) -> Tensor:
    places = patch_places(grid, stride)
    return distances_from(places, places)


def test_the_distance_of_a_uniform_attention_is_that_of_two_random_patches() -> None:
    rows, cols, stride = 3, 5, 7
    weights = torch.full((1, 1, 15, 15), 1 / 15)
    found = distance_sums(weights, every_distance((rows, cols), stride), normalized=False) / 15
    places = [(row, col) for row in range(rows) for col in range(cols)]
    expected = sum(math.dist(one, two) for one in places for two in places) / 15**2 * stride
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_the_distance_of_a_local_attention_is_known() -> None:
    # Each patch of a line looks at itself: 0. At its right neighbour, the last at itself: (n - 1) / n patches.
    far = every_distance((1, 6), 16)
    itself, right = torch.eye(6)[None, None], torch.eye(6).roll(1, dims=1)[None, None]
    right[0, 0, 5] = torch.eye(6)[5]
    assert distance_sums(itself, far, normalized=False).item() == 0
    assert distance_sums(right, far, normalized=False).item() / 6 == pytest.approx(16 * 5 / 6)
    # Half of the weights on a class token that was left out: half the distance, unless scaled to one.
    assert distance_sums(right / 2, far, normalized=False).item() / 6 == pytest.approx(8 * 5 / 6)
    assert distance_sums(right / 2, far, normalized=True).item() / 6 == pytest.approx(16 * 5 / 6)


@pytest.mark.parametrize("name", ["vit", "vit-mean", "axial", "vit-relative", "hybrid"])
def test_parts_give_what_the_whole_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = vit(name)
    images = images_for(model, dtype=torch.float64)
    whole = [inspection.rollout(model, images), inspection.attention_distance(model, images)]
    monkeypatch.setattr(attention_chunks, "CHUNK", 50)  # two queries at a time or so
    monkeypatch.setattr("vitrail.inspection.attention.CHUNK", 50)  # and one image
    parts = [inspection.rollout(model, images), inspection.attention_distance(model, images)]
    for one, two in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("size", [(8, 12), (24, 20)])
def test_any_image_size_can_be_looked_at(size: tuple[int, int]) -> None:
    model = vit("vit")
    images = torch.randn(3, 3, *size, dtype=torch.float64)
    assert inspection.rollout(model, images).shape == (3, size[0] // 4, size[1] // 4)
    assert inspection.attention_distance(model, images).shape == (3, 2, 3)


def test_a_model_in_half_precision_is_looked_at_as_it_is() -> None:
    exact, half = vit("vit", torch.float32), vit("vit", torch.bfloat16)
    images = images_for(exact)
    torch.testing.assert_close(inspection.rollout(half, images), inspection.rollout(exact, images), atol=0.01, rtol=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("untyped")
def test_a_compiled_model_gives_the_same() -> None:
    model = vit("vit", torch.float32)
    images = images_for(model)
    expected = inspection.rollout(model, images)
    compiled = torch.compile(model, backend="aot_eager")
    compiled(images)
    assert isinstance(compiled, torch.nn.Module)
    assert unwrap(compiled) is model
    torch.testing.assert_close(inspection.rollout(compiled, images), expected)
    model.compile(backend="aot_eager")
    model(images)
    torch.testing.assert_close(inspection.rollout(model, images), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_looking_leaves_nothing_behind(name: str) -> None:
    model = family(name, dropout=0.5) if name != "bit" else family(name)
    model.train()
    next(iter(model.children())).eval()
    modes = [module.training for module in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    images = images_for(model)
    if name != "bit":
        torch.testing.assert_close(inspection.rollout(model, images), inspection.rollout(model, images))
        inspection.attention_distance(model, images)
    inspection.filter_components(model)
    inspection.shift_agreement(model, images, [0, 1])
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_what_has_no_attention_says_so() -> None:
    with pytest.raises(ConfigError, match=r"a BiT has no attention to show\. Take a Vision Transformer or a hybrid"):
        inspection.rollout(family("bit"), torch.zeros(1, 3, 33, 47))
    with pytest.raises(ConfigError, match=r"expected a model of Vitrail; got Linear. Take vitrail.load"):
        inspection.rollout(torch.nn.Linear(2, 2), torch.zeros(1, 3, 12, 20))
    with pytest.raises(ShapeError, match="no images to look at"):
        inspection.rollout(family("vit"), torch.zeros(0, 3, 12, 20))


@pytest.mark.usefixtures("untyped")
def test_what_are_no_images_is_refused_alike_everywhere() -> None:
    model = family("vit")
    for bad in (torch.zeros(3, 12, 20), torch.zeros(1, 3, 12, 20, dtype=torch.uint8)):
        for look in (
            lambda images: inspection.rollout(model, images),
            lambda images: inspection.shift_agreement(model, images, [1]),
            lambda images: inspection.patch_agreement(model, images, [0.5], change="drop"),
        ):
            with pytest.raises(ShapeError, match=r"expected images as floats, B C H W"):
                look(bad)
    fine = torch.zeros(1, 3, 12, 20)
    with pytest.raises(ConfigError, match="expected a shift at least"):
        inspection.shift_agreement(model, fine, [])
    with pytest.raises(ConfigError, match="expected a share of the patches at least"):
        inspection.patch_agreement(model, fine, [], change="drop")
    with pytest.raises(ShapeError, match="over 4 images at least; got 1"):
        inspection.layer_similarity(model, fine)
    with pytest.raises(ConfigError, match="other_images are of the other model"):
        inspection.layer_similarity(model, fine.expand(4, -1, -1, -1), other_images=fine.expand(4, -1, -1, -1))


def test_memory_is_bounded_by_one_matrix_and_not_by_heads() -> None:
    config = ViTConfig(
        stem=PatchStem(patch=2), image_size=(64, 64), depth=2, width=32, mlp_width=32, heads=16, classes=2
    )
    model = build(config, seed=0)
    images = torch.randn(1, 3, 64, 64)
    tokens = 32 * 32 + 1
    _, peak = peak_bytes(lambda: inspection.rollout(model, images))
    matrix = 4 * tokens**2
    assert peak < 5 * matrix + 3 * 4 * attention_chunks.CHUNK
    assert peak < 0.75 * 16 * 2 * matrix + 2**28


def weights(images: int, heads: int, tokens: int) -> Tensor:
    return torch.rand(images, heads, tokens, tokens).softmax(dim=3)


def looked(leading: int, grid: tuple[int, int]) -> AttentionShape:
    return AttentionShape(2, 1, 3, leading, grid, 4, torch.device("cpu"))


@pytest.mark.parametrize("leading", [0, 1])
@pytest.mark.parametrize("step", [1, 4, 100])
def test_maps_in_bytes_are_the_weights_to_half_a_level(leading: int, step: int) -> None:
    given = looked(leading, (3, 5))
    whole = weights(2, 3, given.tokens)
    maps = QueryMaps(given, 1, all_heads=True)
    for first in range(0, given.tokens, step):
        maps.see(0, first, Weights(whole[:, :, first : first + step]))
    for number, found in enumerate(maps.each()):
        assert found.levels.shape == (1, 3, 15, 15)
        back = found.levels[0].astype(np.float64) * found.peaks[0][..., None] / 255
        expected = whole[number, :, leading:, leading:].numpy()
        assert np.abs(back - expected).max() <= found.peaks.max() / 255 / 2 + 1e-7


@pytest.mark.parametrize("step", [2, 100])
def test_cells_add_up_keys_and_average_queries(step: int) -> None:
    given = looked(1, (3, 5))
    whole = weights(2, 3, 16)
    maps = QueryMaps(given, 2, all_heads=False)
    for first in range(0, 16, step):
        maps.see(0, first, Weights(whole[:, :, first : first + step]))
    found = maps.each()[1]
    assert found.grid == (2, 3)
    mean = whole[1].mean(dim=0)[1:, 1:].unflatten(1, (3, 5)).unflatten(0, (3, 5)).numpy()
    for row in range(2):
        for col in range(3):
            queries = mean[2 * row : 2 * row + 2, 2 * col : 2 * col + 2].reshape(-1, 3, 5).mean(axis=0)
            expected = [queries[2 * r : 2 * r + 2, 2 * c : 2 * c + 2].sum() for r in range(2) for c in range(3)]
            back = found.levels[0, 0, 3 * row + col] * (found.peaks[0, 0, 3 * row + col] / 255)
            np.testing.assert_allclose(back, expected, atol=found.peaks.max() / 255)


def test_bytes_of_maps_of_patches_are_those_of_their_cells() -> None:
    levels, peaks = to_levels(torch.arange(15.0).view(1, 3, 5), 2)
    cells = np.array([0 + 1 + 5 + 6, 2 + 3 + 7 + 8, 4 + 9, 10 + 11, 12 + 13, 14])
    assert peaks.tolist() == [25]
    np.testing.assert_array_equal(levels[0], np.rint(cells / 25 * 255))


@pytest.mark.parametrize(
    ("images", "layers", "heads", "grid"),
    [(16, 12, 12, (14, 14)), (1, 24, 16, (64, 64)), (200, 12, 12, (14, 14)), (3, 2, 3, (3, 5))],
)
def test_a_plan_fits_into_its_room(images: int, layers: int, heads: int, grid: tuple[int, int]) -> None:
    room = 17_000_000
    cell, whole = plan_maps(images, layers, heads, grid, room)
    count = -(-grid[0] // cell) * -(-grid[1] // cell)
    each = layers * count * (count + 4)
    assert each * (images - whole) + each * heads * whole <= room
    assert 1 <= whole <= images
    if cell > 1:
        finer = -(-grid[0] // (cell - 1)) * -(-grid[1] // (cell - 1))
        assert layers * finer * (finer + 4) * (images + heads - 1) > room


def test_observers_of_one_pass_give_what_functions_give() -> None:
    from vitrail.inspection.bias import answers_of
    from vitrail.inspection.layers import LayerFeatures, compare_layers
    from vitrail.inspection.study import look

    model = create("ViT-Ti/16", classes=5, image_size=64, depth=2)
    assert isinstance(model, ViT)
    images = torch.randn(5, 3, 64, 64)
    with torch.no_grad():
        found, logits = look(model.eval(), images, 10_000_000)
        torch.testing.assert_close(logits, model(images), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.rollout, inspection.rollout(model, images))
    torch.testing.assert_close(found.pooled, inspection.pooled_attention(model, images))
    torch.testing.assert_close(found.distance, inspection.attention_distance(model, images))
    torch.testing.assert_close(found.normalized_distance, inspection.attention_distance(model, images, normalized=True))
    assert len(found.maps) == 5
    features = LayerFeatures(model.layers)
    answers_of(model, images, features)
    grams = features.grams()
    torch.testing.assert_close(compare_layers(grams, grams), inspection.layer_similarity(model, images))
