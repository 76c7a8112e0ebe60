"""Dropout exactly where the paper puts it, and stochastic depth."""

from typing import Any

import pytest
import torch
from families import family, images_for
from torch import Tensor, nn

from vitrail.models import ViT
from vitrail.models.encoder import StochasticDepth


def vit(**changes: Any) -> ViT:
    model = family("vit", **changes)
    assert isinstance(model, ViT)
    return model.train()


class Marked(nn.Dropout):
    """A dropout that writes down where it stands."""

    seen: list[tuple[int, ...]]

    def forward(self, input: Tensor) -> Tensor:
        self.seen.append(tuple(input.shape))
        return input


def test_dropout_stands_after_positions_and_after_every_dense_layer_but_qkv() -> None:
    model, seen = vit(dropout=0.5, depth=2, representation_width=11), []
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                assert child.p == 0.5
                marked = Marked(child.p)
                marked.seen = seen
                setattr(module, name, marked)
    images = images_for(model)
    model(images)
    block = [(2, 16, 24), (2, 16, 40), (2, 16, 24)]  # after attention's output, inside the MLP, after it
    assert seen == [(2, 16, 24), *block, *block]
    assert model.blocks[0].attention.attention_dropout == 0


def test_dropout_inside_the_mlp_comes_after_the_activation() -> None:
    mlp = vit(dropout=0.5).blocks[0].mlp
    order = []
    for name, module in mlp.named_children():
        module.register_forward_hook(lambda *_, name=name: order.append(name))
    mlp(torch.randn(2, 16, 24))
    assert order == ["expand", "activation", "dropout", "contract"]


def test_dropped_positions_reach_the_first_block() -> None:
    model = vit(dropout=0.5)
    embedded = model.embed(images_for(model))
    assert 0.4 < (embedded == 0).float().mean() < 0.6


def test_evaluation_drops_nothing_and_training_something() -> None:
    model = vit(dropout=0.3, stochastic_depth=0.3, attention_dropout=0.3)
    images = images_for(model)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))
    torch.testing.assert_close(model(images), family("vit")(images))


@pytest.mark.parametrize("layer", [0, 1])
def test_attention_dropout_acts_on_the_weights(layer: int) -> None:
    attention = vit(attention_dropout=0.5).blocks[layer].attention
    tokens = torch.randn(2, 16, 24)
    assert not torch.equal(attention(tokens), attention(tokens))


def test_stochastic_depth_grows_with_the_layer_and_keeps_the_expectation() -> None:
    rates = [block.stochastic_depth.rate for block in vit(stochastic_depth=0.3, depth=4).blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3])
    axial = vit(stochastic_depth=0.3, depth=2, attention="axial", pooling="mean")
    assert [block.stochastic_depth.rate for block in axial.blocks] == pytest.approx([0, 0.1, 0.2, 0.3])
    torch.manual_seed(0)
    branch = torch.ones(20_000, 3, 5)
    dropped = StochasticDepth(0.25)(branch)
    by_image = dropped[:, 0, 0]
    assert torch.equal(dropped, by_image[:, None, None].expand_as(branch))
    assert set(by_image.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs(by_image.mean().item() - 1) < 0.02


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_stochastic_depth_and_dropout_act_on_both_branches(norm: str) -> None:
    block = vit(norm=norm, stochastic_depth=0.5).blocks[1]
    calls = []
    block.stochastic_depth.register_forward_hook(lambda *_: calls.append("depth"))
    block.dropout.register_forward_hook(lambda *_: calls.append("dropout"))
    block(torch.randn(2, 16, 24))
    assert calls == ["dropout", "depth", "dropout", "depth"]
