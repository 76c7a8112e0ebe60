"""Forty steps of real small models beside a reference in float64; what decays, and at which share of the rate."""

import numpy as np
import pytest
import torch
from families import family
from reference import optimizers as reference
from reference.optimizers import Arrays
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from vitrail.config.recipe import EMA, SGD, Adam, Schedule, decay_at, rate_at
from vitrail.errors import ConfigError
from vitrail.models import Model
from vitrail.train.state import ModelEMA, build_optimizer, clip, gradients, moments, set_rate

STEPS = 40
BLOCK = ("attention.qkv", "attention.out", "mlp.expand", "mlp.contract")
BLOCKS = {f"blocks.{layer}.{part}.weight" for layer in range(2) for part in BLOCK}
UNIT = ("conv1", "conv2", "conv3")
# Every kernel of the small models, as they are laid out on paper.
KERNELS = {
    "vit": BLOCKS | {"embedding.projection.weight", "head.weight"},
    "vit-hidden": BLOCKS | {"embedding.projection.weight", "hidden.weight", "head.weight"},
    "vit-relative": BLOCKS | {"embedding.projection.weight", "head.weight"},
    "vit-scaled": BLOCKS | {"embedding.projection.weight", "head.weight"},
    "hybrid": BLOCKS
    | {f"embedding.resnet.stages.{unit}.{conv}.weight" for unit in ("0.0", "0.1", "1.0") for conv in UNIT}
    | {f"embedding.resnet.stages.{unit}.shortcut.0.weight" for unit in ("0.0", "1.0")}
    | {"embedding.resnet.root.weight", "embedding.patches.projection.weight", "head.weight"},
    "bit": {f"stages.{unit}.{conv}.weight" for unit in ("0.0", "0.1", "1.0") for conv in UNIT}
    | {f"stages.{unit}.shortcut.weight" for unit in ("0.0", "1.0")}
    | {"root.weight", "head.weight"},
}


def arrays(named: dict[str, Tensor]) -> Arrays:
    return {name: tensor.detach().double().numpy().copy() for name, tensor in named.items()}


def weights_of(model: nn.Module) -> Arrays:
    return arrays(dict(model.named_parameters()))


def give_gradients(model: nn.Module, step: int, scale: float = 0.1) -> Arrays:
    """Random gradients of very different sizes, the same for the model and for the reference."""
    generator = torch.Generator().manual_seed(1000 + step)
    for number, parameter in enumerate(model.parameters()):
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.grad = (drawn * scale * 2.0 ** (number % 5 - 2)).to(parameter.dtype)
    return arrays({name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None})


def assert_equal(model: nn.Module, expected: Arrays, rtol: float = 1e-11) -> None:
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach().double().numpy(), expected[name], rtol, atol=1e-13, err_msg=name)


