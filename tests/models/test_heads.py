"""The classifier by cosines: what it computes, how it begins, what it counts, and that it is kept."""

from pathlib import Path

import numpy as np
import pytest
import torch
from families import FAMILIES, family, images_for

import vitrail
from vitrail.config import decode, encode, override
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import Model, build
from vitrail.models.heads import CosineHead
from vitrail.ops.cost.counts import forward_macs, parameters
from vitrail.train.state import is_kernel

NAME = "head.directions.weight"


def small(**fields: object) -> Model:
    whole = {"depth": 1, "width": 24, "heads": 3, "mlp_width": 40, "classes": 7, "image_size": (8, 12), **fields}
    return vitrail.create("ViT-Ti/4", cosine_scale=16.0, **whole).eval()  # pyright: ignore[reportArgumentType]


def test_logits_are_the_scale_times_the_cosines_whatever_the_lengths() -> None:
    model = small()
    images = torch.rand(5, 3, 8, 12) * 2 - 1
    ours = model.represent(images).detach().double().numpy()
    theirs = model.get_parameter(NAME).detach().double().numpy()
    lengths = np.linalg.norm(ours, axis=1)[:, None] * np.linalg.norm(theirs, axis=1)
    np.testing.assert_allclose(model(images).detach().numpy(), 16 * ours @ theirs.T / lengths, atol=2e-5)
    before = model(images)
    with torch.no_grad():
        model.get_parameter(NAME).mul_(torch.rand(7, 1) + 0.1)
    torch.testing.assert_close(model(images), before)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_it_and_counts_it(name: str) -> None:
    config = override(FAMILIES[name], {"cosine_scale": 16.0, "head_bias": 0.0})
    model = build(config, seed=0)
    assert isinstance(model.head, CosineHead)
    assert {key for key in model.state_dict() if key.startswith("head")} == {NAME}
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters(config).total
    linear = override(config, {"cosine_scale": None})
    assert parameters(linear).total - parameters(config).total == config.classes
    assert forward_macs(linear) == forward_macs(config)
    assert model.eval()(images_for(model)).abs().max() <= 16.0001


def test_directions_are_drawn_by_seed_and_name_and_decay_as_matrices_do() -> None:
    first, again, other = (small(seed=seed).get_parameter(NAME) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.norm(dim=1).min() > 0.3
    assert is_kernel(NAME, first)


def test_no_bias_and_no_scale_of_nothing() -> None:
    with pytest.raises(ConfigError, match=r"has no bias; got head_bias=-6.9. Set head_bias=0"):
        small(head_bias=-6.9)
    with pytest.raises(ConfigError, match="cosine_scale must be"):
        override(small().config, {"cosine_scale": -1.0})
    assert isinstance(small(classes=None).head, torch.nn.Identity)


def test_a_configuration_from_before_is_one_with_a_linear_classifier() -> None:
    for name in ("vit", "bit"):
        document = encode(FAMILIES[name])
        del document["cosine_scale"]
        assert decode(document) == FAMILIES[name]


def test_our_own_layout_keeps_it_and_new_classes_have_new_directions(tmp_path: Path) -> None:
    model = small()
    images = torch.rand(5, 3, 8, 12) * 2 - 1
    vitrail.save(model, tmp_path / "run")
    again = vitrail.load(tmp_path / "run")
    assert torch.equal(again(images), model(images))
    five = vitrail.load(tmp_path / "run", classes=5)
    assert isinstance(five.head, CosineHead)
    assert five.config.cosine_scale == 16.0
    assert five.get_parameter(NAME).shape == (5, 24)
    assert torch.equal(five.get_parameter(NAME), vitrail.load(tmp_path / "run", classes=5).get_parameter(NAME))
    assert five.card.provenance is not None
    assert five.card.provenance.changes == ("new classifier by cosines of 5 classes",)
    assert torch.equal(vitrail.load(tmp_path / "run", cosine_scale=32)(images), 2 * model(images))


def test_one_kind_of_classifier_becomes_the_other_with_new_classes_alone(tmp_path: Path) -> None:
    vitrail.save(small(), tmp_path / "cosine")
    vitrail.save(family("vit"), tmp_path / "linear")
    with pytest.raises(ConfigError, match=r"needs a classifier of another kind. Give classes=\.\.\. too"):
        vitrail.load(tmp_path / "linear", cosine_scale=16)
    with pytest.raises(ConfigError, match="needs a classifier of another kind"):
        vitrail.load(tmp_path / "cosine", cosine_scale=None)
    assert isinstance(vitrail.load(tmp_path / "linear", cosine_scale=16, classes=3).head, CosineHead)
    linear = vitrail.load(tmp_path / "cosine", cosine_scale=None, classes=3)
    assert not linear.get_parameter("head.weight").any()


@pytest.mark.parametrize(("layout", "file"), [("timm", "m.safetensors"), ("google", "m.npz"), ("hf", "folder")])
def test_layouts_of_others_refuse_it_and_may_leave_it_out(layout: str, file: str, tmp_path: Path) -> None:
    model = small(activation="gelu" if layout != "google" else "gelu-tanh", epsilon=1e-6, image_size=(8, 8))
    with pytest.raises(CheckpointError, match=r"its classifier is by cosines.*Take the layout vitrail"):
        vitrail.save(model, tmp_path / file, layout=layout)
    written = vitrail.save(model, tmp_path / file, layout=layout, lossy=True)
    assert any("by cosines" in lost for lost in written.lost)
    images = torch.rand(2, 3, 8, 8)
    back = vitrail.load(tmp_path / file, heads=3)
    torch.testing.assert_close(back(images), model.represent(images), atol=1e-5, rtol=1e-4)


def test_a_compiled_model_gives_the_same_logits_and_gradients(untyped: None) -> None:
    images = torch.rand(5, 3, 8, 12) * 2 - 1
    eager, compiled = small(), small()
    ours, theirs = eager(images), torch.compile(compiled, backend="aot_eager", fullgraph=True)(images)
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-3)
    for logits in (ours, theirs):
        logits.square().sum().backward()
    first, second = (model.get_parameter(NAME).grad for model in (eager, compiled))
    torch.testing.assert_close(second, first, atol=1e-2, rtol=1e-3)
