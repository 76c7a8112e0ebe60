"""timm's ViTs with parts that the paper's lacks: their own answers, also at other sizes, and the same file again."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peers import entries_of, images, recognized, saved, stirred
from safetensors.torch import load_file
from torch import Tensor, nn

import vitrail
from vitrail.config import RotaryPositions, ViTConfig
from vitrail.errors import CheckpointError, ConfigError

pytest.importorskip("timm")

SMALL: dict[str, Any] = {
    "embed_dim": 48,
    "depth": 3,
    "num_heads": 4,
    "img_size": 64,
    "patch_size": 16,
    "num_classes": 7,
}
OTHER = SMALL | {"embed_dim": 72, "depth": 2, "num_heads": 3, "img_size": 80, "patch_size": 8, "in_chans": 2}
GAP = {"class_token": False, "global_pool": "avg"}
MAP = {"class_token": False, "global_pool": "map"}
ANGLES = {"rope_type": "dinov3", "rope_temperature": 100, "rope_rotate_half": True, "use_rot_pos_emb": True}
DINOV3 = ANGLES | {"init_values": 1e-5, "use_abs_pos_emb": False, "num_reg_tokens": 4, "use_fc_norm": False}
EVA02 = {"swiglu_mlp": True, "use_rot_pos_emb": True, "ref_feat_shape": (16, 16), "mlp_ratio": 8 / 3}
FIVE = "eps 1e-5"  # stands for LayerNorm with that epsilon
# By a name: the class, what it has beside the shape, and what must be said of its file.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dinov2": ("ViT", {"init_values": 1e-5}, {}),
    "registers": ("ViT", {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5}, {}),
    "registers with positions": ("ViT", {"reg_tokens": 3}, {}),
    "registers, mean": ("ViT", GAP | {"reg_tokens": 4, "no_embed_class": True}, {}),
    "registers, mean, norm of tokens": ("ViT", GAP | {"reg_tokens": 4, "fc_norm": False}, {}),
    "gated, packed": ("ViT", {"mlp_layer": "SwiGLUPacked", "act_layer": nn.SiLU, "mlp_ratio": 5.3334}, {"lossy": True}),
    "gated, apart": ("ViT", {"mlp_layer": "SwiGLU", "act_layer": nn.SiLU, "mlp_ratio": 2.5}, {"lossy": True}),
    "clip": ("ViT", {"pre_norm": True, "norm_layer": FIVE}, {"activation": "gelu"}),
    "clip of OpenAI": (
        "ViT",
        {"pre_norm": True, "norm_layer": FIVE, "act_layer": "quick_gelu"},
        {"activation": "quick-gelu", "lossy": True},
    ),
    "siglip": ("ViT", MAP | {"act_layer": "gelu_tanh", "num_classes": 0}, {"activation": "gelu-tanh", "lossy": True}),
    "siglip classifier": ("ViT", MAP, {"activation": "gelu"}),
    "norm after pooling": ("ViT", {"global_pool": "avg"}, {}),
    "norms of queries and keys": ("ViT", {"qk_norm": True}, {}),
    "no final norm": ("ViT", {"final_norm": False}, {}),
    "norms inside": ("ViT", {"scale_attn_norm": True, "scale_mlp_norm": True, "norm_layer": FIVE}, {}),
    "no biases of outputs": ("ViT", {"proj_bias": False}, {}),
    "deit iii": ("ViT", {"no_embed_class": True, "init_values": 1e-6}, {}),
    "distilled": ("DeiT", {}, {}),
    "distilled, headless": ("DeiT", {"num_classes": 0}, {}),
    "dinov3": ("Eva", DINOV3 | {"qkv_bias": False, "norm_layer": FIVE}, {}),
    "dinov3 with biases": ("Eva", DINOV3 | {"norm_layer": FIVE, "global_pool": "token"}, {"pooling": "token"}),
    "dinov3 gated": (
        "Eva",
        DINOV3 | {"qkv_bias": False, "norm_layer": FIVE, "swiglu_mlp": True, "swiglu_align_to": 8},
        {},
    ),
    "eva": ("Eva", {}, {}),
    "eva02 tiny": ("Eva", EVA02, {}),
    "eva02 base": ("Eva", EVA02 | {"qkv_fused": False, "scale_mlp": True}, {}),
    "eva02 clip": (
        "Eva",
        EVA02 | {"qkv_fused": False, "scale_mlp": True, "scale_attn_inner": True, "global_pool": "token"},
        {},
    ),
    "rotary, registers": (
        "Eva",
        {"class_token": False, "num_reg_tokens": 1, "init_values": 1e-5, "use_abs_pos_emb": False}
        | {"use_rot_pos_emb": True, "ref_feat_shape": (16, 16)},
        {},
    ),
}


def make(name: str, shape: dict[str, Any]) -> Any:
    import timm.layers
    import timm.layers.norm
    from timm.models import deit, eva, vision_transformer

    kind, options, _ = CASES[name]
    found = {
        "ViT": vision_transformer.VisionTransformer,
        "DeiT": deit.VisionTransformerDistilled,
        "Eva": eva.Eva,
    }[kind]
    options = dict(options)
    if options.get("norm_layer") == FIVE:
        options["norm_layer"] = partial(timm.layers.norm.LayerNorm, eps=1e-5)
    if "mlp_layer" in options:
        options["mlp_layer"] = getattr(timm.layers, options["mlp_layer"])
    usual = {"global_pool": "avg"} if kind == "Eva" else {}
    return stirred(found(**{**usual, **shape, "dynamic_img_size": True, **options}))


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 0.05
    torch.testing.assert_close(ours, theirs, atol=5e-5, rtol=0)


@pytest.mark.parametrize("shape", [SMALL, OTHER], ids=["small", "other"])
@pytest.mark.parametrize("name", CASES)
def test_timms_parts_give_timms_answers_and_go_out_as_they_came(
    name: str, shape: dict[str, Any], tmp_path: Path
) -> None:
    theirs = make(name, shape)
    path, side, patch = saved(theirs, tmp_path / "w.safetensors"), shape["img_size"], shape["patch_size"]
    told = {key: value for key, value in CASES[name][2].items() if key != "lossy"}
    ours = vitrail.load(path, heads=shape["num_heads"], image_size=side, **told)
    batch = images(side, side)
    for size in ((side, side), (side + 2 * patch, side + 2 * patch), (side - patch, side + 3 * patch)):
        batch = images(*size, channels=shape.get("in_chans", 3))
        with torch.inference_mode():
            assert_equal(ours(batch), theirs(batch))
    vitrail.save(ours, tmp_path / "again.safetensors", layout="timm", lossy=CASES[name][2].get("lossy", False))
    held, before = load_file(tmp_path / "again.safetensors"), load_file(path)
    assert held.keys() == before.keys()
    assert all(torch.equal(held[key], before[key]) for key in held)
    assert torch.equal(vitrail.load(tmp_path / "again.safetensors")(batch), ours(batch))  # its note says the rest


@pytest.mark.parametrize("name", ["registers", "clip", "norm after pooling", "siglip classifier", "norms inside"])
def test_a_folder_for_timm_holds_the_parts_too(name: str, tmp_path: Path) -> None:
    import timm

    theirs = make(name, SMALL)
    told = {key: value for key, value in CASES[name][2].items() if key != "lossy"}
    ours = vitrail.load(saved(theirs, tmp_path / "w.safetensors"), heads=4, **told)
    vitrail.save(ours, tmp_path / "folder", layout="timm")
    again: Any = timm.create_model(f"local-dir:{tmp_path / 'folder'}", pretrained=True).eval()
    batch = images(64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(again(batch), theirs(batch), atol=1e-6, rtol=0)


def test_a_folder_for_timm_cannot_say_that_mlps_are_gated(tmp_path: Path) -> None:
    gated = vitrail.load(saved(make("gated, packed", SMALL), tmp_path / "g.safetensors"), heads=4)
    with pytest.raises(ConfigError, match="say nothing of gates"):
        vitrail.save(gated, tmp_path / "gated", layout="timm", lossy=True)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("clip", {}, "Say activation=quick-gelu"),
        ("siglip classifier", {}, "no published one has this shape"),
        ("no final norm", {"pre_norm": True}, "Perception Encoder"),
        ("registers, mean", {"reg_tokens": 0, "qkv_bias": False}, "Say norm=pre"),
    ],
)
def test_what_tensors_do_not_show_is_refused_until_it_is_said(
    name: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    options = CASES[name][1] | changes
    CASES["changed"] = (CASES[name][0], options, {})
    try:
        path = saved(make("changed", SMALL), tmp_path / "w.safetensors")
    finally:
        del CASES["changed"]
    with pytest.raises(CheckpointError, match=words):
        vitrail.load(path, heads=4)


def test_a_published_model_that_pools_its_register_too_is_refused() -> None:
    with pytest.raises(CheckpointError, match="test_vit3 pools its register with the patches"):
        recognized("test_vit3", entries_of("test_vit3"))


def test_dinov2_in_its_authors_names_has_a_class_position_and_none_of_its_registers(tmp_path: Path) -> None:
    theirs = make("registers", SMALL | {"num_classes": 0})
    held = theirs.state_dict()
    table = torch.cat([torch.randn(1, 1, 48) * 0.1, held["pos_embed"]], dim=1)
    renamed = {name: tensor for name, tensor in held.items() if name not in ("reg_token", "pos_embed")}
    renamed |= {"register_tokens": held["reg_token"], "pos_embed": table, "mask_token": torch.zeros(1, 48)}
    torch.save(renamed, tmp_path / "dinov2.pth")
    with torch.no_grad():
        theirs.cls_token.add_(table[:, :1])
    batch = images(64, 64)
    with torch.inference_mode():
        assert_equal(vitrail.load(tmp_path / "dinov2.pth", heads=4)(batch), theirs(batch))


def test_dinov3_in_its_authors_names_answers_with_its_class_token(tmp_path: Path) -> None:
    theirs = make("dinov3", SMALL)
    names = {"reg_token": "storage_tokens", "gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
    renamed = {}
    for name, tensor in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        renamed[name] = tensor
    torch.save(renamed | {"rope_embed.periods": torch.ones(3)}, tmp_path / "dinov3.pth")
    ours, batch = vitrail.load(tmp_path / "dinov3.pth", heads=4, image_size=64), images(64, 64)
    with torch.inference_mode():
        tokens = theirs.forward_features(batch)
        assert_equal(ours(batch), theirs.head(tokens[:, 0]))
    assert isinstance(ours.config, ViTConfig)
    assert isinstance(ours.config.positions, RotaryPositions)


def test_timms_config_says_the_activation_and_the_pooling(tmp_path: Path) -> None:
    theirs = make("clip of OpenAI", SMALL)
    folder = tmp_path / "timm"
    folder.mkdir()
    saved(theirs, folder / "model.safetensors")
    said = {"architecture": "vit_base_patch16_clip_quickgelu_224", "model_args": {"num_heads": 4}}
    (folder / "config.json").write_text(json.dumps(said))
    batch = images(64, 64)
    with torch.inference_mode():
        assert_equal(vitrail.load(folder)(batch), theirs(batch))
    (folder / "config.json").write_text(json.dumps(said | {"architecture": "vit_pe_core_base_patch16_224"}))
    with pytest.raises(CheckpointError, match="whose rotary positions no tensor shows"):
        vitrail.load(folder)


def test_a_table_that_is_a_square_or_the_image_sizes_rectangle_is_asked_about(tmp_path: Path) -> None:
    from timm.models.vision_transformer import VisionTransformer

    shape: dict[str, Any] = {"embed_dim": 24, "depth": 1, "num_heads": 3, "patch_size": 4, "num_classes": 5}
    shape |= {"class_token": False, "reg_tokens": 1, "no_embed_class": True, "global_pool": "avg"}
    theirs = stirred(VisionTransformer(img_size=(8, 20), **shape))  # 2x5 patches, or 3x3 and the register
    path, batch = saved(theirs, tmp_path / "w.safetensors"), images(8, 20)
    told: dict[str, Any] = {"heads": 3, "norm": "pre"}
    with pytest.raises(CheckpointError, match=r"no square grid, or more than one\. Say which with grid=\(rows, cols\)"):
        vitrail.load(path, image_size=(8, 20), **told)
    with torch.inference_mode():
        assert_equal(vitrail.load(path, grid=(2, 5), **told)(batch), theirs(batch))


# Architectures of timm whose name, arguments and image size in config.json say what no tensor does, with two shapes.
NAMED = [
    ("vit_so400m_patch16_siglip_256", 42, 3, 48),  # GELU in its tanh form
    ("vit_base_patch32_siglip_gap_256", 48, 4, 96),
    ("vit_base_patch16_siglip_224", 32, 2, 64),  # exact
    ("vit_base_patch16_clip_quickgelu_224", 48, 3, 32),
    ("vit_large_patch14_clip_336", 40, 2, 42),
    ("flexivit_small", 48, 3, 64),  # no position of the class token
    ("vit_small_patch14_reg4_dinov2", 36, 3, 42),  # a table that is a square with registers and without
    ("eva_large_patch14_196", 32, 2, 42),  # a ViT
    ("vit_base_patch16_rpn_224", 48, 4, 48),  # norms after attention and MLP
    ("vit_base_patch16_rpn_224", 40, 2, 64),
    ("eva02_enormous_patch14_clip_224", 32, 2, 42),
    ("eva02_enormous_patch14_clip_224", 48, 3, 28),
    ("vit_small_patch16_dinov3", 48, 3, 48),
]


def in_a_folder(name: str, options: dict[str, Any], folder: Path) -> Any:
    """A model of timm with large weights, so that forms of GELU differ, and the folder that timm writes of it."""
    import timm
    from timm.models import save_for_hf

    theirs: Any = timm.create_model(name, **options)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in theirs.parameters():
            fan = parameter[0].numel() if parameter.ndim > 1 else 25
            parameter.add_(torch.randn(parameter.shape, generator=generator) / max(fan, 4) ** 0.5)
    save_for_hf(theirs.eval(), str(folder), model_args=options, safe_serialization=True)
    return theirs


@pytest.mark.parametrize(("name", "width", "heads", "side"), NAMED)
def test_a_folder_of_timm_says_what_no_tensor_does(
    name: str, width: int, heads: int, side: int, tmp_path: Path
) -> None:
    options = {"embed_dim": width, "depth": 2, "num_heads": heads, "img_size": side}
    theirs = in_a_folder(name, options, tmp_path / "folder")
    ours = vitrail.load(tmp_path / "folder")
    assert ours.config.image_size == (side, side)
    batch = images(side, side)
    with torch.inference_mode():
        assert_equal(ours(batch), theirs(batch))


def test_the_image_size_of_timms_preprocessing_says_the_grid(tmp_path: Path) -> None:
    theirs = in_a_folder("flexivit_small", {"embed_dim": 48, "depth": 1, "num_heads": 3}, tmp_path / "folder")
    assert vitrail.load(tmp_path / "folder").config.image_size == (240, 240)
    assert theirs.pos_embed.shape[1] == 225


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("test_vit3", "pools its register with the patches"),
        ("test_vit4", "norms have no biases, as RMSNorm"),
        ("vit_dwee_patch16_reg1_gap_256", "differential attention"),
    ],
)
def test_other_parts_of_timm_are_refused_by_name(name: str, words: str, tmp_path: Path) -> None:
    in_a_folder(name, {"depth": 1, "img_size": 32}, tmp_path / "folder")
    with pytest.raises(CheckpointError, match=words):
        vitrail.load(tmp_path / "folder", heads=1)


@pytest.mark.slow
def test_every_published_vit_of_timm_is_read_as_it_is_or_refused() -> None:
    import timm

    words = {"GELU": "gelu", "GELUTanh": "gelu-tanh", "QuickGELU": "quick-gelu", "SiLU": "silu"}
    pools = {"avg": "mean", "map": "attention", "token": "token"}
    count = 0
    for name in timm.list_models(["vit_*", "deit*", "flexivit*", "beit*", "eva*"]):
        if any(part in name for part in ("7b", "5b", "giga", "sapiens", "enormous")):
            continue  # slow to make, even without weights
        with torch.device("meta"):
            model: Any = timm.create_model(name)
        try:
            config = recognized(name, entries_of(model))
        except CheckpointError:
            continue
        if not isinstance(config, ViTConfig):
            continue
        first, count = model.blocks[0], count + 1
        assert type(first).__module__.split(".")[-1] in ("vision_transformer", "eva", "beit"), name
        pool = "distilled" if "distilled" in name else pools[model.global_pool]
        rotary = getattr(model, "rope", None) is not None
        gated = type(first.mlp).__name__ in ("SwiGLU", "GluMlp")
        theirs = (pool, first.attn.num_heads, first.norm1.eps, words[type(first.mlp.act).__name__], rotary, gated)
        turned = isinstance(config.positions, RotaryPositions)
        ours = (config.pooling, config.heads, config.epsilon, config.activation, turned, config.mlp == "gated")
        assert ours == theirs, name
    assert count >= 100
