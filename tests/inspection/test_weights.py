"""What the weights alone show: filters and positions, against numpy and slow references."""

import numpy as np
import pytest
import torch
from families import FAMILIES, family
from reference import inspection as slow

from vitrail import create, inspection
from vitrail.config import (
    BiasPositions,
    Learned2DPositions,
    LearnedPositions,
    NoPositions,
    RelativePositions,
    Sinusoidal2DPositions,
    SinusoidalPositions,
)
from vitrail.errors import ConfigError
from vitrail.inspection.weights import principal_components
from vitrail.models import BiT, ViT
from vitrail.ops.patches import patchify
from vitrail.ops.similarity import cosines


def test_components_are_those_of_numpys_decomposition() -> None:
    filters = torch.randn(11, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found, shares = principal_components(filters, 5)
    centered = filters.numpy() - filters.numpy().mean(axis=0)
    _, sizes, directions = np.linalg.svd(centered, full_matrices=False)
    assert found.shape == (5, 7)
    np.testing.assert_allclose(np.abs((found.double().numpy() * directions[:5]).sum(axis=1)), 1, atol=1e-6)
    np.testing.assert_allclose(shares.numpy(), (sizes**2 / (sizes**2).sum())[:5], atol=1e-6)
    assert (found.gather(1, found.abs().argmax(dim=1, keepdim=True)) > 0).all()


def test_components_of_filters_that_differ_in_one_way_are_that_way() -> None:
    way = torch.tensor([0.6, 0.0, -0.8])
    found, shares = principal_components(torch.arange(5.0)[:, None] * way + 3, 3)
    torch.testing.assert_close(found[0], -way)  # its largest value is positive
    torch.testing.assert_close(shares, torch.tensor([1.0, 0, 0]), atol=1e-6, rtol=0)
    _, nothing = principal_components(torch.ones(4, 3), 2)
    assert torch.isfinite(nothing).all()


def test_the_filters_of_a_vit_are_what_its_embedding_takes_of_a_patch() -> None:
    model = family("vit", torch.float32)
    assert isinstance(model, ViT)
    filters = inspection.filters_of(model)
    assert filters.shape == (24, 3, 4, 4)
    images = torch.randn(2, 3, 4, 4)
    bias = model.get_parameter("embedding.projection.bias")
    torch.testing.assert_close(torch.einsum("dcxy,bcxy->bd", filters, images) + bias, model.embedding(images)[:, 0])
    assert patchify(images, 4).shape == (2, 1, 48)


@pytest.mark.parametrize("name", ["hybrid", "bit"])
def test_the_filters_of_a_resnet_are_its_roots_standardized(name: str) -> None:
    model = family(name)
    filters = inspection.filters_of(model)
    assert filters.shape[1:] == (3, 7, 7)
    flat = filters.flatten(1)
    torch.testing.assert_close(flat.mean(dim=1), torch.zeros(len(flat)), atol=1e-5, rtol=0)
    torch.testing.assert_close(flat.std(dim=1, unbiased=False), torch.ones(len(flat)), atol=2e-3, rtol=0)
    if isinstance(model, BiT):
        images = torch.randn(1, 3, 33, 47)
        expected = torch.nn.functional.conv2d(images, filters, stride=2, padding=3)
        torch.testing.assert_close(model.root(images), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_components(name: str) -> None:
    filters, shares = inspection.filter_components(family(name), 9)
    assert len(filters) == len(shares) == 9
    assert filters.shape[1] == 3
    torch.testing.assert_close(filters.flatten(1).norm(dim=1), torch.ones(9))
    assert (shares.diff() <= 1e-6).all()


def test_position_similarity_is_the_cosine_of_every_two() -> None:
    model = family("vit")
    table = model.get_parameter("positions.table.0").detach().double().numpy()[1:]  # the class token first
    found = inspection.position_similarity(model)
    assert found.shape == (3, 5, 3, 5)
    for one in range(15):
        for two in range(15):
            expected = slow.cosine(table[one], table[two])
            assert found[one // 5, one % 5, two // 5, two % 5].item() == pytest.approx(expected, abs=1e-6)


def test_another_size_shows_the_positions_that_the_model_uses_there() -> None:
    model = family("vit")
    assert isinstance(model, ViT)
    found = inspection.position_similarity(model, (24, 16))
    used = model.positions.add(torch.zeros(1, 25, 24), 0, (6, 4))[0, 1:]
    torch.testing.assert_close(found.flatten(2).flatten(0, 1), cosines(used))


@pytest.mark.parametrize(
    ("positions", "kind"),
    [
        (NoPositions(), "none"),
        (LearnedPositions(), "learned"),
        (LearnedPositions(at="layers"), "learned"),
        (Learned2DPositions(), "learned-2d"),
        (RelativePositions(), "relative"),
        (BiasPositions(), "bias"),
        (BiasPositions(at="shared", table="bicubic"), "bias"),
        (SinusoidalPositions(), "fixed"),
        (Sinusoidal2DPositions(), "fixed"),
    ],
)
def test_every_kind_of_positions_has_its_picture(positions: object, kind: str) -> None:
    model = family("vit", positions=positions)
    assert inspection.kind_of_positions(model) == kind
    if kind in ("none", "relative") or positions == BiasPositions():
        with pytest.raises(ConfigError, match="are no vectors that are added to the tokens"):
            inspection.position_similarity(model)
    else:
        found = inspection.position_similarity(model).flatten(2).flatten(0, 1)
        torch.testing.assert_close(found.diagonal(), torch.ones(15))
        torch.testing.assert_close(found, found.T)


def test_tables_of_layers_are_told_apart() -> None:
    model = family("vit", positions=LearnedPositions(at="layers"))
    assert not torch.equal(
        inspection.position_similarity(model, table=0), inspection.position_similarity(model, table=1)
    )
    with pytest.raises(ConfigError, match="table"):
        inspection.position_similarity(model, table=2)


def test_rows_and_columns_are_compared_among_themselves() -> None:
    model = family("vit", positions=Learned2DPositions())
    rows, cols = inspection.axis_similarity(model)
    assert (rows.shape, cols.shape) == ((3, 3), (5, 5))
    vectors = model.get_parameter("positions.cols.0").detach().double().numpy()
    assert cols[1, 4].item() == pytest.approx(slow.cosine(vectors[1], vectors[4]), abs=1e-6)
    with pytest.raises(ConfigError, match="2-D positions alone"):
        inspection.axis_similarity(family("vit"))


def test_offsets_are_compared_in_every_head() -> None:
    model = family("vit-relative")
    found = inspection.relative_similarity(model)
    assert found.shape == (3, 31, 31)
    keys = model.get_parameter("positions.offsets.0").detach().double().numpy().reshape(31, 3, 8)
    assert found[2, 4, 30].item() == pytest.approx(slow.cosine(keys[4, 2], keys[30, 2]), abs=1e-6)
    with pytest.raises(ConfigError, match="relative positions alone"):
        inspection.relative_similarity(family("vit"))


def test_nearer_sinusoids_are_more_alike() -> None:
    found = inspection.position_similarity(create("ViT-Ti/16", image_size=128, positions="sinusoidal-2d"))
    row = found[3, 0, 3]  # of the first patch in the fourth row, along its row
    assert (row.diff() < 0).all()
