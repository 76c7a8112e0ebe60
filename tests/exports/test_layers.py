"""What int8 asks of the layers: which cost most, and features of like ranges in front of them."""

import pytest
import torch
from families import FAMILIES, family, images_for
from torch import Tensor, nn

from vitrail.config import RotaryPositions
from vitrail.exports.layers import Layer, evened, layers_called, rank, rounded, rounded_rows
from vitrail.exports.traced import plain
from vitrail.models import Model
from vitrail.models.vit import ViT


def in_int8(model: Model, images: Tensor, *names: str) -> Tensor:
    """What a model gives with the input and weights of these layers, or of all, on grids of 256 levels."""
    for name, layer in model.named_modules():
        if isinstance(layer, Layer) and (name in names or not names):
            rows = layer.weight.data.flatten(1)
            zeros = torch.zeros(len(rows), dtype=torch.int32)
            steps = rows.abs().amax(dim=1) / 127
            levels = torch.fake_quantize_per_channel_affine(rows, steps, zeros, 0, -127, 127)
            layer.weight.data = levels.view_as(layer.weight)
            layer.register_forward_pre_hook(_levels)
    with torch.no_grad():
        return torch.cat([output for output in model.outputs(images) if output is not None], dim=1)


def _levels(_: nn.Module, given: tuple[Tensor]) -> Tensor:
    low, high = min(float(given[0].min()), 0.0), max(float(given[0].max()), 0.0)
    step = (high - low) / 255
    return torch.fake_quantize_per_tensor_affine(given[0], step, round(-low / step), 0, 255)


def with_large_features(model: Model) -> Model:
    """The same function, one feature of each norm's output being large."""
    assert isinstance(model, ViT)
    with torch.no_grad():
        for block in model.blocks:
            for norm, layer in ((block.attention_norm, block.attention.qkv), (block.mlp_norm, block.mlp.expand)):
                norm.weight[5] *= 60
                norm.bias[5] *= 60
                layer.weight[:, 5] /= 60
    return model


EVA = family("vit", mlp="gated", activation="silu", inner_norm="both", positions=RotaryPositions(), width=48)
GATED = family("vit", mlp="gated", registers=3, pooling="token+mean", attention_width=36, qk_norm=True)
POOLED = family("vit", pooling="attention", class_token=False, first_norm=True, projection=11)


@pytest.mark.parametrize("model", [*map(family, FAMILIES), EVA, GATED, POOLED])
def test_an_evened_model_gives_the_same(model: Model) -> None:
    images = images_for(model)
    with torch.no_grad():
        torch.testing.assert_close(evened(model, [images])(images), model(images), atol=2e-5, rtol=1e-5)


def test_large_features_cost_int8_little_once_they_are_evened_out() -> None:
    model = with_large_features(family("vit-mean"))
    images = images_for(model, batch=4)
    exact = in_int8(plain(model), images, "none")
    before = (in_int8(plain(model), images) - exact).square().mean()
    after = (in_int8(evened(model, [images]), images) - exact).square().mean()
    assert after < before / 10


@pytest.mark.parametrize("model", [family("vit", cosine_scale=9.0), family("hybrid-root")], ids=["vit", "hybrid"])
def test_layers_are_ranked_by_what_int8_in_each_alone_costs(model: Model) -> None:
    made, images = plain(model), images_for(model)
    names = [name for name, _ in layers_called(made, images)]
    before = [part.clone() for part in made.state_dict().values()]
    found = [names[place] for place in rank(made, images)]
    assert all(torch.equal(one, other) for one, other in zip(before, made.state_dict().values(), strict=True))
    exact = in_int8(plain(model), images, "none")
    costs = {name: float((in_int8(plain(model), images, name) - exact).square().mean()) for name in names}
    assert found == sorted(names, key=lambda name: -costs[name])
    assert names[0] == ("embedding.projection" if model.config.image_size == (12, 20) else "embedding.resnet.root")


def test_levels_are_those_of_torch() -> None:
    values = torch.randn(7, 11) * torch.logspace(-2, 2, 11)
    torch.testing.assert_close(rounded(values), _levels(nn.Identity(), (values,)))
    steps = values.abs().amax(dim=1) / 127
    wanted = torch.fake_quantize_per_channel_affine(values, steps, torch.zeros(7, dtype=torch.int32), 0, -127, 127)
    torch.testing.assert_close(rounded_rows(values), wanted)
