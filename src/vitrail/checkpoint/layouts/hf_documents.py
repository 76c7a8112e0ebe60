"""The config.json of transformers' families, and which family holds a model: the one that would be read back alike."""

from collections.abc import Mapping
from typing import Any

import torch

from vitrail.checkpoint.adapt import Request
from vitrail.checkpoint.archives.base import Entry, Headers
from vitrail.checkpoint.layouts import hf_towers
from vitrail.checkpoint.layouts.base import Dialect
from vitrail.checkpoint.layouts.hf_families import FAMILIES, family_of
from vitrail.checkpoint.layouts.vit_rows import alike
from vitrail.config import BiasPositions, HybridStem, LearnedPositions, RotaryPositions, ViTConfig
from vitrail.errors import CheckpointError, ConfigError, ShapeError

WORDS = {"gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "quick-gelu": "quick_gelu", "relu": "relu", "silu": "silu"}


def family_for(config: ViTConfig) -> str | None:
    """Find the family whose files hold this model whole; nothing where none does, or where it is a plain ViT."""
    if isinstance(config.stem, HybridStem) or not _has_parts(config):
        return None
    for kind in FAMILIES:
        try:
            dialect = hf_towers.usual_dialect(kind, config)
            said = document(kind, config, None, dialect)
            rows = list(hf_towers.rows(config, dialect))
            entries = {name: Entry(shape, torch.float32) for row in rows for name, shape in row.shapes().items()}
            headers = Headers(entries, dialect["prefix"])
            if family_of(headers) != kind:
                continue
            found = hf_towers.infer(kind, headers, Request(), {"config.json": said})
        except (CheckpointError, ConfigError, ShapeError, KeyError, TypeError, ValueError):
            continue
        if alike(found.config) == alike(config) and not found.left_out:
            return kind
    return None


def _has_parts(config: ViTConfig) -> bool:
    plain = ViTConfig(
        stem=config.stem, depth=1, width=config.width, mlp_width=1, heads=config.heads, image_size=config.image_size
    )
    names = ("registers", "first_norm", "mlp", "projection", "last_norm", "class_tokens", "pooling")
    parts = any(getattr(config, name) != getattr(plain, name) for name in names)
    return parts or config.layer_scale is not None or isinstance(config.positions, RotaryPositions | BiasPositions)


def document(kind: str, config: ViTConfig, class_names: tuple[str, ...] | None, dialect: Dialect) -> dict[str, Any]:
    """Give the config.json that transformers opens."""
    family, (height, width) = FAMILIES[kind], config.image_size
    tower = {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": WORDS[config.activation],
        "layer_norm_eps": config.epsilon,
        "image_size": height if height == width else [height, width],
        "patch_size": config.stem.patch,
        "num_channels": config.channels,
        **_more(kind, config, dialect),
    }
    bare, classifier = family.architectures
    said: dict[str, Any] = {"architectures": [classifier if config.classes else bare], "model_type": kind}
    if kind in ("clip", "siglip"):
        if config.projection:
            said |= {"architectures": ["CLIPVisionModelWithProjection"], "projection_dim": config.projection}
        if config.classes:
            said |= {"vision_config": tower}
        else:
            said |= tower | {"model_type": f"{kind}_vision_model"}
    else:
        said |= tower
    if kind == "deit" and config.pooling == "distilled":
        said["architectures"] = ["DeiTForImageClassificationWithTeacher"]
    return said | labels(config, class_names)


def _more(kind: str, config: ViTConfig, dialect: Dialect) -> Mapping[str, Any]:
    gated = config.mlp == "gated"
    match kind:
        case "dinov2" | "dinov2_with_registers":
            ratio = _ratio(config.mlp_width, config.width, gated=gated)
            found = {"mlp_ratio": ratio, "use_swiglu_ffn": gated, "qkv_bias": config.qkv_bias}
            found |= {"layerscale_value": config.layer_scale}
            return found | ({"num_register_tokens": config.registers} if kind != "dinov2" else {})
        case "dinov3_vit":
            if not isinstance(config.positions, RotaryPositions):
                raise ConfigError("DINOv3 has rotary positions.")
            missing = dialect["missing"]
            biases = {
                f"{part}_bias": config.qkv_bias and f"attention.{part}" not in missing["biases"]
                for part in ("query", "value")
            }
            biases |= {"key_bias": config.qkv_bias and not missing["key_bias"]}
            biases |= {"proj_bias": "attention.out" not in missing["biases"]}
            biases |= {"mlp_bias": "mlp.contract" not in missing["biases"]}
            found = {
                "intermediate_size": config.mlp_width,
                "use_gated_mlp": gated,
                "rope_theta": config.positions.period,
            }
            return found | biases | {"num_register_tokens": config.registers, "layerscale_value": config.layer_scale}
        case "beit":
            biases = config.positions if isinstance(config.positions, BiasPositions) else None
            table = biases.table if biases else isinstance(config.positions, LearnedPositions)
            return {
                "intermediate_size": config.mlp_width,
                "use_absolute_position_embeddings": bool(table),
                "use_relative_position_bias": biases is not None and biases.at == "layers",
                "use_shared_relative_position_bias": biases is not None and biases.at == "shared",
                "use_mean_pooling": config.pooling == "mean",
                "layer_scale_init_value": config.layer_scale or 0.0,
            }
        case "deit":
            more = {"pooler_output_size": config.pre_logits or config.width, "pooler_act": "tanh"}
            return {"intermediate_size": config.mlp_width, "qkv_bias": config.qkv_bias, **more}
        case "siglip":
            return {"intermediate_size": config.mlp_width, "vision_use_head": config.pooling == "attention"}
        case _:
            return {"intermediate_size": config.mlp_width}


def _ratio(wide: int, width: int, *, gated: bool) -> float:
    """Find the ratio of which transformers makes this width of the MLP; whole where it can be."""
    for least in (wide * (3 if gated else 1), wide * 3 // 2 if gated else wide):
        for numerator in range(least // (2 if gated else 1), least // (2 if gated else 1) + 12):
            made = int(width * (numerator / width))
            if (((int(made * 2 / 3) + 7) // 8 * 8) if gated else made) == wide:
                return numerator // width if numerator % width == 0 else numerator / width
    raise ConfigError(f"transformers' DINOv2 makes no MLP of {wide} features of a width of {width}.")


def labels(config: ViTConfig, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    """Give the names of the classes, or transformers' own."""
    if not config.classes:
        return {}
    every = class_names or tuple(f"LABEL_{index}" for index in range(config.classes))
    numbered = {str(index): label for index, label in enumerate(every)}
    return {"id2label": numbered, "label2id": {label: index for index, label in enumerate(every)}}
