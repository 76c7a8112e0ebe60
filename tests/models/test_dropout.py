"""Dropout exactly where the paper puts it, stochastic depth, and what the samples' keys decide of both."""

import copy
from typing import Any

import pytest
import torch
from families import family, images_for
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from vitrail.errors import ShapeError
from vitrail.models import ViT, give_keys
from vitrail.models.encoder import Dropout, SampleRandom, StochasticDepth

KEYS = torch.tensor([-(2**63), 2**63 - 1, 0, 1, 2, 3, -1, 2**32, 5 * 2**32 + 1, 10**15, -(10**15), 77])
RANDOM: dict[str, Any] = {"dropout": 0.3, "stochastic_depth": 0.4}


def vit(**changes: Any) -> ViT:
    model = family("vit", **changes)
    assert isinstance(model, ViT)
    return model.train()


class Marked(Dropout):
    """A dropout that writes down where it stands."""

    seen: list[tuple[int, ...]]

    def forward(self, features: Tensor) -> Tensor:
        self.seen.append(tuple(features.shape))
        return features


def test_dropout_stands_after_positions_and_after_every_dense_layer_but_qkv() -> None:
    model, seen = vit(dropout=0.5, depth=2, representation_width=11), []
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Dropout):
                assert child.rate == 0.5
                marked = Marked(child.rate)
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
    blocks = vit(stochastic_depth=0.3, depth=4).blocks
    assert [block.attention_stochastic_depth.rate for block in blocks] == pytest.approx([0, 0.1, 0.2, 0.3])
    axial = vit(stochastic_depth=0.3, depth=2, attention="axial", pooling="mean")
    assert [block.mlp_stochastic_depth.rate for block in axial.blocks] == pytest.approx([0, 0.1, 0.2, 0.3])
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
    for name, module in block.named_children():
        if isinstance(module, SampleRandom):
            module.register_forward_hook(lambda *_, name=name: calls.append(name))
    block(torch.randn(2, 16, 24))
    order = ["attention_output_dropout", "attention_stochastic_depth", "mlp_output_dropout", "mlp_stochastic_depth"]
    assert calls == order


def test_how_a_batch_is_cut_changes_nothing_where_samples_have_keys() -> None:
    model = family("vit", torch.float64, **RANDOM).train()
    images = images_for(model, batch=12, dtype=torch.float64)
    give_keys(model, KEYS)
    whole = model(images)
    whole.square().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    parts = []
    for rows in (slice(0, 5), slice(5, 12)):
        torch.manual_seed(rows.start)
        give_keys(model, KEYS[rows])
        parts.append(model(images[rows]))
        parts[-1].square().sum().backward()
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=1e-12)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-10)


def test_a_sample_takes_its_masks_along_and_other_keys_have_others() -> None:
    model = vit(**RANDOM)
    images, order = images_for(model, batch=1).expand(12, -1, -1, -1), torch.randperm(12)
    give_keys(model, KEYS)
    logits = model(images)
    assert len(logits.unique(dim=0)) == 12
    give_keys(model, KEYS[order])
    torch.testing.assert_close(model(images), logits[order])
    give_keys(model, KEYS + 1000)
    assert (model(images) != logits).all(dim=1).all()


def test_no_two_modules_share_masks() -> None:
    model = vit(depth=4, **RANDOM)
    give_keys(model, torch.arange(3000))
    ones = torch.ones(3000, 3, 5)
    for kind, count in ((Dropout, 1 + 4 * 3), (StochasticDepth, 3 * 2)):
        modules = [module for module in model.modules() if isinstance(module, kind) and module.rate > 0]
        kept = torch.stack([module(ones)[:, 0, 0] > 0 for module in modules]).float()
        assert len(kept) == count
        assert (torch.corrcoef(kept) - torch.eye(count)).abs().max() < 5 / 3000**0.5


def test_wrapping_copying_and_replacing_change_no_mask() -> None:
    model = vit(**RANDOM)
    images = images_for(model, batch=12)
    give_keys(model, KEYS)
    expected = model(images)
    twin = copy.deepcopy(model)
    twin.blocks[1] = copy.deepcopy(twin.blocks[0])
    twin.blocks[1].load_state_dict(model.blocks[1].state_dict())
    for part in (twin.blocks[1].attention_stochastic_depth, twin.blocks[1].mlp_stochastic_depth):
        part.rate = model.blocks[1].mlp_stochastic_depth.rate
    for other in (copy.deepcopy(model), twin, nn.Sequential(nn.Sequential(model))):
        give_keys(other, None)
        give_keys(other, KEYS)
        torch.testing.assert_close(other(images), expected)
    assert model.state_dict().keys() == vit().state_dict().keys()


