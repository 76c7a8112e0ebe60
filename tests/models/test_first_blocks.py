"""A model that ends after some of its blocks."""

import pytest
import torch
from families import family

from vitrail.errors import ConfigError
from vitrail.models import ViT
from vitrail.models.build import first_blocks


@pytest.mark.parametrize("name", ["vit", "vit-mean", "vit-hidden", "vit-relative", "vit-original", "axial", "hybrid"])
def test_the_first_blocks_read_as_the_whole_does(name: str) -> None:
    model = family(name, depth=3)
    assert isinstance(model, ViT)
    images = torch.randn(2, 3, *model.config.image_size)
    each = len(model.blocks) // 3  # an axial block is two layers
    for count in (1, 2, 3):
        grid = model.grid_of(images)
        tokens = model.embed(images)
        for layer in range(count * each):
            tokens = model.run_block(tokens, layer, grid)
        short = first_blocks(model, count)
        assert not short.training
        torch.testing.assert_close(short.represent(images), model.read_out(model.norm(tokens)))
    assert torch.equal(first_blocks(model, 3)(images), model(images))


def test_only_blocks_that_there_are_can_be_taken() -> None:
    with pytest.raises(ConfigError, match="layer must be a whole number, at least 1 and at most 2; got 3"):
        first_blocks(family("vit"), 3)
    with pytest.raises(ConfigError, match="a BiT has no blocks"):
        first_blocks(family("bit"), 1)
