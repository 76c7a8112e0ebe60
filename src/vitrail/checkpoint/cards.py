"""Class names and preprocessing as other libraries write them beside their weights."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from vitrail.config import Card, ModelConfig, Preprocessing, Provenance, ViTConfig, decode
from vitrail.errors import ConfigError

# Published models of torchvision: normalised by ImageNet's statistics, the middle 224 of 256.
IMAGENET = {"mean": (0.485, 0.456, 0.406), "deviation": (0.229, 0.224, 0.225)}
PIL_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}


def read_card(layout: str, config: ModelConfig, documents: Mapping[str, Any], provenance: Provenance) -> Card:
    """Read what is known beside the weights; what makes no sense there is as if it were not said."""
    said, how, names = documents.get("config.json", {}), None, None
    match layout:
        case "google" | "vitrail":
            how = Preprocessing()
        case "hf":
            names = _labels(said.get("id2label"), config)
            how = _from_hf(documents.get("preprocessor_config.json", {}))
        case "timm":
            listed = said.get("label_names")
            names = tuple(listed) if _fits(listed, config) else None
            how = _from_timm(said.get("pretrained_cfg"))
        case _:
            how = Preprocessing(resize="crop", crop_share=0.875, **IMAGENET)  # pyright: ignore[reportArgumentType]
            note = "ImageNet's mean and deviation, as torchvision's published weights have"
            provenance = replace(provenance, inferred=(*provenance.inferred, note))
    if how is None:
        how, note = Preprocessing(), "the authors' preprocessing, pixels in [-1, 1], since the file says none"
        provenance = replace(provenance, inferred=(*provenance.inferred, note))
    return Card(provenance=provenance, class_names=names, preprocessing=how)


def to_hf_processor(how: Preprocessing, config: ViTConfig) -> dict[str, Any]:
    """Give the preprocessor_config.json that transformers opens; it squashes, whatever the crop."""
    filters = {word: number for number, word in PIL_FILTERS.items()}
    height, width = config.image_size
    mean, deviation = (values * config.channels if len(values) == 1 else values for values in (how.mean, how.deviation))
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": filters[how.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
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
