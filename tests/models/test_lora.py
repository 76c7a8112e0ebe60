"""Low-rank changes: forward, gradients and merged weights equal a slow reference in float64, and peft's."""

from typing import Any

import numpy as np
import pytest
import torch
from reference import lora as slow
from torch import Tensor
from torch.nn import functional as F

import vitrail
from vitrail.checkpoint.save import save
from vitrail.config.objective import MATRICES, LoRA
from vitrail.models import Model, ViT
from vitrail.models.adapting import begin_adapting
from vitrail.models.build import skeleton
from vitrail.models.lora import LoRALinear, changed_names, merge
from vitrail.runtime.class_token import ClassTokenForward

WIDTH, WIDE, RANK = 15, 22, 2
SHAPES = {  # layer: its matrices, from which row on, and rows and columns
    "attention.qkv": {"query": 0, "key": WIDTH, "value": 2 * WIDTH},
    "attention.out": {"out": 0},
    "mlp.expand": {"expand": 0},
    "mlp.contract": {"contract": 0},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "gated, normed queries, rotary": {"mlp": "gated", "qk_norm": True, "positions": "rotary", "heads": 3, "width": 24},
    "mean of tokens, axial": {"attention": "axial", "pooling": "mean", "class_token": False},
}


def made(config: LoRA, **fields: Any) -> ViT:
    """A small model in float64 whose changes are not nothing."""
    usual = {"depth": 2, "width": WIDTH, "heads": 3, "mlp_width": WIDE}
    model = vitrail.create("ViT-Ti/4", image_size=12, classes=5, seed=3, **{**usual, **fields})
    assert isinstance(model, ViT)
    begin_adapting(model, config, seed=1)
    model.double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or name.startswith("head"):
                parameter.normal_(0, 0.3, generator=generator)
    return model


def plain_of(model: ViT) -> Model:
    plain = skeleton(model.config).to_empty(device="cpu").double()
    plain.load_state_dict(merge(model, dict(model.named_parameters())))
    return plain.eval()


def images(side: int = 12) -> Tensor:
    return torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@pytest.mark.parametrize("matrices", [MATRICES, ("query", "value"), ("key", "contract")], ids=",".join)
def test_merged_weights_and_gradients_are_those_of_the_reference(matrices: tuple[str, ...]) -> None:
    config = LoRA(rank=RANK, alpha=3.0, matrices=matrices)
    model = made(config)
    base = {name: tensor.detach().clone() for name, tensor in model.named_parameters() if "lora_" not in name}
    plain = plain_of(model)
    labels = torch.tensor([0, 4, 2])
    F.cross_entropy(model(images()), labels).backward()
    F.cross_entropy(plain(images()), labels).backward()
    ours, dense = dict(model.named_parameters()), dict(plain.named_parameters())
    for number in range(2):
        for layer, parts in SHAPES.items():
            path = f"blocks.{number}.{layer}"
            held = {name: first for name, first in parts.items() if name in matrices}
            pairs = {
                first: (ours[f"{path}.lora_A.{name}"].detach().numpy(), ours[f"{path}.lora_B.{name}"].detach().numpy())
                for name, first in held.items()
            }
            expected = slow.merged(base[f"{path}.weight"].numpy(), pairs, 3.0 / RANK)
            np.testing.assert_allclose(dense[f"{path}.weight"].detach().numpy(), expected, rtol=0, atol=1e-15)
            for name, first in held.items():
                inward, outward = pairs[first]
                assert inward.shape[0] == RANK
                whole = dense[f"{path}.weight"].grad
                assert whole is not None
                error = whole[first : first + len(outward)].numpy()
                for side, wanted in zip("AB", slow.gradients(error, inward, outward, 3.0 / RANK), strict=True):
                    found = ours[f"{path}.lora_{side}.{name}"].grad
                    assert found is not None
                    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9, atol=1e-14)
    assert all(ours[name].grad is None for name in ours if "lora_" not in name and not name.startswith("head."))


@pytest.mark.parametrize("fields", FAMILIES.values(), ids=FAMILIES)
def test_the_model_with_changes_gives_what_the_merged_one_gives(fields: dict[str, Any]) -> None:
    model = made(LoRA(rank=RANK), **fields)
    assert len(changed_names(model)) == 4 * model.config.layers
    torch.testing.assert_close(model(images()), plain_of(model)(images()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("matrices", [MATRICES, ("query",), ("key", "value")], ids=",".join)
def test_a_last_block_of_the_class_token_alone_has_the_changes_too(matrices: tuple[str, ...]) -> None:
    model = made(LoRA(rank=RANK, matrices=matrices))
    one, other = ClassTokenForward(model)(images()), model(images())
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_change_is_nothing_at_first_and_drawn_by_the_seed() -> None:
    def begin(seed: int) -> ViT:
        model = vitrail.create("ViT-Ti/4", image_size=12, classes=5, depth=1, width=12, heads=3)
        assert isinstance(model, ViT)
        before = model(images().float())
        begin_adapting(model, LoRA(), seed=seed)
        assert torch.equal(model(images().float()), before)
        return model

    layer, again, other = (begin(seed).blocks[0].attention.qkv for seed in (0, 0, 1))
    assert isinstance(layer, LoRALinear)
    assert isinstance(again, LoRALinear)
    assert isinstance(other, LoRALinear)
    drawn = layer.lora_A["key"]
    assert drawn.shape == (8, 12)
    assert 0.8 < float(drawn.detach().abs().max()) * 12**0.5 < 1
    assert torch.equal(drawn, again.lora_A["key"])
    assert not torch.equal(drawn, other.lora_A["key"])
    assert not torch.equal(drawn, layer.lora_A["value"])


@pytest.mark.slow
def test_it_is_what_peft_computes_on_the_same_matrices(tmp_path: Any) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = LoRA(rank=RANK, alpha=5.0, matrices=("query", "value", "out", "expand", "contract"))
    model = made(config)
    base = skeleton(model.config).to_empty(device="cpu")
    base.load_state_dict({name: value for name, value in model.state_dict().items() if "lora_" not in name})
    save(base, tmp_path / "hf", layout="hf")
    theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path / "hf").double().eval()
    names = {"query": "q_proj", "value": "v_proj", "out": "o_proj", "expand": "fc1", "contract": "fc2"}
    wrapped = peft.get_peft_model(theirs, peft.LoraConfig(r=RANK, lora_alpha=5.0, target_modules=[*names.values()]))
    wrapped = wrapped.double().eval()
    layers = {"query": "attention.qkv", "value": "attention.qkv", "out": "attention.out"}
    found = {
        (number, matrix): next(
            module
            for name, module in wrapped.named_modules()
            if f"layers.{number}." in name and name.endswith(f".{suffix}")
        )
        for number in range(2)
        for matrix, suffix in names.items()
    }
    with torch.no_grad():
        for (number, matrix), layer in found.items():
            path = f"blocks.{number}.{layers.get(matrix, f'mlp.{matrix}')}"
            layer.lora_A["default"].weight.copy_(model.get_parameter(f"{path}.lora_A.{matrix}"))
            layer.lora_B["default"].weight.copy_(model.get_parameter(f"{path}.lora_B.{matrix}"))
        logits = wrapped(images()).logits
    torch.testing.assert_close(model(images()), logits, rtol=1e-6, atol=1e-6)
