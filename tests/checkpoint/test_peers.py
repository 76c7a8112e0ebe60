"""Files of other libraries give the logits that those libraries give, at their own size, in rectangles and resized."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import family
from peers import entries_of, hf_model, images, recognized, saved, timm_model, torchvision_model
from safetensors.torch import load_file
from torch import Tensor

import vitrail
from vitrail.config import BiTConfig, Card, HybridStem, Preprocessing, ViTConfig
from vitrail.errors import CheckpointError, ConfigError

pytest.importorskip("timm")
pytest.importorskip("transformers")


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 0.05  # something to compare
    torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=0)


# Patch sides, widths, poolings, stems and heads of all kinds; what is large is made shallow.
TIMM: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {},
    "vit_small_patch32_224": {"depth": 3},
    "vit_base_patch16_224": {"depth": 2},
    "vit_large_patch14_224": {"depth": 2, "img_size": 112},
    "vit_huge_patch14_224": {"depth": 1, "img_size": 112},  # 16 heads of 80, no classifier
    "vit_giant_patch14_224": {"depth": 1, "img_size": 70},
    "vit_base_patch16_224_miil": {"depth": 2},  # no biases of query, key and value
    "vit_medium_patch16_gap_240": {"depth": 2},  # layer scale
    "deit_tiny_patch16_224": {},
    "deit3_small_patch16_224": {"depth": 3},  # the class token has no position
    "test_vit": {},
    "vit_tiny_r_s16_p8_224": {"depth": 3},
    "vit_small_r26_s32_224": {"depth": 2},
    "vit_base_r50_s16_224": {"depth": 2},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "_r50_" in name else []) for name in TIMM]
)
def test_timm_vits_and_hybrids_give_timms_logits(name: str, tmp_path: Path) -> None:
    theirs: Any = timm_model(name, dynamic_img_size=True, **TIMM[name])
    told = {"heads": theirs.blocks[0].attn.num_heads} if "depth" in TIMM[name] else {}  # a shape of its own
    ours = vitrail.load(saved(theirs, tmp_path / "weights.safetensors"), **told)
    config = ours.config
    assert isinstance(config, ViTConfig)
    stride = config.stem.stride
    own, resized = config.image_size, (config.image_size[0] + 2 * stride, config.image_size[1] - stride)
    for size in (own, resized):
        batch = images(*size)
        with torch.inference_mode():
            assert_equal(ours(batch), theirs(batch))
    with torch.inference_mode():  # resampled once, when it is loaded
        again = vitrail.load(tmp_path / "weights.safetensors", image_size=resized, **told)
        assert_equal(again(batch), theirs(batch))


@pytest.mark.parametrize("size", [(160, 96), (48, 80)])
def test_a_rectangular_timm_vit_needs_its_size(size: tuple[int, int], tmp_path: Path) -> None:
    theirs = timm_model("vit_tiny_patch16_224", img_size=size)
    path = saved(theirs, tmp_path / "weights.safetensors")
    batch = images(*size)
    grid = (size[0] // 16, size[1] // 16)
    for ours in (vitrail.load(path, image_size=size), vitrail.load(path, grid=grid)):
        assert ours.config.image_size == size
        with torch.inference_mode():
            assert_equal(ours(batch), theirs(batch))


@pytest.mark.parametrize(
    ("name", "heads", "asked", "words"),
    [
        ("vit_base_patch16_gap_224", 16, {}, r"have 16 heads \(vit_base_patch16_gap_224\) or 12"),
        ("flexivit_small", 6, {"grid": (15, 15)}, r"15x15 patches and no class position, or a rectangle of 224 and"),
        ("flexivit_small", 6, {"image_size": 240}, r"15x15 patches and no class position, or a rectangle of 224 and"),
    ],
)
def test_what_tensors_cannot_tell_apart_must_be_said(
    name: str, heads: int, asked: Any, words: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=words):
        recognized(name, entries_of(name))
    theirs = timm_model(name, depth=2)
    path = saved(theirs, tmp_path / "weights.safetensors")
    ours = vitrail.load(path, heads=heads, **asked)
    batch = images(*ours.config.image_size)
    with torch.inference_mode():
        assert_equal(ours(batch), theirs(batch))


def test_a_rectangle_of_timm_is_never_taken_for_a_square(tmp_path: Path) -> None:
    theirs = timm_model("vit_tiny_patch16_224", img_size=(64, 96), depth=1)  # 4x6 and one: 25 entries
    path = saved(theirs, tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match="5x5 patches and no class position, or a rectangle of 24 and one"):
        vitrail.load(path, heads=3)
    with torch.inference_mode():
        assert_equal(vitrail.load(path, heads=3, image_size=(64, 96))(images(64, 96)), theirs(images(64, 96)))


def test_the_constants_of_timms_stems_and_bit_are_its_own(tmp_path: Path) -> None:
    path = saved(timm_model("vit_tiny_r_s16_p8_224", depth=1), tmp_path / "h.safetensors")
    hybrid = vitrail.load(path, heads=3).config
    assert isinstance(hybrid, ViTConfig)
    assert isinstance(hybrid.stem, HybridStem)
    stem = hybrid.stem
    assert (stem.epsilon, stem.filter_rule, stem.filter_epsilon) == (1e-5, "variance", 1e-8)
    assert hybrid.epsilon == 1e-6
    bit = vitrail.load(saved(timm_model("resnetv2_50x1_bit", num_classes=3), tmp_path / "b.safetensors")).config
    assert isinstance(bit, BiTConfig)
    assert (bit.epsilon, bit.filter_epsilon) == (1e-5, 1e-8)


def test_timms_own_config_says_what_tensors_do_not(tmp_path: Path) -> None:
    folder = tmp_path / "timm"
    folder.mkdir()
    saved(timm_model("test_vit"), folder / "model.safetensors")
    preset = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "crop_pct": 0.9, "interpolation": "bicubic"}
    said: dict[str, Any] = {"architecture": "test_vit", "pretrained_cfg": preset, "model_args": {"num_heads": 4}}
    (folder / "config.json").write_text(json.dumps(said))
    ours = vitrail.load(folder)
    assert isinstance(ours.config, ViTConfig)
    assert ours.config.heads == 4
    assert ours.card.preprocessing.mean == (0.1, 0.2, 0.3)
    assert (ours.card.preprocessing.resize, ours.card.preprocessing.crop_share) == ("crop", 0.9)
    (folder / "config.json").write_text(json.dumps(said | {"model_args": {"act_layer": "gelu_tanh"}}))
    tanh = vitrail.load(folder).config
    assert isinstance(tanh, ViTConfig)
    assert tanh.activation == "gelu-tanh"
    (folder / "config.json").write_text(json.dumps(said | {"global_pool": "avg"}))
    assert getattr(vitrail.load(folder).config, "pooling", None) == "mean"
    for wrong in ({"global_pool": "avgmax"}, {"model_args": {"act_layer": "mish"}}):
        (folder / "config.json").write_text(json.dumps(said | wrong))
        with pytest.raises(CheckpointError, match=r"config\.json says"):
            vitrail.load(folder)


def test_timm_bit_gives_timms_logits(tmp_path: Path) -> None:
    theirs = timm_model("resnetv2_50x1_bit", num_classes=11)
    ours = vitrail.load(saved(theirs, tmp_path / "weights.pth"))
    for size in ((128, 128), (97, 150)):
        with torch.inference_mode():
            assert_equal(ours(images(*size)), theirs(images(*size)))


def test_a_timm_vit_of_another_shape_is_told_its_heads(tmp_path: Path) -> None:
    from timm.models.vision_transformer import VisionTransformer

    theirs = VisionTransformer(img_size=32, patch_size=8, embed_dim=40, depth=2, num_heads=5, mlp_ratio=2, in_chans=2)
    path = saved(theirs.eval(), tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match=r"how many heads share its width of 40, .* Say heads="):
        vitrail.load(path)
    with pytest.raises(CheckpointError, match="heads must be a whole number that divides the width 40; got 7"):
        vitrail.load(path, heads=7)
    batch = images(32, 32, channels=2)
    with torch.inference_mode():
        torch.testing.assert_close(vitrail.load(path, heads=5)(batch), theirs(batch), atol=5e-5, rtol=0)


HF: dict[str, dict[str, Any]] = {
    "plain": {},
    "tanh": {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
    "relu": {"hidden_act": "relu", "layer_norm_eps": 1e-3},
    "bias-free": {"qkv_bias": False},
    "rectangle": {"image_size": (48, 80)},
    "one channel": {"num_channels": 1, "patch_size": 8},
}
SMALL: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 100,
    "image_size": 96,
    "patch_size": 16,
    "num_labels": 7,
}


@pytest.mark.parametrize("options", HF.values(), ids=HF)
def test_transformers_classifiers_give_their_logits(options: dict[str, Any], tmp_path: Path) -> None:
    settings = SMALL | options
    theirs = hf_model("ViTForImageClassification", **settings)
    ours = vitrail.load(saved(theirs, tmp_path / "model"))
    batch = images(*ours.config.image_size, channels=ours.config.channels)
    with torch.inference_mode():
        assert_equal(ours(batch), theirs(batch).logits)
    if isinstance(settings["image_size"], int):  # transformers resamples square tables alone
        batch = images(128, 80, channels=ours.config.channels)
        with torch.inference_mode():
            assert_equal(ours(batch), theirs(batch, interpolate_pos_encoding=True).logits)


@pytest.mark.parametrize("pooler", [True, False])
def test_bare_transformers_models_give_their_tokens(pooler: bool, tmp_path: Path) -> None:
    import transformers

    config = transformers.ViTConfig(**{**SMALL, "pooler_output_size": 24})
    theirs = transformers.ViTModel(config, add_pooling_layer=pooler).eval()
    ours = vitrail.load(saved(theirs, tmp_path / "model"))
    batch = images(96, 96)
    with torch.inference_mode():
        out = theirs(batch)
        assert_equal(ours.tokens(batch), out.last_hidden_state)
        assert_equal(ours(batch), out.pooler_output if pooler else out.last_hidden_state[:, 0])


def test_a_classifier_of_transformers_by_the_names_of_its_modules_is_read_too(tmp_path: Path) -> None:
    theirs = hf_model("ViTForImageClassification", **SMALL)
    path = saved(theirs, tmp_path / "weights.safetensors")  # version 5 calls its modules otherwise than its files
    batch = images(96, 96)
    ours = vitrail.load(path, heads=4)
    assert isinstance(ours.config, ViTConfig)
    assert ours.config.epsilon == 1e-12  # transformers' own, where there is no config.json
    wrapped = {f"module.{name}": tensor for name, tensor in theirs.state_dict().items()}
    torch.save({"state_dict": wrapped}, tmp_path / "wrapped.pth")
    with torch.inference_mode():
        assert_equal(ours(batch), theirs(batch).logits)
        assert_equal(vitrail.load(tmp_path / "wrapped.pth", heads=4)(batch), theirs(batch).logits)
    vitrail.convert(tmp_path / "wrapped.pth", tmp_path / "hf", layout="hf", heads=4)  # as transformers opens it
    assert "vit.layernorm.bias" in load_file(tmp_path / "hf" / "model.safetensors")


def test_averaged_weights_come_before_plain_ones(tmp_path: Path) -> None:
    state = timm_model("test_vit").state_dict()
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    torch.save({"model": zeros, "model_ema": state}, tmp_path / "x.pth")
    model = vitrail.load(tmp_path / "x.pth")
    assert torch.equal(model.get_parameter("head.weight"), state["head.weight"])
    assert model.card.provenance is not None
    assert "model" in model.card.provenance.left_out


def test_masked_autoencoders_give_their_encoder_and_leave_their_decoder_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**SMALL, "decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    theirs = hf_model("ViTMAEForPreTraining", **options, mask_ratio=0.0)
    ours = vitrail.load(saved(theirs, tmp_path / "model"))
    assert ours.card.provenance is not None
    assert any(name.startswith("decoder.") for name in ours.card.provenance.left_out)
    assert "left out, since the model has no place for it: decoder." in caplog.text
    assert ours.config.classes is None
    batch = images(96, 96)
    with torch.inference_mode():
        # Without masking the patches are shuffled all the same: the class token sees all of them in any order.
        assert_equal(ours(batch), theirs.vit(batch).last_hidden_state[:, 0])  # pyright: ignore[reportCallIssue]


def test_mae_and_dino_releases_are_read_as_they_are_wrapped(tmp_path: Path) -> None:
    theirs = timm_model("vit_tiny_patch16_224", num_classes=0, depth=2)
    state = theirs.state_dict()
    extra = {"mask_token": torch.zeros(1, 1, 192), "decoder_pos_embed": torch.zeros(1, 3, 8)}
    torch.save({"model": state | extra, "epoch": 3}, tmp_path / "mae.pth")
    teacher = {f"module.backbone.{name}": tensor for name, tensor in state.items()}
    teacher["module.head.mlp.0.weight"] = torch.zeros(3, 3)
    student = {name: torch.zeros_like(tensor) for name, tensor in teacher.items()}
    torch.save({"student": student, "teacher": teacher, "epoch": 3}, tmp_path / "dino.pth")
    batch = images(224, 224)
    for name, left_out in (
        ("mae", ("decoder_pos_embed", "mask_token", "epoch")),
        ("dino", ("module.head.mlp.0.weight",)),
    ):
        ours = vitrail.load(tmp_path / f"{name}.pth", heads=3)
        assert ours.card.provenance is not None
        assert set(left_out) <= set(ours.card.provenance.left_out)
        with torch.inference_mode():
            assert_equal(ours(batch), theirs(batch))


@pytest.mark.parametrize("options", [{}, {"representation_size": 11}], ids=["linear", "hidden"])
def test_torchvision_gives_its_logits_at_its_own_size_and_resized(options: dict[str, Any], tmp_path: Path) -> None:
    from torchvision.models.vision_transformer import interpolate_embeddings

    shape = {"patch_size": 16, "num_layers": 2, "num_heads": 3, "hidden_dim": 192, "mlp_dim": 100, "num_classes": 7}
    theirs = torchvision_model(image_size=64, **shape, **options)
    path = saved(theirs, tmp_path / "weights.pth")
    larger = torchvision_model(image_size=96, **shape, **options)
    larger.load_state_dict(interpolate_embeddings(96, 16, theirs.state_dict()))  # pyright: ignore[reportArgumentType]
    with torch.inference_mode():
        assert_equal(vitrail.load(path, heads=3)(images(64, 64)), theirs(images(64, 64)))
        assert_equal(vitrail.load(path, heads=3)(images(96, 96)), larger(images(96, 96)))
        assert_equal(vitrail.load(path, heads=3, image_size=96)(images(96, 96)), larger(images(96, 96)))


def test_the_names_of_an_older_torchvision_are_read_too(tmp_path: Path) -> None:
    shape = {"patch_size": 16, "num_layers": 2, "num_heads": 3, "hidden_dim": 192, "mlp_dim": 100, "num_classes": 7}
    theirs = torchvision_model(image_size=64, **shape)
    old = {"mlp.0.": "mlp.linear_1.", "mlp.3.": "mlp.linear_2."}
    state = {}
    for name, tensor in theirs.state_dict().items():
        for new, before in old.items():
            name = name.replace(new, before)
        state[name] = tensor
    torch.save(state, tmp_path / "weights.pth")
    with torch.inference_mode():
        assert_equal(vitrail.load(tmp_path / "weights.pth", heads=3)(images(64, 64)), theirs(images(64, 64)))


def test_models_that_are_none_of_the_papers_are_refused_by_what_they_have(tmp_path: Path) -> None:
    model = timm_model("vit_relpos_small_patch16_224", depth=1)
    path = saved(model, tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match="the file's model has relative positions, which the paper"):
        vitrail.load(path)


@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_a_folder_for_timm_is_opened_by_it_with_classes_and_preprocessing(pooling: Any, tmp_path: Path) -> None:
    import timm
    from timm.data.config import resolve_model_data_config

    how = Preprocessing(mean=(0.1,), deviation=(0.2,), resize="crop", crop_share=0.75, interpolation="bicubic")
    model = family("vit", image_size=(20, 20), activation="gelu", pooling=pooling, channels=1)
    card = Card(class_names=tuple("abcdefg"), preprocessing=how)
    written = vitrail.save(model, tmp_path / "out", layout="timm", card=card)
    assert not any("no place" in note for note in written.notes)
    theirs: Any = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    batch = torch.rand(2, 1, 20, 20)
    with torch.inference_mode():
        assert_equal(model(batch), theirs(batch))
    read = resolve_model_data_config(theirs)
    said = (read["mean"], read["std"], read["crop_pct"], read["crop_mode"], read["interpolation"], read["input_size"])
    assert [*map(list, said[:2]), *said[2:5], list(said[5])] == [[0.1], [0.2], 0.75, "center", "bicubic", [1, 20, 20]]
    assert list(theirs.pretrained_cfg["label_names"]) == list("abcdefg")
    ours = vitrail.load(tmp_path / "out").card
    assert (ours.preprocessing, ours.class_names, ours.assumed) == (how, card.class_names, ())
    with pytest.raises(ConfigError, match=r"a folder for timm holds a plain ViT\. Give a file that ends in"):
        vitrail.save(family("hybrid"), tmp_path / "hybrid", layout="timm")
