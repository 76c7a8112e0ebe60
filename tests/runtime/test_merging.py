"""A ViT that merges tokens: against a slow reference, where it merges nothing away, and what it refuses."""

from typing import Any

import pytest
import torch
from families import family
from reference import merging as reference

from vitrail.config import Learned2DPositions, LearnedPositions, NoPositions, RelativePositions
from vitrail.errors import ConfigError
from vitrail.evaluation.cached import digest_of
from vitrail.models import ViT
from vitrail.runtime.merging import MergedModel


def deep(name: str = "vit", **changes: Any) -> ViT:
    """A model of four layers and 15 patches."""
    model = family(name, depth=4, **changes)
    assert isinstance(model, ViT)
    return model


@pytest.mark.parametrize(
    "changes",
    [{}, {"pooling": "mean", "layer_scale": 0.5}, {"positions": Learned2DPositions()}],
    ids=["class token", "mean, layer scale", "2-D"],
)
def test_it_gives_what_the_slow_reference_gives(changes: dict[str, Any]) -> None:
    model, images = deep(**changes), torch.randn(3, 3, 12, 20)
    merged = MergedModel(model, 0.6).eval()
    schedule = merged.schedule((3, 5))
    assert sum(schedule) == 9
    with torch.no_grad():
        embedded, found = model.embed(images), merged.represent(images)
        for image in range(3):
            wanted = reference.represent(
                model.state_dict(), embedded[image], 3, schedule, class_token=model.class_token is not None
            )
            assert torch.allclose(found[image], wanted, atol=1e-5)
        features, logits = merged.outputs(images)
        assert torch.equal(merged(images), model.head(found))
        assert logits is not None
        assert torch.equal(features, found)
        assert not torch.allclose(logits, model(images), atol=1e-3)  # which something was merged for


@pytest.mark.parametrize("pooling", ["token", "mean", "max"])
def test_patches_that_are_all_alike_lose_nothing(pooling: str) -> None:
    model = deep(pooling=pooling, positions=NoPositions())
    images = torch.randn(2, 3, 1, 1).expand(-1, -1, 12, 20).contiguous()
    with torch.no_grad():
        assert torch.allclose(MergedModel(model, 0.6)(images), model(images), atol=1e-5)


def test_an_image_of_another_size_merges_the_same_share_and_neighbours_change_nothing() -> None:
    model, images = deep(), torch.randn(3, 3, 20, 28)
    merged = MergedModel(model, 0.4)
    assert sum(merged.schedule((5, 7))) == 14
    with torch.no_grad():
        assert torch.allclose(merged(images)[1:2], merged(images[1:2]), atol=1e-6)


def test_a_hybrid_merges_and_a_model_without_a_classifier_gives_features() -> None:
    model, images = deep("hybrid", classes=None), torch.randn(1, 3, 24, 41)
    with torch.no_grad():
        assert MergedModel(model, 0.5)(images).shape == (1, 24)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention": "axial", "pooling": "mean"}, "axial attention runs along rows"),
        ({"causal": True, "pooling": "mean"}, "see only those before them"),
        ({"norm": "post"}, "norms come after"),
        ({"positions": RelativePositions()}, "relative positions are of pairs"),
        ({"positions": LearnedPositions(at="layers")}, "positions are added before every layer"),
    ],
)
def test_models_whose_tokens_cannot_be_merged_are_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"{reason}.*Leave token_merging out"):
        MergedModel(deep(**changes), 0.5)


def test_a_bit_and_what_is_no_share_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"and a BiT has none\. Leave token_merging out"):
        MergedModel(family("bit"), 0.5)
    with pytest.raises(ConfigError, match="what runs this model does not give them"):
        MergedModel(MergedModel(deep(), 0.3), 0.5)
    for share in (0, 1, -0.5, 3, True):
        with pytest.raises(ConfigError, match="token_merging must be "):
            MergedModel(deep(), share)


def test_tokens_that_have_no_place_are_not_shown() -> None:
    merged, images = MergedModel(deep(), 0.5), torch.randn(1, 3, 12, 20)
    for look in (merged.tokens, merged.feature_map, merged.attention_maps):
        with pytest.raises(ConfigError, match="merged tokens have no places in the image"):
            look(images)


def test_kept_rows_are_apart_by_what_is_merged() -> None:
    model = deep()
    assert len({digest_of(each) for each in (model, MergedModel(model, 0.3), MergedModel(model, 0.5))}) == 3


@pytest.mark.usefixtures("untyped")
def test_one_graph_compiles_all_of_it() -> None:
    model, images = deep(), torch.randn(2, 3, 12, 20)
    merged = MergedModel(model, 0.6).eval()
    with torch.no_grad():
        compiled = torch.compile(merged, fullgraph=True, backend="eager")
        assert torch.allclose(compiled(images), merged(images), atol=1e-5)
