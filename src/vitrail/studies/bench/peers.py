"""Other libraries' models of the same shapes, without their weights; none of them is needed."""

import importlib
import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.config import ModelConfig, PatchStem, ViTConfig, parse
from vitrail.errors import ConfigError
from vitrail.studies.bench.table import Library, Shape

PEERS: tuple[Library, ...] = ("timm", "transformers", "torchvision")
CLASSES = 1000
TIMM = {
    "ViT-Ti/16": "vit_tiny_patch16_224",
    "ViT-S/16": "vit_small_patch16_224",
    "ViT-B/16": "vit_base_patch16_224",
    "ViT-L/16": "vit_large_patch16_224",
    "R50+ViT-B/16": "vit_base_r50_s16_224",
    "BiT-R50x1": "resnetv2_50x1_bit",
}


def versions() -> dict[str, str | None]:
    """Say which other libraries are installed, without importing them."""
    return {name: _version(name) for name in PEERS}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@cache
def peer(name: str) -> ModuleType:
    """Import another library; refuse one that is not installed."""
    if _version(name) is None:
        raise ConfigError(f"{name} is not installed. pip install {name}")
    mend_torchvision()
    return importlib.import_module(name)


@cache
def mend_torchvision() -> object | None:
    """Declare what torchvision lacks beside a CPU torch, where it cannot be imported: timm and transformers need it."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return None
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[module]
        return library  # the declarations live as long as it does
    return None


def peer_model(by: Library, shape: Shape) -> nn.Module:
    """Make another library's model of a shape."""
    library, config = peer(by), config_of(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match by:
            case "timm":
                return library.create_model(timm_name(shape.model), **_timm_fields(shape, config))
            case "transformers":
                return _Logits(library.ViTForImageClassification(library.ViTConfig(**_hf_fields(config))))
            case "torchvision":
                return library.models.VisionTransformer(**_torchvision_fields(config))
            case _:
                raise ConfigError(f"{by} is no other library.")


def peer_loader(by: Library, model: str) -> Callable[[Path], nn.Module]:
    """Give what loads a file of weights as a library's own users do; all is imported by then."""
    library = peer(by)
    match by:
        case "transformers":
            return library.ViTForImageClassification.from_pretrained
        case "timm":
            return lambda path: library.create_model(timm_name(model), checkpoint_path=str(path))
        case _:
            raise ConfigError(f"a file is loaded by vitrail, timm or transformers; got {by}.")


def config_of(shape: Shape) -> ModelConfig:
    """Give the configuration of a shape's model in Vitrail."""
    return parse(shape.model, {"classes": CLASSES, "image_size": (shape.image_size,) * 2, **shape.fields})


def timm_name(model: str) -> str:
    """Give timm's name of a model."""
    if model not in TIMM:
        raise ConfigError(f"timm's name of {model} is not known here.")
    return TIMM[model]


class _Logits(nn.Module):
    """A model of transformers that gives its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        return self.model(images).logits


def _timm_fields(shape: Shape, config: ModelConfig) -> dict[str, Any]:
    if not isinstance(config, ViTConfig):
        return {"num_classes": CLASSES}
    plain = isinstance(config.stem, PatchStem)
    depth = {"depth": config.depth} if plain else {}
    return {"num_classes": CLASSES, "img_size": shape.image_size, **depth}


def _plain(config: ModelConfig) -> tuple[ViTConfig, int]:
    if not isinstance(config, ViTConfig) or not isinstance(config.stem, PatchStem):
        raise ConfigError("it has no such model.")
    return config, config.stem.patch


def _hf_fields(config: ModelConfig) -> dict[str, Any]:
    vit, patch = _plain(config)
    sizes = {"hidden_size": vit.width, "num_hidden_layers": vit.depth, "num_attention_heads": vit.heads}
    sizes |= {"intermediate_size": vit.mlp_width, "image_size": vit.image_size[0], "patch_size": patch}
    return {**sizes, "num_labels": CLASSES}


def _torchvision_fields(config: ModelConfig) -> dict[str, Any]:
    vit, patch = _plain(config)
    sizes = {"image_size": vit.image_size[0], "patch_size": patch, "num_layers": vit.depth, "num_heads": vit.heads}
    return {**sizes, "hidden_dim": vit.width, "mlp_dim": vit.mlp_width, "num_classes": CLASSES}
