"""What is said of a file: its layout, its model, its numbers, and what is odd."""

from pathlib import Path

import numpy as np
import pytest
import torch
from families import FAMILIES, family
from peers import saved, timm_model
from reference import cases, shapes
from safetensors.torch import save_file

import vitrail
from vitrail.errors import CheckpointError


def test_a_file_is_described_by_what_is_in_it(tmp_path: Path) -> None:
    theirs = timm_model("vit_tiny_patch16_224", depth=12)
    found = vitrail.describe(saved(theirs, tmp_path / "x.safetensors"))
    assert (found.layout, found.container, found.model) == ("timm", "safetensors", "ViT-Ti/16")
    assert found.parameters == sum(parameter.numel() for parameter in theirs.parameters()) == 5_717_416
    assert found.size == (tmp_path / "x.safetensors").stat().st_size
    assert found.reason is None
    state = theirs.state_dict()
    assert {tensor.name: tensor.shape for tensor in found.tensors} == {
        name: tuple(tensor.shape) for name, tensor in state.items()
    }
    for tensor in found.tensors:
        numbers = state[tensor.name].double()
        assert tensor.mean == pytest.approx(numbers.mean().item(), abs=1e-6)
        assert tensor.deviation == pytest.approx(numbers.std(correction=0).item(), rel=1e-4)
        assert (tensor.low, tensor.high) == (numbers.min().item(), numbers.max().item())
    assert found.odd == ()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_of_ours_is_described(name: str, tmp_path: Path) -> None:
    model = family(name)
    vitrail.save(model, tmp_path / "run")
    found = vitrail.describe(tmp_path / "run")
    assert found.config == model.config
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_names_of_the_paper_are_found(tmp_path: Path) -> None:
    for name in ("ViT-Ti/16", "R+ViT-Ti/16", "R26+ViT-S/32", "Axial-ViT-B/32", "BiT-R50x1", "ViT-b/32"):
        config = vitrail.create(name, device="meta").config
        from vitrail.config import name_of

        assert name_of(config) == name


def test_what_is_odd_is_said(tmp_path: Path) -> None:
    model = family("vit", image_size=(20, 20))
    with torch.no_grad():
        model.get_parameter("head.weight").zero_()
        model.get_parameter("head.bias").zero_()
        model.get_parameter("blocks.1.mlp.expand.weight").fill_(0.25)
        model.get_parameter("class_token").zero_()
        model.get_parameter("norm.bias")[0] = 3e6
    vitrail.save(model, tmp_path / "x.npz", layout="google")
    said = "; ".join(vitrail.describe(tmp_path / "x.npz").odd)
    assert "the classifier is all zeros, as in the authors' ImageNet-21k releases" in said
    assert "all numbers are the same in Transformer/encoderblock_1/MlpBlock_0/Dense_0/kernel" in said
    assert "the class token is all 0" in said
    assert "numbers over 10,000 in Transformer/encoder_norm/bias" in said
    headless = family("vit", classes=None)
    vitrail.save(headless, tmp_path / "run")
    assert "there is no classifier" in vitrail.describe(tmp_path / "run").odd[0]
    vitrail.save(vitrail.create("ViT-Ti/16", image_size=32), tmp_path / "fresh")
    assert "the weights look untrained" in "; ".join(vitrail.describe(tmp_path / "fresh").odd)


def test_numbers_that_are_none_are_counted_where_loading_refuses_them(tmp_path: Path) -> None:
    layout = shapes.vit(width=24, depth=1, heads=3, mlp=40, patch=4, tokens=1 + 9, classes=7)
    arrays = {name: cases.draw(name, shape, 3) for name, shape in layout.items()}
    arrays["head/kernel"][2, 3] = np.nan
    arrays["cls"][:] = np.inf
    np.savez(tmp_path / "x.npz", **arrays)  # pyright: ignore[reportArgumentType]
    found = vitrail.describe(tmp_path / "x.npz")
    assert "25 numbers are not finite, in " in found.odd[0]
    with pytest.raises(CheckpointError, match=r"holds numbers that are not finite \(NaN or infinity\)"):
        vitrail.load(tmp_path / "x.npz")
    with pytest.raises(CheckpointError, match="not finite"):
        vitrail.convert(tmp_path / "x.npz", tmp_path / "run", layout="vitrail")


def test_a_stranger_is_described_too_with_the_reason_why_it_is_one(tmp_path: Path) -> None:
    save_file({"conv1.weight": torch.ones(2, 3), "steps": torch.tensor(4)}, tmp_path / "x.safetensors")
    found = vitrail.describe(tmp_path / "x.safetensors")
    assert found.layout is None
    assert found.config is None
    assert "no ViT, hybrid or BiT in any layout that is known" in (found.reason or "")
    assert {tensor.name: tensor.shape for tensor in found.tensors} == {"conv1.weight": (2, 3), "steps": ()}
    assert found.parameters == 7
    model = timm_model("test_vit")
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "blocks.3.norm1.bias"}
    save_file(state | {"extra": torch.ones(2)}, tmp_path / "y.safetensors")
    found = vitrail.describe(tmp_path / "y.safetensors")
    assert found.layout == "timm"
    reason = found.reason
    assert "1 missing: blocks.3.norm1.bias; 1 unexpected: extra" in (reason or "")


def test_a_description_prints_as_a_page_and_a_conversion_as_lines(tmp_path: Path) -> None:
    model = family("vit", image_size=(20, 20))
    vitrail.save(model, tmp_path / "x.npz", layout="google")
    found = vitrail.describe(tmp_path / "x.npz")
    lines = str(found).splitlines()
    assert lines[1].split() == ["layout", "google:", "the", "authors'", "names"]
    assert "shape          2 layers, width 24, MLP 40, 3 heads of 8" in lines
    assert lines[lines.index("") + 1].split() == ["part", "parameters", "type", "mean", "deviation", "low", "high"]
    assert any(line.startswith("Transformer/encoder_norm/scale") for line in found.text(tensors=True).splitlines())
    assert found.document()["tensors"][0]["parameter"] == found.tensors[0].ours
    written = str(vitrail.convert(tmp_path / "x.npz", tmp_path / "hf", layout="hf", classes=4)).splitlines()
    assert written[0] == "recognised  google (npz): a model"
    assert written[1] == "changed     new zero classifier of 4 classes"
    assert written[-1].startswith(f"wrote       {tmp_path / 'hf'} (hf, ")
