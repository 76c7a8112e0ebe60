"""The parts of a GPU's fast path, where they can be computed: on a CPU, against the plain model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from families import FAMILIES, family, images_for
from torch import Tensor, nn

from vitrail.errors import ConfigError
from vitrail.models import Model, ViT
from vitrail.ops.fused import float8_product_plainly
from vitrail.runtime import gpu
from vitrail.runtime.folded import FixedConv
from vitrail.runtime.gpu import GPU, Float8Linear, FusedMlp, Graphs, check_gpu, modules_for_gpu, rows_for, run_on_gpu
from vitrail.runtime.rebuilt import Outputs
from vitrail.runtime.scales import Scales, find_scales, products_of


def compare(model: Model, precision: str, scales: Scales, tolerance: float) -> None:
    before = {name: held.clone() for name, held in model.state_dict().items()}
    images = images_for(model, 3)
    made = modules_for_gpu(model, precision, scales)
    with torch.no_grad():
        wanted, found = model.outputs(images), made(images.to(next(made.parameters()).dtype))
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(ours.float(), theirs, atol=tolerance * float(theirs.abs().max()), rtol=0)
    for name, held in model.state_dict().items():  # the plain model stays as it is
        assert torch.equal(held, before[name])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_a_model_of_other_products_gives_what_the_plain_one_gives(name: str, precision: str, tolerance: float) -> None:
    compare(family(name), precision, Scales(), tolerance)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "bit"])
def test_eight_bits_are_those_of_the_plain_products(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = family(name, width=48, mlp_width=80)  # the product takes widths that are multiples of 16
    scales = GPU.find_scales(model, images_for(model, 3))
    compare(model, "float8", scales, 0.3)  # three bits of every number, in a model of random weights
    with torch.no_grad():
        fast = modules_for_gpu(model, "float8", scales)(images_for(model, 3).bfloat16())[0].float()
        monkeypatch.setattr(Float8Linear, "multiply", staticmethod(float8_product_plainly))
        slow = modules_for_gpu(model, "float8", scales)(images_for(model, 3).bfloat16())[0].float()
    assert (fast - slow).square().mean().sqrt() < 0.05 * slow.square().mean().sqrt()


def test_every_product_of_the_blocks_is_in_eight_bits_and_nothing_else() -> None:
    model = family("vit", width=48, mlp_width=80)
    made = modules_for_gpu(model, "float8", GPU.find_scales(model, images_for(model, 3)))
    eight = [layer for layer in made.modules() if isinstance(layer, Float8Linear)]
    assert len(eight) == 4 + 5  # of two blocks; the last one's packed layer is in two parts
    assert {layer.weight.dtype for layer in eight} == {torch.float8_e4m3fn}
    assert {layer.scale.dtype for layer in eight} == {torch.float32}
    head = made.get_submodule("model.model.head")
    assert isinstance(head, nn.Linear)
    assert head.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(("activation", "fused"), [("gelu-tanh", True), ("gelu", False), ("relu", False)])
def test_the_form_of_gelu_that_the_gpu_has_in_a_product_is_fused(activation: str, fused: bool) -> None:
    made = modules_for_gpu(family("vit", activation=activation), "bfloat16", Scales())
    assert any(isinstance(part, FusedMlp) for part in made.modules()) == fused


def test_both_parts_of_a_packed_layer_have_the_scale_of_the_whole() -> None:
    model = family("vit", width=48, mlp_width=80)
    scales = GPU.find_scales(model, images_for(model, 3))
    last = modules_for_gpu(model, "float8", scales).get_submodule("model.last")
    for name in ("query", "key_value"):
        part = last.get_submodule(name)
        assert isinstance(part, Float8Linear)
        assert torch.equal(part.weight_scale, scales.weight["blocks.1.attention.qkv"])


def test_scales_are_of_what_products_read() -> None:
    model, images = family("vit"), images_for(family("vit"), 130)
    assert isinstance(model, ViT)
    scales = find_scales(model, images, lambda weight: weight.abs().amax())
    assert scales.read.keys() == scales.weight.keys() == products_of(model).keys()
    assert len(scales.read) == 8
    with torch.no_grad():
        read = model.blocks[0].attention_norm(model.embed(images))
    torch.testing.assert_close(scales.read["blocks.0.attention.qkv"], torch.stack([read.min(), read.max()]))
    assert not any(layer._forward_pre_hooks for layer in model.modules())


def test_filters_are_standardized_once() -> None:
    model = family("bit")
    made = modules_for_gpu(model, "float32", Scales())
    assert not any(isinstance(part, nn.Conv2d) for part in made.modules())
    fixed = [part for part in made.modules() if isinstance(part, FixedConv)]
    assert len(fixed) == sum(isinstance(part, nn.Conv2d) for part in model.modules())
    assert fixed[1].weight.is_contiguous(memory_format=torch.channels_last)


class Captures:
    """What stands in for CUDA's graphs: a pass over what is in the input's place, into the outputs' places."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.replays = 0

    def __call__(self, forward: Callable[[Tensor], Outputs], held: Tensor) -> tuple[Callable[[], object], Outputs]:
        self.shapes.append(tuple(held.shape))
        outputs = forward(held)

        def replay() -> None:
            self.replays += 1
            for place, fresh in zip(outputs, forward(held), strict=True):
                if place is not None:
                    assert fresh is not None
                    place.copy_(fresh)

        return replay, outputs


