"""Class names and preprocessing as other libraries write them beside their weights."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.archives.base import Entry
from vitrail.checkpoint.layouts.base import NOTE
from vitrail.checkpoint.layouts.timm import ACTIVATIONS
from vitrail.config import (
    BiasPositions,
    Card,
    ModelConfig,
    Preprocessing,
    Provenance,
    RotaryPositions,
    ViTConfig,
    decode,
    encode,
)
from vitrail.config.check import texts
from vitrail.config.preprocessing import AUTHORS, DECISIVE, IMAGENET, NAMED
from vitrail.errors import ConfigError
from vitrail.files import parse_json

# The buffers of a layer that people put in front of a model: 0.mean and 0.std, normalize.mean, pixel_mean.
MEAN = re.compile(r"(.*\.)?_?((pixel|image|img|input|data|norm)_)?mean")
DEVIATIONS = ("std", "deviation", "stdev", "sigma")
OF_IMAGENET = ("torchvision", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit")
PIL_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def read_card(layout: str, config: ModelConfig, documents: Mapping[str, Any], provenance: Provenance) -> Card:
    """Read what is known beside the weights; what makes no sense there is as if it were not said."""
    said, names = documents.get("config.json", {}), None
    how, assumed = _from_note(documents.get("notes", {}))
    match layout:
        case "hf":
            names = _labels(said.get("id2label"), config)
            how = how or _from_hf(documents.get("preprocessor_config.json", {}))
        case "timm":
            listed = said.get("label_names")
            names = tuple(listed) if _fits(listed, config) else None
            how = how or _from_timm(said.get("pretrained_cfg"))
        case "openclip":
            how = how or _from_openclip(documents.get("open_clip_config.json", {}).get("preprocess_cfg"))
    if how is None:
        family = provenance.dialect.get("family") if isinstance(provenance.dialect, Mapping) else None
        how, assumed = usual_preprocessing(str(family or layout), config.channels), DECISIVE
    return Card(provenance=replace(provenance, assumed=assumed), class_names=names, preprocessing=how)


def find_normalization(entries: Mapping[str, Entry]) -> tuple[str, str] | None:
    """Find the mean and the deviation of a layer that normalizes images, by names and shapes; none where several may.

    In an nn.Sequential such a layer stands before the model.
    """
    found: list[tuple[str, str]] = []
    for name in entries:
        if MEAN.fullmatch(name):
            pairs = ((name, name.removesuffix("mean") + word) for word in DEVIATIONS)
            found += [pair for pair in pairs if pair[1] in entries and _are_levels(entries, *pair)]
    if len(found) != 1:
        return None
    place = found[0][0].split(".")[0]
    later = [first for name in entries if (first := name.split(".")[0]).isdecimal() and first != place]
    if place.isdecimal() and later and int(place) > min(map(int, later)):
        return None
    return found[0]


def _are_levels(entries: Mapping[str, Entry], mean: str, deviation: str) -> bool:
    """Tell whether two tensors have a real number for each of 3 channels, or one for all."""
    one, other = entries[mean], entries[deviation]
    along = prod(one.shape) == 1 or [side for side in one.shape if side != 1] == [3]
    return one.shape == other.shape and along and all(isinstance(each.dtype, torch.dtype) for each in (one, other))


def normalized(card: Card, names: tuple[str, str], read: Callable[[str], Tensor]) -> Card | None:
    """Give the card with the levels of a layer in front of the model, from 0 to 1; None where they are no such levels.

    Where something else says how images are read, that stays.
    """
    if card.provenance is None or not {"mean", "deviation"} <= {*card.assumed}:
        return None
    mean, deviation = (tuple(round(value, 7) for value in read(name).flatten().tolist()) for name in names)
    if not all(0 <= value <= 1 for value in mean) or not all(1e-3 <= value <= 1 for value in deviation):
        return None
    left = tuple(name for name in card.assumed if name not in ("mean", "deviation"))
    said = f"mean and deviation of images, from 0 to 1: {names[0]} and {names[1]} of a layer in front of the model"
    came = replace(card.provenance, assumed=left, inferred=(*card.provenance.inferred, said))
    how = replace(card.preprocessing, mean=mean, deviation=deviation)
    return replace(card, preprocessing=how, provenance=came)


def usual_preprocessing(layout: str, channels: int) -> Preprocessing:
    """Give what is assumed of a file that says nothing, by its layout or by its family of transformers.

    torchvision's published weights read as ImageNet's colors, and so do those of DeiT and DINO; CLIP has its own.
    """
    if channels != len(IMAGENET.mean):
        return AUTHORS
    return NAMED["clip"] if layout in ("clip", "openclip") else IMAGENET if layout in OF_IMAGENET else AUTHORS


def to_timm_config(config: ViTConfig, card: Card) -> dict[str, Any]:
    """Give the config.json beside weights that timm opens, as local-dir:FOLDER: the model, classes, preprocessing."""
    how, pool = card.preprocessing, {"token": "token", "attention": "map"}.get(config.pooling, "avg")
    other = isinstance(config.positions, RotaryPositions | BiasPositions)
    if config.mlp != "plain" or config.pooling == "distilled" or other:
        raise ConfigError(
            "timm's documents say nothing of gates, rotary positions, biases of offsets or two tokens. "
            "Give a file, .safetensors."
        )
    ratio = config.mlp_width / config.width
    ratio = ratio if int(config.width * ratio) == config.mlp_width else (config.mlp_width + 0.5) / config.width
    mean, deviation = (
        list(values * (config.channels if len(values) == 1 else 1)) for values in (how.mean, how.deviation)
    )
    said = {
        # Any ViT of timm's, by these arguments; one of CLIP's where epsilon is 1e-5, which no argument says.
        "architecture": "vit_base_patch16_clip_224" if config.epsilon == 1e-5 else "vit_base_patch16_224",
        "num_classes": config.classes or 0,
        "num_features": config.width,
        "global_pool": pool,
        "model_args": {
            "img_size": list(config.image_size),
            "patch_size": config.stem.patch,
            "in_chans": config.channels,
            "embed_dim": config.width,
            "depth": config.depth,
            "num_heads": config.heads,
            "mlp_ratio": ratio,  # whose product timm rounds down
            "qkv_bias": config.qkv_bias,
            "act_layer": next(word for word, ours in ACTIVATIONS.items() if ours == config.activation),
            "init_values": config.layer_scale,
            "class_token": bool(config.class_tokens),
            "global_pool": pool,
            "fc_norm": config.last_norm == "pooled",
            "final_norm": config.last_norm != "none",
            "pre_norm": config.first_norm,
            "reg_tokens": config.registers,
            "no_embed_class": config.registers > 0,
            "qk_norm": config.qk_norm,
            "scale_attn_norm": config.inner_norm == "both",
            "scale_mlp_norm": config.inner_norm != "none",
        },
        "pretrained_cfg": {
            "input_size": [config.channels, *config.image_size],
            "fixed_input_size": True,
            "mean": mean,
            "std": deviation,
            "interpolation": how.interpolation,
            "crop_pct": how.crop_share,
            "crop_mode": "squash" if how.resize == "squash" else "center",
            "num_classes": config.classes or 0,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }
    return said if card.class_names is None else {**said, "label_names": list(card.class_names)}


def to_note(config: ModelConfig, card: Card) -> dict[str, str]:
    """Give the note of a safetensors file: the model, its preprocessing, and what of that is assumed."""
    said = {"model": encode(config), "preprocessing": encode(card.preprocessing), "assumed": card.assumed}
    return {NOTE: json.dumps(said)}


def _from_note(notes: Mapping[str, str]) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """Read the preprocessing of our own note, and what of it was assumed; nothing where there is none."""
    with suppress(ValueError, KeyError, TypeError, ConfigError):
        said = parse_json(notes[NOTE])
        return decode(said["preprocessing"], Preprocessing), texts("assumed", said["assumed"])
    return None, ()


def to_hf_processor(how: Preprocessing, config: ViTConfig) -> dict[str, Any]:
    """Give the preprocessor_config.json that transformers opens; it squashes, whatever the crop."""
    filters = {word: number for number, word in PIL_FILTERS.items()}
    height, width = config.image_size
    low, high = how.value_range or (0, 255)
    mean, deviation = (values * config.channels if len(values) == 1 else values for values in (how.mean, how.deviation))
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": filters[how.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / (high - low),
        "do_normalize": True,
        "image_mean": [value + low / (high - low) for value in mean],
        "image_std": list(deviation),
    }


def _from_hf(said: Mapping[str, Any]) -> Preprocessing | None:
    if not said:
        return None
    filters = said.get("resample", 2)
    words: dict[str, Any] = {
        "interpolation": PIL_FILTERS.get(filters, "bilinear") if isinstance(filters, int) else "bilinear"
    }
    shorter, crop = (_side(said.get(name)) for name in ("size", "crop_size"))
    if said.get("do_center_crop") is True and shorter and crop and crop <= shorter:
        words |= {"resize": "crop", "crop_share": crop / shorter}
    if said.get("do_normalize") is False:
        return _read(words | {"mean": (0.0,), "deviation": (1.0,)}, said, {})
    return _read(words, said, {"image_mean": "mean", "image_std": "deviation"})


def _side(said: object) -> int | None:
    """Read the side of a size as transformers writes it: a number, or the shorter edge, or a square's height."""
    if isinstance(said, dict):
        said = said.get("shortest_edge", said.get("height"))
    return said if isinstance(said, int) and not isinstance(said, bool) and said > 0 else None


