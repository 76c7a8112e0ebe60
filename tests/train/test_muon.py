"""Muon beside a slow reference, and beside torch's own on matrices that are apart; resumed to the bit; refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import family
from reference import optimizers as reference
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import vitrail
from vitrail.config import parse
from vitrail.config.objective import LoRA, MaskedAutoencoder
from vitrail.config.recipe import Muon, Training
from vitrail.errors import ConfigError
from vitrail.models import Model, ViT, build
from vitrail.models.lora import add_lora
from vitrail.models.objectives import MaskedAutoencoderModel
from vitrail.train.muon import MuonAdamW
from vitrail.train.state import build_optimizer, moments, set_rate

STEPS = 6
PARTS = {"attention.qkv": 3, "attention.out": 1, "mlp.expand": 1, "mlp.contract": 1}
MATRICES = {f"blocks.{layer}.{name}.weight": count for layer in range(2) for name, count in PARTS.items()}
KERNELS = {*MATRICES, "embedding.projection.weight", "head.weight"}


def arrays(model: nn.Module) -> reference.Arrays:
    return {name: parameter.detach().double().numpy().copy() for name, parameter in model.named_parameters()}


def give_gradients(model: nn.Module, step: int) -> reference.Arrays:
    """Random gradients of low rank in part, as real ones are."""
    generator = torch.Generator().manual_seed(step)
    given = {}
    for name, parameter in model.named_parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        if parameter.ndim == 2:
            parameter.grad += 4 * parameter.grad[:, :1] * parameter.grad[:1]
        given[name] = parameter.grad.double().numpy()
    return given


def optimizer_of(model: nn.Module, layer_decay: float | None = None, **fields: Any) -> MuonAdamW:
    made = build_optimizer(model, Muon(**{"weight_decay": 0.2, **fields}), layer_decay)
    assert isinstance(made, MuonAdamW)
    return made


def test_a_muon_is_the_reference_in_float64_within_the_rounding_of_bfloat16() -> None:
    model = family("vit")
    start = arrays(model)
    ours = optimizer_of(model, learning_rate=0.01, adam_share=0.5)
    muon = reference.Muon(start, parts=MATRICES, momentum=0.95, decay=0.2)
    adam = reference.Adam(
        start, base=0.005, decay=0.005 * 0.2, decays=KERNELS - set(MATRICES), betas=(0.9, 0.999), epsilon=1e-8
    )
    for step in range(STEPS):
        given, relative = give_gradients(model, step), 1 - step / 10
        set_rate(ours, 0.01 * relative)
        ours.step()
        muon.step(given, 0.01 * relative)
        adam.step({name: value for name, value in given.items() if name not in MATRICES}, relative)
    for name, found in arrays(model).items():
        if name in MATRICES:
            moved = muon.weights[name] - start[name]
            assert np.linalg.norm(found - muon.weights[name]) < 0.03 * np.linalg.norm(moved), name
        else:
            np.testing.assert_allclose(found, adam.weights[name], rtol=5e-6, atol=1e-6, err_msg=name)
    held = moments(ours, model.named_parameters())
    assert {name for name in held if name.startswith("momentum_buffer/")} == {f"momentum_buffer/{n}" for n in MATRICES}
    for name in MATRICES:
        np.testing.assert_allclose(held[f"momentum_buffer/{name}"].numpy(), muon.buffers[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
def test_it_is_torchs_own_on_queries_keys_and_values_that_are_apart(adjust: str) -> None:
    model = family("vit")
    ours = optimizer_of(model, learning_rate=0.02, adjust=adjust, nesterov=False, newton_schulz_steps=3)
    named = dict(model.named_parameters())
    apart = {
        name: [nn.Parameter(part.clone()) for part in named[name].detach().chunk(n)] for name, n in MATRICES.items()
    }
    torchs = torch.optim.Muon(
        [part for parts in apart.values() for part in parts],
        lr=0.02,
        weight_decay=0.2,
        nesterov=False,
        ns_steps=3,
        adjust_lr_fn=adjust,
    )
    for step in range(STEPS):
        give_gradients(model, step)
        for name, parts in apart.items():
            for part, gradient in zip(parts, whole_gradient(named[name]).chunk(len(parts)), strict=True):
                part.grad = gradient.clone()
        set_rate(ours, 0.02)
        ours.step()
        torchs.step()
    for name, parts in apart.items():
        assert torch.equal(named[name], torch.cat(tuple(parts))), name


def test_a_step_is_a_few_calls_whatever_the_number_of_blocks() -> None:
    def products(depth: int) -> int:
        model = build(parse("ViT-Ti/16", {"depth": depth, "image_size": 32, "width": 48, "heads": 2}), seed=0)
        ours = optimizer_of(model)
        give_gradients(model, 0)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            ours.step()
        return sum(event.count for event in seen.key_averages() if event.key in ("aten::bmm", "aten::baddbmm"))

    assert products(1) == products(5) <= 2 * 3 * 5  # two shapes, three products a step of five


def whole_gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def names_with_muon(module: nn.Module, **fields: Any) -> set[str]:
    found = {id(matrix) for group in optimizer_of(module, **fields).whole for matrix in group["params"]}
    return {name for name, parameter in module.named_parameters() if id(parameter) in found}


def test_matrices_of_every_kind_of_block_have_it_and_nothing_else() -> None:
    for name in ("vit", "vit-relative", "vit-scaled", "hybrid", "axial"):
        model = family(name)
        assert isinstance(model, ViT)
        inside = {f"blocks.{layer}." for layer in range(len(model.blocks))}
        wanted = {each for each, p in model.named_parameters() if p.ndim == 2 and each[:9] in inside}
        assert names_with_muon(model) == wanted
    encoder = family("vit-mean")
    assert isinstance(encoder, ViT)
    both = MaskedAutoencoderModel(encoder, MaskedAutoencoder(decoder_depth=1, decoder_head_width=4), seed=0)
    decoders = {name for name in names_with_muon(both) if name.startswith("blocks.")}
    assert decoders == {f"blocks.0.{part}.weight" for part in PARTS}


def test_a_gate_and_its_values_are_two_matrices() -> None:
    model = build(parse("ViT-Ti/16", {"depth": 1, "image_size": 32, "mlp": "gated", "mlp_width": 24}), seed=0)
    assert sorted(optimizer_of(model).counts.values()) == [1, 1, 2, 3]


def test_layers_below_learn_at_their_share() -> None:
    model = family("vit")
    ours = optimizer_of(model, layer_decay=0.5, learning_rate=0.01)
    set_rate(ours, 0.01)
    before = arrays(model)
    give_gradients(model, 0)
    ours.step()
    after = arrays(model)
    moved = [
        np.linalg.norm(after[name] - before[name])
        for name in ("blocks.0.attention.out.weight", "blocks.1.attention.out.weight")
    ]
    assert moved[0] / moved[1] == pytest.approx(0.5, rel=0.15)


def test_a_step_without_a_gradient_leaves_a_matrix_and_its_memory() -> None:
    model = family("vit")
    ours = optimizer_of(model)
    matrix = dict(model.named_parameters())["blocks.1.mlp.expand.weight"]
    give_gradients(model, 0)
    matrix.grad = None
    before = matrix.clone()
    ours.step()
    assert torch.equal(matrix, before)
    assert not ours.state[matrix]


@pytest.mark.parametrize("name", ["bit", "lora"])
def test_a_model_without_matrices_to_train_is_refused(name: str) -> None:
    model: Model = family("bit" if name == "bit" else "vit")
    if name == "lora":
        model.requires_grad_(requires_grad=False)
        add_lora(model, LoRA(), seed=0)
    with pytest.raises(ConfigError, match=r"none of them is trained here\. Set optimizer=adam"):
        build_optimizer(model, Muon(), None)


def test_it_is_refused_where_weights_are_shared_out_and_for_a_plan_of_a_resnet() -> None:
    with pytest.raises(ConfigError, match=r"whole matrices, which fsdp shares out\. Set parallel=ddp"):
        Training(optimizer=Muon(), steps=3, parallel="fsdp")
    with pytest.raises(ConfigError, match=r"optimizer=muon is of the matrices.*Take adam or sgd"):
        vitrail.plan("BiT-R50x1", optimizer="muon")
    moments_of = {each: vitrail.plan("ViT-Ti/16", optimizer=each).document() for each in ("adam", "muon")}
    assert moments_of["muon"] != moments_of["adam"]


@pytest.mark.slow
@pytest.mark.parametrize("ema", [None, "ema"])
def test_a_run_that_stopped_ends_with_the_same_bits(tmp_path: Path, ema: str | None) -> None:
    generator = np.random.default_rng(3)
    data = (generator.integers(0, 256, (20, 16, 16, 3), dtype=np.uint8), np.arange(20) % 3)
    fields: dict[str, Any] = {"optimizer": "muon", "steps": 7, "batch_size": 8, "validation_share": 0, "ema": ema}
    fields |= {"model.depth": 2, "image_size": 16, "log_every": 1, "quiet": True, "workers": 0, "device": "cpu"}
    fields |= {"model": "ViT-Ti/8", "recipe": "small", "save_every": 2}

    def crash(record: Mapping[str, Any]) -> None:
        if record.get("step") == 5:
            raise InterruptedError

    whole = vitrail.pretrain(data, out=tmp_path / "whole", **fields)
    with pytest.raises(InterruptedError):
        vitrail.pretrain(data, out=tmp_path / "parts", callbacks=crash, **fields)
    again = vitrail.pretrain(data, out=tmp_path / "parts", **fields)
    assert again.history != []
    ours, theirs = whole.model.state_dict(), again.model.state_dict()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