def test_without_keys_torch_draws_as_it_always_did() -> None:
    features = torch.randn(7, 3, 5)
    torch.manual_seed(3)
    expected = nn.Dropout(0.3)(features)
    by_image = features * (torch.empty(7, 1, 1).bernoulli_(0.6) / 0.6)
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.3)(features), expected)
    assert torch.equal(StochasticDepth(0.4)(features), by_image)


@pytest.mark.parametrize("kind", [Dropout, StochasticDepth])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_keys_keep_the_expectation_and_evaluation_ignores_them(kind: type[SampleRandom], dtype: torch.dtype) -> None:
    module, features = kind(0.25), torch.ones(20_000, 3, 5, dtype=dtype)
    give_keys(module, torch.arange(20_000))
    dropped = module(features)
    assert dropped.dtype == dtype
    assert set(dropped.unique().tolist()) == {0.0, torch.tensor(1 / 0.75, dtype=dtype).item()}
    assert abs(dropped.double().mean().item() - 1) < 0.02
    assert torch.equal(module.eval()(features), features)


def test_gradients_pass_what_is_kept_and_autograd_keeps_a_byte_for_each_number() -> None:
    dropout, features = Dropout(0.3), torch.randn(12, 3, 5, requires_grad=True)
    give_keys(dropout, KEYS)
    stored: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: stored.append(x.untyped_storage().nbytes()) or x, lambda x: x
    ):
        dropped = dropout(features)
    assert stored == [12 * 3 * 5]
    dropped.sum().backward()
    torch.testing.assert_close(features.grad, (dropped != 0) / 0.7)


def test_keys_of_another_batch_are_refused() -> None:
    model = vit(**RANDOM)
    give_keys(model, KEYS)
    with pytest.raises(
        ShapeError, match=r"a batch of 2 needs a key for each .* got 12 keys. .*give_keys\(model, keys\)"
    ):
        model(images_for(model))
    give_keys(model, None)
    model(images_for(model))


def test_checkpointing_draws_the_same_masks_again() -> None:
    plain, sparing = (family("vit", torch.float64, checkpointing=again, **RANDOM).train() for again in (False, True))
    images = images_for(plain, batch=12, dtype=torch.float64)
    for model in (plain, sparing):
        give_keys(model, KEYS)
        F.cross_entropy(model(images), torch.arange(12) % 7).backward()
    for one, other in zip(plain.parameters(), sparing.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)


@pytest.mark.slow
def test_a_compiled_model_draws_the_same_masks_and_is_not_compiled_again_for_other_keys(untyped: None) -> None:
    torch.compiler.reset()
    model, counter = vit(**RANDOM), CompileCounterWithBackend("aot_eager")
    compiled: Any = torch.compile(model, fullgraph=True, backend=counter)
    images = images_for(model, batch=12)
    for keys in (KEYS, KEYS + 1, KEYS.flip(0)):
        give_keys(compiled, keys)
        logits = compiled(images)
        logits.sum().backward()
        torch.testing.assert_close(logits, model(images))
    assert counter.frame_count == 1


def test_blocks_that_are_compiled_one_by_one_share_one_program(untyped: None) -> None:
    torch.compiler.reset()
    model, counter = vit(dropout=0.3, depth=10), CompileCounterWithBackend("aot_eager")
    images = images_for(model, batch=12)
    give_keys(model, KEYS)
    expected = model(images)
    for block in model.blocks:
        block.compile(fullgraph=True, backend=counter)
    with torch.no_grad():
        torch.testing.assert_close(model(images), expected)
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["vit", "axial"])
def test_a_model_with_keys_exports_in_evaluation(untyped: None, name: str) -> None:
    model = family(name, **RANDOM)
    give_keys(model, KEYS)
    program = torch.export.export(model, (images_for(model),))
    torch.testing.assert_close(program.module()(images_for(model)), model(images_for(model)))