@pytest.mark.parametrize("classes", [7, None])
def test_batches_are_split_and_filled_up_to_powers_of_two(classes: int | None) -> None:
    model, captures = family("vit", classes=classes), Captures()
    graphs = Graphs(model.outputs, 12, torch.float32, captures)
    with torch.no_grad():
        for count in (1, 3, 12, 29, 3):
            images = torch.randn(count, 3, 12, 20)
            for ours, theirs in zip(graphs(images), model.outputs(images), strict=True):
                assert (ours is None) == (theirs is None) == (classes is None and theirs is None)
                if ours is not None:
                    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
        graphs(torch.randn(2, 3, 16, 12))
    assert [shape[0] for shape in captures.shapes] == [1, 4, 12, 8, 2]
    assert captures.replays == 1 + 1 + 1 + 3 + 1 + 1
    assert [rows_for(count, 256) for count in (1, 2, 3, 100, 129, 256)] == [1, 2, 4, 128, 256, 256]


def test_outputs_of_one_batch_are_not_those_of_the_next() -> None:
    model = family("vit")
    graphs = Graphs(model.outputs, 4, torch.float32, Captures())
    with torch.no_grad():
        first, _ = graphs(torch.zeros(4, 3, 12, 20))
        kept = first.clone()
        graphs(torch.ones(4, 3, 12, 20))
    assert torch.equal(first, kept)


def test_a_precision_that_the_gpu_or_the_model_has_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, Any] = {"is_bf16_supported": lambda **_: False, "get_device_name": lambda device: "an old GPU"}
    said["get_device_capability"] = lambda device: (7, 5)
    for name, value in said.items():
        monkeypatch.setattr(torch.cuda, name, value)
    model = family("vit")
    assert check_gpu(model, "auto") == "float32"
    with pytest.raises(ConfigError, match=r"an old GPU has no float8 .* Take precision=bfloat16"):
        check_gpu(model, "float8")
    with pytest.raises(ConfigError, match="on a GPU eight bits are float8"):
        check_gpu(model, "int8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    assert check_gpu(model, "auto") == "bfloat16"
    assert check_gpu(model, "float8") == "float8"
    with pytest.raises(ConfigError, match="a BiT has none"):
        check_gpu(family("bit"), "float8")


def test_the_whole_path_runs_where_graphs_are_plain_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "capture_graph", Captures())
    model, images = family("vit"), images_for(family("vit"), 5)
    run = run_on_gpu(model, "bfloat16", 4, Scales(), compiled=False)
    with torch.no_grad():
        features, logits = run(images)
        wanted = model.outputs(images)
    assert logits is not None
    assert wanted[1] is not None
    torch.testing.assert_close(features.float(), wanted[0], atol=0.03 * float(wanted[0].abs().max()), rtol=0)
    torch.testing.assert_close(logits.float(), wanted[1], atol=0.03 * float(wanted[1].abs().max()), rtol=0)
