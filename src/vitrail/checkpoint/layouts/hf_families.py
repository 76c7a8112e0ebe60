"""Transformers' ViTs of other names than its ViT: DeiT, DINOv2, DINOv3, and the image towers of CLIP and SigLIP."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vitrail.checkpoint.archives.base import Headers
from vitrail.checkpoint.layouts.vit_rows import Missing, PoolNames, TorchNames
from vitrail.config import Resampling
from vitrail.config.model import FinalNorm, Pooling

OFFSETS = "relative_position_bias.relative_position_bias_table"
LIKE_CLIP = ("metaclip_2", "chinese_clip", "altclip", "clipseg")  # whose image towers are CLIP's
APART = ("attention.q_proj.", "attention.k_proj.", "attention.v_proj.")
DINOV2 = TorchNames(
    patches="embeddings.patch_embeddings.projection",
    token="embeddings.cls_token",
    registers="embeddings.register_tokens",
    table="embeddings.position_embeddings",
    layer="encoder.layer.",
    attention_norm="norm1",
    qkv=("attention.attention.query.", "attention.attention.key.", "attention.attention.value."),
    out="attention.output.dense",
    mlp_norm="norm2",
    expand="mlp.fc1",
    contract="mlp.fc2",
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    norm="layernorm",
    head="classifier",
)
DINOV2_MODULES = replace(DINOV2, qkv=APART, out="attention.o_proj")
GATED = {"expand": "mlp.weights_in", "contract": "mlp.weights_out"}
GATED_APART: dict[str, Any] = {"gate": "mlp.gate_proj", "expand": "mlp.up_proj", "contract": "mlp.down_proj"}
DINOV3 = replace(
    DINOV2_MODULES,
    patches="embeddings.patch_embeddings",
    layer="layer.",
    expand="mlp.up_proj",
    contract="mlp.down_proj",
    norm="norm",
)
CLIP = TorchNames(
    patches="embeddings.patch_embedding",
    token="embeddings.class_embedding",
    token_axes=1,
    table="embeddings.position_embedding.weight",
    table_axes=2,
    layer="encoder.layers.",
    attention_norm="layer_norm1",
    qkv=("self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."),
    out="self_attn.out_proj",
    mlp_norm="layer_norm2",
    expand="mlp.fc1",
    contract="mlp.fc2",
    first_norm="pre_layrnorm",
    norm="post_layernorm",
    head="classifier",
    projection="visual_projection.weight",
)
SIGLIP = replace(
    CLIP,
    pool=PoolNames(
        probe="head.probe",
        query="head.attention.in_proj_",
        key_value="",
        out="head.attention.out_proj",
        norm="head.layernorm",
        expand="head.mlp.fc1",
        contract="head.mlp.fc2",
    ),
)
DEIT = replace(
    DINOV2,
    registers="embeddings.distillation_token",
    attention_norm="layernorm_before",
    mlp_norm="layernorm_after",
    expand="intermediate.dense",
    contract="output.dense",
    scales=(),
    hidden="pooler.dense",
)
BEIT = replace(
    DEIT,
    registers="",
    scales=("lambda_1", "lambda_2"),
    offsets=f"attention.attention.{OFFSETS}",
    shared_offsets=f"encoder.{OFFSETS}",
    pooled_norm="pooler.layernorm",
    hidden="",
)
BEIT_MODULES = replace(
    BEIT,
    layer="layers.",
    qkv=APART,
    out="attention.o_proj",
    expand="mlp.fc1",
    contract="mlp.fc2",
    offsets=OFFSETS,
    shared_offsets="shared_position_bias.relative_position_bias_table",
)
DEIT_MODULES = replace(DEIT, layer="layers.", qkv=APART, out="attention.o_proj", expand="mlp.fc1", contract="mlp.fc2")


@dataclass(frozen=True, kw_only=True)
class Family:
    """One of transformers' kinds of ViT: what its tensors are called, and what they do not say."""

    model_types: tuple[str, ...]
    anchors: tuple[str, ...]  # tensors that its files have
    without: tuple[str, ...] = ()  # and tensors that they lack
    either: tuple[str, ...] = ()  # and tensors of which they have one at least
    architectures: tuple[str, str]  # without a classifier, and with one
    inside: str  # what stands before the names of the encoder where there is a classifier
    names: Mapping[str, TorchNames]  # as files are written, and as the modules of version 5 are called
    defaults: Mapping[str, Any]  # of config.json, which leaves them out
    bare: Mapping[str, Any] = field(default_factory=dict)  # defaults that are safe without any config.json
    missing: Missing = field(default_factory=Missing)
    rotary: bool = False
    resampling: Resampling = "bicubic"
    pooling: tuple[Pooling, Pooling] = ("token", "token")  # without a classifier, and with one
    final_norm: tuple[FinalNorm, FinalNorm] = ("tokens", "tokens")