def group_of(optimizer: Optimizer, model: nn.Module, value: str) -> dict[str, float]:
    """A value of each parameter's group, by its name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(item)]: group[value] for group in optimizer.param_groups for item in group["params"]}


@pytest.mark.parametrize("name", ["vit", *(pytest.param(name, marks=pytest.mark.slow) for name in ("hybrid", "bit"))])
def test_adam_is_the_authors_with_decay_on_kernels_by_the_relative_schedule(name: str) -> None:
    model = family(name, torch.float64)
    base, schedule = 1e-3, Schedule(curve="linear", warmup_steps=9, final_learning_rate=1e-5)
    # Their weight decay of 1e-4 at a rate of 1e-3 is AdamW's 0.1.
    ours = build_optimizer(model, Adam(learning_rate=base, betas=(0.9, 0.99), weight_decay=0.1), None)
    theirs = reference.Adam(
        weights_of(model), base=base, decay=1e-4, decays=KERNELS[name], betas=(0.9, 0.99), epsilon=1e-8
    )
    for step in range(STEPS):
        rate = rate_at(schedule, base, step, STEPS)
        theirs.step(give_gradients(model, step), reference.linear(1.0, 1e-5 / base, 9, step, STEPS))
        set_rate(ours, rate)
        ours.step()
        assert_equal(model, theirs.weights)


def test_in_single_precision_adam_stays_within_rounding_and_is_torchs() -> None:
    model, twin = family("vit"), family("vit")
    config = Adam(learning_rate=2e-3, weight_decay=0.05, decay_on="all")
    ours = build_optimizer(model, config, None)
    torchs = AdamW(twin.parameters(), lr=2e-3, weight_decay=0.05)
    theirs = reference.Adam(
        weights_of(model), base=2e-3, decay=1e-4, decays=set(weights_of(model)), betas=(0.9, 0.999), epsilon=1e-8
    )
    for step in range(STEPS):
        theirs.step(give_gradients(model, step), 1.0)
        give_gradients(twin, step)
        ours.step()
        torchs.step()
    for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=2e-7)
        np.testing.assert_allclose(one.detach().numpy(), theirs.weights[name], rtol=5e-6, atol=1e-6)


def test_sgd_adds_decay_times_a_kernel_to_its_gradient() -> None:
    model, step, rate, decay = family("vit", torch.float64), 3, 0.05, 0.02
    before = weights_of(model)
    grads = give_gradients(model, step)
    build_optimizer(model, SGD(learning_rate=rate, momentum=0.0, weight_decay=decay), None).step()
    expected = {
        name: value - rate * (grads[name] + (decay * value if name in KERNELS["vit"] else 0.0))
        for name, value in before.items()
    }
    assert_equal(model, expected)


@pytest.mark.parametrize("name", KERNELS)
def test_matrices_and_filters_decay_and_nothing_else(name: str) -> None:
    model = family(name)
    decays = group_of(build_optimizer(model, Adam(weight_decay=0.3), None), model, "weight_decay")
    assert {item for item, decay in decays.items() if decay == 0.3} == KERNELS[name]
    assert {decay for item, decay in decays.items() if item not in KERNELS[name]} == {0.0}
    assert decays.keys() == dict(model.named_parameters()).keys()
    everything = group_of(build_optimizer(model, Adam(weight_decay=0.3, decay_on="all"), None), model, "weight_decay")
    assert set(everything.values()) == {0.3}
    assert set(group_of(build_optimizer(model, SGD(), None), model, "weight_decay").values()) == {0.0}


def test_sgd_with_momentum_and_clipping_is_the_references_at_every_step() -> None:
    model = family("vit", torch.float64)
    schedule = Schedule(curve="cosine", warmup_steps=7)
    ours, theirs = build_optimizer(model, SGD(learning_rate=0.03), None), reference.SGD(weights_of(model), momentum=0.9)
    clips = set()
    for step in range(STEPS):
        given = give_gradients(model, step, scale=0.002 if step % 3 else 0.2)  # some within the limit, some over
        theirs.step(reference.clipped(given, 1.0), reference.cosine(0.03, 0.0, 7, step, STEPS))
        norm = float(clip(gradients(ours), 1.0))
        clips.add(norm > 1)
        assert norm == pytest.approx(np.sqrt(sum((gradient**2).sum() for gradient in given.values())), rel=1e-12)
        set_rate(ours, rate_at(schedule, 0.03, step, STEPS))
        ours.step()
        assert_equal(model, theirs.weights)
    assert clips == {True, False}


@pytest.mark.slow
def test_bits_staircase_drives_sgd_as_the_hyperrule_does() -> None:
    model = family("bit", torch.float64)
    supports = (4, 10, 17, 25, STEPS)
    schedule = Schedule(curve="staircase", warmup_steps=4, milestones=supports[1:-1])
    ours, theirs = (
        build_optimizer(model, SGD(learning_rate=0.003), None),
        reference.SGD(weights_of(model), momentum=0.9),
    )
    for step in range(STEPS):
        expected = reference.hyperrule(0.003, supports, step)
        assert expected is not None
        theirs.step(give_gradients(model, step), expected)
        set_rate(ours, rate_at(schedule, 0.003, step, STEPS))
        ours.step()
        assert_equal(model, theirs.weights)


def test_clipping_leaves_small_gradients_as_they_are_bit_for_bit() -> None:
    model = family("vit")
    optimizer = build_optimizer(model, SGD(), None)
    give_gradients(model, 0)
    before = [gradient.clone() for gradient in gradients(optimizer)]
    norm = clip(gradients(optimizer), None)
    assert norm == clip(gradients(optimizer), float(norm) + 1)
    for one, other in zip(before, gradients(optimizer), strict=True):
        assert torch.equal(one, other)
    clip(gradients(optimizer), 0.25)
    assert float(clip(gradients(optimizer), None)) == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("average", [EMA(decay=0.9), EMA(decay=0.8, ramp=True)])
def test_the_average_follows_the_weights_step_by_step(average: EMA) -> None:
    model = family("vit", torch.float64)
    averaged, optimizer = ModelEMA(model), build_optimizer(model, SGD(learning_rate=0.1), None)
    expected = weights_of(model)
    for step in range(STEPS):
        give_gradients(model, step)
        optimizer.step()
        averaged.update(model, decay_at(average, step))
        share = min(average.decay, (1 + step) / (10 + step)) if average.ramp else average.decay
        expected = {name: share * expected[name] + (1 - share) * new for name, new in weights_of(model).items()}
        for name, weight in averaged.weights.items():
            np.testing.assert_allclose(weight.numpy(), expected[name], rtol=1e-11, atol=1e-13)


def test_the_average_goes_into_the_model_and_out_again_bit_for_bit() -> None:
    model = family("vit")
    averaged = ModelEMA(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.7)
    places = [parameter.data_ptr() for parameter in model.parameters()]
    raw = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    mean = {name: weight.clone() for name, weight in averaged.weights.items()}

    def assert_is(tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)

    with averaged.inside(model):
        assert_is(dict(model.named_parameters()), mean)
    assert_is(dict(model.named_parameters()), raw)
    assert_is(averaged.weights, mean)
    with pytest.raises(RuntimeError, match="halfway"), averaged.inside(model):
        raise RuntimeError("halfway")
    assert_is(dict(model.named_parameters()), raw)
    assert_is(averaged.weights, mean)
    assert [parameter.data_ptr() for parameter in model.parameters()] == places


def layer_shares(model: Model, decay: float) -> dict[str, float]:
    return group_of(build_optimizer(model, Adam(learning_rate=0.1, weight_decay=0.2), decay), model, "share")


def test_each_blocks_rate_is_a_share_of_the_next_ones() -> None:
    model = family("vit-hidden")
    shares = layer_shares(model, 0.5)
    expected = {"class_token": 0.125, "embedding": 0.125, "positions": 0.125, "norm": 1.0, "hidden": 1.0, "head": 1.0}
    for name, share in shares.items():
        first, second, *_ = *name.split("."), ""
        assert share == {"0": 0.25, "1": 0.5}[second] if first == "blocks" else share == expected[first], name
    assert layer_shares(family("hybrid"), 0.5)["embedding.resnet.root.weight"] == 0.125
    assert layer_shares(family("axial"), 0.5)["blocks.0.attention.out.weight"] == 1 / 16  # a row and a column a block


def test_layerwise_rates_and_decay_are_the_references() -> None:
    model = family("vit", torch.float64)
    shares = layer_shares(model, 0.75)
    config = Adam(learning_rate=0.01, weight_decay=0.2)
    ours = build_optimizer(model, config, 0.75)
    theirs = reference.Adam(
        weights_of(model), base=0.01, decay=0.01 * 0.2, decays=KERNELS["vit"], betas=(0.9, 0.999), epsilon=1e-8
    )
    for step in range(12):
        theirs.step(give_gradients(model, step), 1 - step / 20, shares)
        set_rate(ours, 0.01 * (1 - step / 20))
        ours.step()
    assert_equal(model, theirs.weights)


def test_layerwise_rates_of_a_resnet_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"layer_decay is of a Vision Transformer's blocks.*Set layer_decay=none"):
        build_optimizer(family("bit"), SGD(), 0.75)


def test_frozen_weights_stay_and_memory_is_named_by_the_parameter() -> None:
    model = family("vit")
    model.head.requires_grad_(False)
    frozen = model.head.weight.clone() if isinstance(model.head, nn.Linear) else None
    optimizer = build_optimizer(model, Adam(weight_decay=0.5), None)
    give_gradients(model, 0)
    optimizer.step()
    assert isinstance(model.head, nn.Linear)
    assert frozen is not None
    assert torch.equal(model.head.weight, frozen)
    found = moments(optimizer, model.named_parameters())
    assert {name.partition("/")[0] for name in found} == {"exp_avg", "exp_avg_sq"}
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name.partition("/")[2] for name in found} == trained
    gradient = dict(model.named_parameters())["norm.bias"].grad
    assert gradient is not None
    torch.testing.assert_close(found["exp_avg/norm.bias"], 0.1 * gradient)
