"""Models in eight bits as folders: weights with their scales, what each product reads, and the plain model's card."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.adapt import assemble
from vitrail.checkpoint.archives.base import EIGHT, PRECISIONS, read_safetensors
from vitrail.checkpoint.run_folder import OPTIMIZED, RUN_FILES, WEIGHTS, read_document, read_run_card
from vitrail.config import Provenance, decode
from vitrail.config.check import one_of, whole
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import verify_sums
from vitrail.models import Model
from vitrail.ops.fused import to_float8
from vitrail.ops.packed import to_int8
from vitrail.runtime.machine import choose_device
from vitrail.runtime.scales import Scales, products_of

FORMAT = "vitrail optimized 1"
SCALE, READ = ".weight_scale", ".input_range"  # after a product's name, beside its weight


def eight_bits(model: Model, precision: str, scales: Scales) -> dict[str, Tensor]:
    """Give the weights of a model with those of its products in eight bits, and the scales."""
    made = {name: held.detach() for name, held in model.state_dict().items()}
    for name, layer in products_of(model).items():
        weight = layer.weight.detach()
        scale = scales.weight[name].to(weight.device)
        made[f"{name}.weight"] = to_int8(weight, scale) if precision == "int8" else to_float8(weight, scale)
        made |= {f"{name}{SCALE}": scale, f"{name}{READ}": scales.read[name]}
    return made


def is_optimized(path: Path) -> bool:
    """Tell whether a folder holds a model in eight bits."""
    return (path / OPTIMIZED).is_file()


def read_optimized(path: Path, device: torch.device | str | None) -> tuple[Model, Scales, Mapping[str, Any]]:
    """Read a plain model of the rounded weights, the scales, and what the folder says of itself."""
    verify_sums(path, known=RUN_FILES)
    said = read_document(path / OPTIMIZED)
    try:
        one_of("format", said.get("format"), (FORMAT,))
        one_of("precision", said.get("precision"), ("int8", "float8"))
        whole("calibrated_on", said.get("calibrated_on"))
        config = decode(read_document(path / "config.json")["model"])
    except (ConfigError, KeyError) as error:
        raise CheckpointError(f"{path} says wrongly what it holds: {error} Make it again: vitrail.optimize.") from error
    held, _ = read_safetensors(path / WEIGHTS, PRECISIONS | EIGHT)
    weight = {name.removesuffix(SCALE): held.pop(name) for name in [*held] if name.endswith(SCALE)}
    read = {name.removesuffix(READ): held.pop(name) for name in [*held] if name.endswith(READ)}
    for name, scale in weight.items():
        rounded = held[f"{name}.weight"].float()
        held[f"{name}.weight"] = rounded * (scale[:, None] if scale.ndim else scale)
    model = assemble(config, held).to(choose_device(device)).eval()
    wanted = products_of(model).keys()
    if weight.keys() != wanted or read.keys() != wanted:
        raise CheckpointError(f"{path} lacks scales of some products, or has others. Make it again: vitrail.optimize.")
    card = read_run_card(path, config.classes).for_channels(config.channels)
    came = replace(card.provenance or Provenance(source="", layout="", container=""), source=str(path))
    model.card = replace(card, provenance=came)
    return model, Scales(read=read, weight=weight), said
