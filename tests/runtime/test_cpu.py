"""A model made fast on a CPU, against the plain one."""

import threading
from typing import Any

import pytest
import torch
from families import FAMILIES, family, images_for

from vitrail.errors import ConfigError
from vitrail.models import Model
from vitrail.ops import packed
from vitrail.runtime import cpu
from vitrail.runtime.cpu import CPU, Int8Linear, Lanes, check_cpu, modules_for_cpu
from vitrail.runtime.scales import Scales

packs = pytest.mark.skipif(not packed.can_pack(), reason="this torch has no oneDNN")
halves = pytest.mark.skipif(not (packed.can_pack() and cpu.has_bfloat16()), reason="no products in bfloat16")
eights = pytest.mark.skipif(not (packed.can_pack() and cpu.has_int8()), reason="no products in int8")


def compare(model: Model, precision: str, scales: Scales, tolerance: float) -> None:
    """At the model's own size and another, at batches that it is and is not laid out for; the plain one stays."""
    before = {name: held.clone() for name, held in model.state_dict().items()}
    made, own = modules_for_cpu(model, precision, 3, scales), images_for(model, 3)
    step = 24 if FAMILIES.get("hybrid") is model.config else 12
    others = torch.rand(2, 3, own.shape[2] + step, own.shape[3] + 2 * step) * 2 - 1
    for images in (own, others) if precision != "int8" else (own,):
        with torch.no_grad():
            wanted, found = model.outputs(images), made(images)
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours is not None
            assert theirs is not None
            torch.testing.assert_close(ours.float(), theirs, atol=tolerance * float(theirs.abs().max()), rtol=0)
    assert all(torch.equal(held, before[name]) for name, held in model.state_dict().items())


@packs
@pytest.mark.parametrize("name", FAMILIES)
def test_single_precision_is_exact(name: str) -> None:
    compare(family(name), "float32", Scales(), 1e-5)


@packs
@pytest.mark.parametrize("part", [{"mlp": "gated"}, {"qk_norm": True}, {"registers": 2}, {"inner_norm": "both"}])
def test_parts_that_the_paper_lacks_are_computed_too(part: dict[str, Any]) -> None:
    compare(family("vit", **part), "float32", Scales(), 1e-5)


@halves
@pytest.mark.parametrize("name", FAMILIES)
def test_half_precision_is_near(name: str) -> None:
    compare(family(name), "bfloat16", Scales(), 0.03)


@eights
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "bit"])
def test_eight_bits_are_near(name: str) -> None:
    model = family(name)
    compare(model, "int8", CPU.find_scales(model, images_for(model, 3)), 0.08)


@eights
@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_eight_bits_are_those_of_the_plain_products(pooling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = family("vit", pooling=pooling)
    scales, images = CPU.find_scales(model, images_for(model, 3)), images_for(model, 3)
    with torch.no_grad():
        fast = modules_for_cpu(model, "int8", 3, scales)(images)[0]
        monkeypatch.setattr(packed, "pack_int8", lambda weight, rows: weight)
        monkeypatch.setattr(packed, "int8_product", plainly)
        slow = modules_for_cpu(model, "int8", 3, scales)(images)[0]
    torch.testing.assert_close(fast, slow, atol=0.02 * float(slow.abs().max()), rtol=0)


def plainly(levels: torch.Tensor, *how: Any, dtype: torch.dtype, given: tuple[float, int]) -> torch.Tensor:
    found = packed.int8_product_plainly(levels, *how)
    return packed.to_levels(found, *given) if dtype == torch.uint8 else found.to(dtype)


@eights
def test_every_product_of_the_blocks_is_in_eight_bits() -> None:
    model = family("vit")
    made = modules_for_cpu(model, "int8", 3, CPU.find_scales(model, images_for(model, 3)))
    assert sum(isinstance(part, Int8Linear) for part in made.modules()) == 4 + 5


def test_weights_that_are_not_laid_out_are_shared_with_the_plain_model() -> None:
    model = family("vit")
    held = {id(parameter) for parameter in model.parameters()}
    made = modules_for_cpu(model, "float32", 3, Scales())
    assert {id(parameter) for parameter in made.parameters()} <= held


def test_images_are_shared_out_among_the_cores_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []

    def forward(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append((len(images), torch.get_num_threads()))
        assert not torch.is_grad_enabled()
        return images.flatten(1), images.flatten(1) * 2

    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    for count, shares in ((1, [1]), (2, [1, 1]), (3, [3]), (9, [4, 5])):
        seen.clear()
        images = torch.arange(float(count)).reshape(count, 1, 1, 1)
        features, logits = Lanes(forward)(images)
        assert sorted(images for images, _ in seen) == shares
        assert features.flatten().tolist() == [*range(count)]
        assert logits is not None
        assert logits.flatten().tolist() == [2 * number for number in range(count)]


def test_what_the_processor_has_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = family("vit")
    assert check_cpu(model, "auto") == "float32"
    with pytest.raises(ConfigError, match="on a CPU eight bits are int8"):
        check_cpu(model, "float8")
    monkeypatch.setattr(cpu, "has_bfloat16", lambda: True)
    monkeypatch.setattr(cpu, "has_int8", lambda: True)
    monkeypatch.setattr(packed, "can_pack", lambda: False)
    with pytest.raises(ConfigError, match="built without oneDNN"):
        check_cpu(model, "int8")
    with pytest.raises(ConfigError, match="a BiT has none"):
        check_cpu(family("bit"), "int8")
    monkeypatch.setattr(cpu, "has_bfloat16", lambda: False)
    monkeypatch.setattr(cpu, "has_int8", lambda: False)
    for precision in ("bfloat16", "int8"):
        with pytest.raises(ConfigError, match=rf"no products in {precision} .* Take precision=float32"):
            check_cpu(model, precision)


@pytest.mark.parametrize("name", ["vit", "vit-mean", "bit"])
def test_a_torch_without_onednn_has_a_path_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "can_pack", lambda: False)
    model, images = family(name), images_for(family(name), 3)
    with torch.no_grad():
        wanted = model.outputs(images)
    for ours, theirs in zip(CPU.make(model, "float32", None, Scales())(images), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert CPU.engine() == "torch"
    assert threading.active_count() < 20