def _from_openclip(said: object) -> Preprocessing | None:
    if not isinstance(said, dict):
        return None
    words = {"interpolation": "bicubic", "resize": "squash" if said.get("resize_mode") == "squash" else "crop"}
    return _read(
        words | {"crop_share": 1.0}, said, {"mean": "mean", "std": "deviation", "interpolation": "interpolation"}
    )


def _from_timm(said: object) -> Preprocessing | None:
    if not isinstance(said, dict):
        return None
    words = {"interpolation": "bicubic", "resize": "squash" if said.get("crop_mode") == "squash" else "crop"}
    return _read(
        words, said, {"mean": "mean", "std": "deviation", "interpolation": "interpolation", "crop_pct": "crop_share"}
    )


def _read(words: dict[str, Any], said: Mapping[str, Any], names: Mapping[str, str]) -> Preprocessing | None:
    """Read what another library says, under its names; nothing where it makes no sense."""
    with suppress(ConfigError):
        return decode(words | {ours: said[name] for name, ours in names.items() if name in said}, Preprocessing)
    return None


def _labels(said: object, config: ModelConfig) -> tuple[str, ...] | None:
    """Read id2label; transformers' LABEL_0, LABEL_1 are no names."""
    if not isinstance(said, dict):
        return None
    names = [said.get(str(index)) for index in range(len(said))]
    if not _fits(names, config) or all(name == f"LABEL_{index}" for index, name in enumerate(names)):
        return None
    return tuple(str(name) for name in names)


def _fits(names: object, config: ModelConfig) -> bool:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return False
    return len(names) == config.classes
