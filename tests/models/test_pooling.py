"""The mean of all tokens, and which models read tokens in a way that merged and packed sequences cannot give."""

from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from vitrail.errors import ConfigError

IMAGES = list(np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8))


def made(**fields: Any) -> Any:
    return vitrail.create("ViT-Ti/4", image_size=16, depth=4, width=24, classes=3, **{"heads": 3, **fields}).eval()


def test_the_mean_of_all_tokens_counts_the_class_token_too() -> None:
    model = made(pooling="mean-all", class_token=True)
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(model.represent(images), model.tokens(images).mean(dim=1))
    assert model.tokens(images).shape[1] == 17
    assert made(pooling="mean-all").config.class_tokens == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"pooling": "mean-all", "class_token": True},
        {"pooling": "mean", "class_token": True},
        {"pooling": "attention"},
        {"registers": 2},
    ],
    ids=str,
)
def test_tokens_that_merged_and_packed_sequences_do_not_give_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="its classifier reads other tokens"):
        vitrail.predict(made(**fields), IMAGES, token_merging=0.25)
    with pytest.raises(ConfigError, match="parts that packed sequences have not"):
        vitrail.predict(made(**fields), IMAGES, keep_aspect_ratio=True)


@pytest.mark.parametrize("fields", [{"first_norm": True}, {"positions": "rotary", "heads": 2}], ids=str)
def test_parts_of_today_that_packed_sequences_lack_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="parts that packed sequences have not"):
        vitrail.predict(made(**fields), IMAGES, keep_aspect_ratio=True)