FAMILIES: dict[str, Family] = {
    "deit": Family(
        model_types=("deit",),
        anchors=("embeddings.distillation_token",),
        architectures=("DeiTModel", "DeiTForImageClassification"),
        inside="deit.",
        names={"written": DEIT, "modules": DEIT_MODULES},
        defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_attention_heads": 12},
    ),
    "dinov2_with_registers": Family(
        model_types=("dinov2_with_registers",),
        anchors=("embeddings.register_tokens", "encoder.layer.0.norm1.weight"),
        architectures=("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
        inside="dinov2_with_registers.",
        names={"written": DINOV2, "modules": DINOV2_MODULES},
        defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-6, "num_attention_heads": 12},
        missing=Missing(placed=1),
        resampling="bicubic-antialias",
        pooling=("token", "token+mean"),
    ),
    "dinov2": Family(
        model_types=("dinov2",),
        anchors=("embeddings.cls_token", "encoder.layer.0.norm1.weight"),
        without=("embeddings.register_tokens",),
        architectures=("Dinov2Model", "Dinov2ForImageClassification"),
        inside="dinov2.",
        names={"written": DINOV2, "modules": DINOV2_MODULES},
        defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-6, "num_attention_heads": 12},
        pooling=("token", "token+mean"),
    ),
    "beit": Family(
        model_types=("beit", "data2vec-vision"),
        anchors=("embeddings.cls_token", "embeddings.patch_embeddings.projection.weight"),
        either=tuple(f"{names.layer}0.{names.qkv[0]}bias" for names in (BEIT, BEIT_MODULES)),
        without=tuple(f"{names.layer}0.{names.qkv[1]}bias" for names in (BEIT, BEIT_MODULES)),
        architectures=("BeitModel", "BeitForImageClassification"),
        inside="beit.",
        names={"written": BEIT, "modules": BEIT_MODULES},
        defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_attention_heads": 12},
    ),
    "dinov3_vit": Family(
        model_types=("dinov3_vit",),
        anchors=("embeddings.patch_embeddings.weight", "embeddings.cls_token"),
        architectures=("DINOv3ViTModel", "DINOv3ViTForImageClassification"),
        inside="dinov3_vit.",
        names={"written": DINOV3, "modules": replace(DINOV3, layer="model.layer.")},
        defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 6, "rope_theta": 100.0},
        rotary=True,
        pooling=("token", "token+mean"),
    ),
    "clip": Family(
        model_types=(
            "clip",
            "clip_vision_model",
            *(f"{name}{end}" for name in LIKE_CLIP for end in ("", "_vision_model")),
        ),
        anchors=("embeddings.class_embedding", "pre_layrnorm.weight"),
        architectures=("CLIPVisionModel", "CLIPForImageClassification"),
        inside="vision_model.",
        names={"written": CLIP},
        defaults={"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 12},
        missing=Missing(biases=("embedding.projection",)),
        pooling=("token", "mean"),
        final_norm=("tokens", "none"),
    ),
    "siglip": Family(
        model_types=("siglip", "siglip_vision_model"),
        anchors=("embeddings.patch_embedding.weight", "embeddings.position_embedding.weight"),
        without=("embeddings.class_embedding",),
        architectures=("SiglipVisionModel", "SiglipForImageClassification"),
        inside="vision_model.",
        names={"written": SIGLIP},
        defaults={"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "num_attention_heads": 12},
        pooling=("attention", "mean"),
    ),
}


def family_of(headers: Headers) -> str | None:
    """Find the family whose tensors these are; nothing where they are those of transformers' ViT."""
    for name, family in FAMILIES.items():
        known = all(anchor in headers for anchor in family.anchors)
        known &= not family.either or any(name in headers for name in family.either)
        if known and not any(no in headers for no in family.without):
            return name
    return None
