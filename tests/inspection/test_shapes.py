import pytest
import torch
from families import family, images_for

from vitrail.errors import ConfigError
from vitrail.inspection import trace_shapes
from vitrail.models import ViT


@pytest.mark.parametrize(("name", "tokens"), [("vit", 16), ("vit-mean", 15)])
def test_every_shape_is_measured(name: str, tokens: int) -> None:
    model = family(name)
    assert isinstance(model, ViT)
    shapes = {step.what: step.shape for step in trace_shapes(model, images_for(model))}
    assert shapes == {
        "image": (2, 3, 12, 20),
        "patches": (2, 15, 48),
        "projected": (2, 15, 24),
        "tokens": (2, tokens, 24),
        "query, key, value": (2, tokens, 72),
        "queries by head": (2, 3, tokens, 8),
        "attention weights": (2, 3, tokens, tokens),
        "inside the MLP": (2, tokens, 40),
        "encoded tokens": (2, tokens, 24),
        "representation": (2, 24),
        "logits": (2, 7),
    }


def test_a_hybrid_has_another_story() -> None:
    model = family("hybrid")
    assert isinstance(model, ViT)
    with pytest.raises(ConfigError, match="Take a plain ViT"):
        trace_shapes(model, torch.rand(1, 3, 24, 41))
