"""Transformers' DeiT, DINOv2, DINOv3, CLIP and SigLIP: their own answers, also at other sizes, and written back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peers import images, saved, stirred
from safetensors.torch import load_file, save_file
from torch import Tensor

import vitrail
from vitrail.config import ViTConfig
from vitrail.errors import CheckpointError

transformers = pytest.importorskip("transformers")

TEXT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 60}
SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 100,
    "image_size": 40,
    "patch_size": 8,
}
OTHER = SMALL | {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 48,
    "patch_size": 16,
}
OTHER |= {"num_channels": 1}
DINO = {"layerscale_value": 0.7, "mlp_ratio": 3}
# By a name: the class, its configuration's class, and what it has beside the shape.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dinov2": ("Dinov2Model", "Dinov2Config", DINO),
    "dinov2 classifier": ("Dinov2ForImageClassification", "Dinov2Config", DINO | {"num_labels": 7}),
    "dinov2 gated": ("Dinov2Model", "Dinov2Config", DINO | {"use_swiglu_ffn": True, "hidden_act": "relu"}),
    "dinov2 without biases": ("Dinov2Model", "Dinov2Config", DINO | {"qkv_bias": False}),
    "registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", DINO | {"num_register_tokens": 3}),
    "registers classifier": (
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersConfig",
        DINO | {"num_labels": 5},
    ),
    "dinov3": ("DINOv3ViTModel", "DINOv3ViTConfig", {"num_register_tokens": 4}),
    "dinov3 gated": (
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {"use_gated_mlp": True, "hidden_act": "silu", "rope_theta": 30.0, "key_bias": True, "num_register_tokens": 2},
    ),
    "dinov3 with biases of keys": (
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {"query_bias": False, "key_bias": True, "value_bias": False, "num_register_tokens": 1},
    ),
    "dinov3 without biases": (
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {"query_bias": False, "value_bias": False, "proj_bias": False, "num_register_tokens": 1},
    ),
    "dinov3 with biases of values alone": (
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {"query_bias": False, "key_bias": False, "value_bias": True, "num_register_tokens": 0},
    ),
    "dinov3 gated, no biases in it": (
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {"use_gated_mlp": True, "hidden_act": "silu", "mlp_bias": False, "num_register_tokens": 0},
    ),
    "clip": ("CLIPVisionModel", "CLIPVisionConfig", {}),
    "clip projected": (
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        {"projection_dim": 12, "hidden_act": "gelu"},
    ),
    "siglip": ("SiglipVisionModel", "SiglipVisionConfig", {}),
    "deit": ("DeiTModel", "DeiTConfig", {}),
    "deit classifier": ("DeiTForImageClassification", "DeiTConfig", {"num_labels": 5}),
    "deit with teacher": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", {"num_labels": 5}),
}
TOWERS = {
    "clip classifier": ("CLIPForImageClassification", "CLIPConfig", {"num_labels": 5}),
    "clip whole": ("CLIPModel", "CLIPConfig", {"projection_dim": 12}),
    "siglip classifier": ("SiglipForImageClassification", "SiglipConfig", {"num_labels": 6}),
    "siglip whole": ("SiglipModel", "SiglipConfig", {}),
}


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 0.05
    torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=0)


def make(name: str, shape: dict[str, Any]) -> Any:
    kind, config, options = (CASES | TOWERS)[name]
    if name in TOWERS:
        settings = {"vision_config": shape, "text_config": TEXT} | options
    else:
        settings = shape | options
        settings = {key: value for key, value in settings.items() if "Dinov2" not in kind or key != "intermediate_size"}
    return stirred(getattr(transformers, kind)(getattr(transformers, config)(**settings)))


def answer(theirs: Any, batch: Tensor) -> Tensor:
    """What the model of transformers answers, at any size."""
    resized = {} if "ino" in type(theirs).__name__.lower() else {"interpolate_pos_encoding": True}
    with torch.inference_mode():
        if type(theirs).__name__ == "CLIPForImageClassification":  # which hands no such word on
            inside = theirs.vision_model(batch, **resized).last_hidden_state
            return theirs.classifier(inside[:, 1:].mean(dim=1))
        if type(theirs).__name__ in ("CLIPModel", "SiglipModel"):
            found = theirs.get_image_features(batch, **resized)
            return found if isinstance(found, Tensor) else found.pooler_output
        out = theirs(batch, **resized)
    return next(out[name] for name in ("logits", "image_embeds", "pooler_output") if out.get(name) is not None)


@pytest.mark.parametrize("shape", [SMALL, OTHER], ids=["small", "other"])
@pytest.mark.parametrize("name", CASES | TOWERS)
def test_a_family_gives_its_own_answers_at_its_size_resized_and_in_rectangles(
    name: str, shape: dict[str, Any], tmp_path: Path
) -> None:
    theirs = make(name, shape)
    ours = vitrail.load(saved(theirs, tmp_path / "model"))
    side, patch = shape["image_size"], shape["patch_size"]
    for size in ((side, side), (side + patch, side + patch), (side - patch, side + 2 * patch)):
        batch = images(*size, channels=shape.get("num_channels", 3))
        with torch.inference_mode():
            assert_equal(ours(batch), answer(theirs, batch))


@pytest.mark.parametrize("name", CASES | TOWERS)
def test_what_was_read_is_written_so_that_transformers_opens_it_alike(name: str, tmp_path: Path) -> None:
    theirs = make(name, SMALL)
    ours = vitrail.load(saved(theirs, tmp_path / "model"))
    vitrail.save(ours, tmp_path / "again", layout="hf")
    held, before = (load_file(tmp_path / folder / "model.safetensors") for folder in ("again", "model"))
    inside = "vision_model." if name == "siglip whole" else ""  # the image tower alone has no name before it
    assert all(torch.equal(held[key], before[inside + key]) for key in held)
    kind = (CASES | TOWERS)[name][0]
    if name.endswith("whole"):  # the image tower alone
        kind = {"CLIPModel": "CLIPVisionModelWithProjection", "SiglipModel": "SiglipVisionModel"}[kind]
    again = getattr(transformers, kind).from_pretrained(tmp_path / "again").eval()
    batch = images(40, 40)
    torch.testing.assert_close(answer(again, batch), answer(theirs, batch), atol=1e-6, rtol=0)


@pytest.mark.parametrize("shape", [SMALL, OTHER], ids=["small", "other"])
@pytest.mark.parametrize("name", ["MetaClip2", "ChineseCLIP", "AltCLIP"])
def test_towers_that_are_clips_are_read_by_their_own_documents(
    name: str, shape: dict[str, Any], tmp_path: Path
) -> None:
    theirs = stirred(getattr(transformers, f"{name}VisionModel")(getattr(transformers, f"{name}VisionConfig")(**shape)))
    ours = vitrail.load(saved(theirs, tmp_path / "model"))
    side, patch = shape["image_size"], shape["patch_size"]
    for size in ((side, side), (side - patch, side + 2 * patch)):
        batch = images(*size, channels=shape.get("num_channels", 3))
        with torch.inference_mode():
            assert_equal(ours(batch), answer(theirs, batch))


@pytest.mark.parametrize("activation", ["silu", "quick_gelu"])
def test_a_vit_of_any_activation_is_read_and_written_back(activation: str, tmp_path: Path) -> None:
    theirs = stirred(transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL, hidden_act=activation)))
    ours, batch = vitrail.load(saved(theirs, tmp_path / "model")), images(40, 40)
    vitrail.save(ours, tmp_path / "again", layout="hf")
    again = transformers.ViTForImageClassification.from_pretrained(tmp_path / "again").eval()
    with torch.inference_mode():
        assert_equal(ours(batch), answer(theirs, batch))
        torch.testing.assert_close(answer(again, batch), answer(theirs, batch), atol=1e-6, rtol=0)


def test_a_siglip_2_of_any_shape_is_refused_by_what_it_is(tmp_path: Path) -> None:
    config = transformers.Siglip2VisionConfig(
        hidden_size=48, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, patch_size=8, num_patches=16
    )
    with pytest.raises(CheckpointError, match=r"any shape \(NaFlex\).*Take one of fixed size"):
        vitrail.load(saved(transformers.Siglip2VisionModel(config), tmp_path / "model"))


def test_registers_stand_after_the_class_token_and_have_no_positions(tmp_path: Path) -> None:
    config = vitrail.load(saved(make("registers", SMALL), tmp_path / "model")).config
    assert isinstance(config, ViTConfig)
    assert (config.class_tokens, config.registers, config.leading, config.tokens) == (1, 3, 4, 29)
    table = vitrail.load(tmp_path / "model").get_parameter("positions.table.0")
    assert not table[1:4].any()
    assert table[0].any()


def test_positions_that_registers_learn_go_into_the_registers(tmp_path: Path) -> None:
    ours = vitrail.load(saved(make("registers", SMALL), tmp_path / "model"))
    with torch.no_grad():
        ours.get_parameter("positions.table.0").add_(0.3)
    vitrail.save(ours, tmp_path / "again", layout="hf")
    batch = images(40, 40)
    torch.testing.assert_close(vitrail.load(tmp_path / "again")(batch), ours(batch), atol=1e-5, rtol=0)


def test_a_bias_that_clips_patches_learn_goes_into_their_positions(tmp_path: Path) -> None:
    ours = vitrail.load(saved(make("clip", SMALL), tmp_path / "model"))
    with torch.no_grad():
        ours.get_parameter("embedding.projection.bias").add_(0.3)
    vitrail.save(ours, tmp_path / "again", layout="hf")
    batch = images(40, 40)
    torch.testing.assert_close(vitrail.load(tmp_path / "again")(batch), ours(batch), atol=1e-5, rtol=0)


def test_a_clip_without_its_document_must_be_told_its_activation(tmp_path: Path) -> None:
    theirs, batch = make("clip", SMALL), images(40, 40)
    path = saved(theirs, tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match=r"Say activation=quick-gelu .* or activation=gelu"):
        vitrail.load(path, heads=4)
    with torch.inference_mode():
        assert_equal(vitrail.load(path, heads=4, activation="quick-gelu")(batch), answer(theirs, batch))


def test_a_document_of_another_model_is_refused(tmp_path: Path) -> None:
    saved(make("siglip", SMALL), tmp_path / "model")
    said = json.loads((tmp_path / "model" / "config.json").read_text())
    for wrong, words in (
        ({"model_type": "blip"}, "is of a 'blip' model"),
        ({"hidden_act": "mish"}, "hidden_act='mish'"),
    ):
        (tmp_path / "model" / "config.json").write_text(json.dumps(said | wrong))
        with pytest.raises(CheckpointError, match=words):
            vitrail.load(tmp_path / "model")


def test_a_table_that_is_no_square_is_refused(tmp_path: Path) -> None:
    saved(make("dinov2", SMALL), tmp_path / "model")
    held = load_file(tmp_path / "model" / "model.safetensors")
    held["embeddings.position_embeddings"] = held["embeddings.position_embeddings"][:, :-1].clone()
    save_file(held, tmp_path / "model" / "model.safetensors")
    with pytest.raises(CheckpointError, match="24 positions are no square grid"):
        vitrail.load(tmp_path / "model")


def test_a_dinov2_classifier_gets_a_new_head_of_both_vectors(tmp_path: Path) -> None:
    ours = vitrail.load(saved(make("dinov2 classifier", SMALL), tmp_path / "model"), classes=3)
    assert ours.get_parameter("head.weight").shape == (3, 96)
    assert not ours(images(40, 40)).any()
