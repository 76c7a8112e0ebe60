"""What a verb is given, opened: a model by name, file, run folder or in memory, and what to call it and the data."""

import os
from pathlib import Path

import torch

from vitrail.checkpoint.load import load
from vitrail.config import as_size, name_of
from vitrail.errors import ConfigError
from vitrail.models import Model
from vitrail.runtime.group import choose_device

AnyModel = str | os.PathLike[str] | Model  # a name, a file, a run folder, or a model in memory
ImageSize = int | tuple[int, int]
Device = str | torch.device


def open_model(model: AnyModel, image_size: ImageSize | None = None, device: Device | None = None) -> Model:
    """Load a checkpoint; a model in memory stays as it is and where it is."""
    if isinstance(model, str | os.PathLike):
        return load(model, image_size=image_size, device=choose_device(device))
    if not isinstance(model, Model):
        raise ConfigError(f"model must be a name, a file, a run folder or a model; got {type(model).__name__}.")
    own = model.config.image_size
    if image_size is not None and as_size(image_size) != own:
        raise ConfigError(
            f"the model reads images of {own}; got image_size={image_size}. Give that to vitrail.load instead."
        )
    device_for(model, device)
    return model


def device_for(model: AnyModel, device: Device | None) -> Device | None:
    """Give the device to work on: that of a model in memory, or the one that is asked for."""
    if not isinstance(model, Model):
        return device
    place = next(model.parameters()).device
    if device is not None and torch.device(device).type != place.type:
        raise ConfigError(f"the model is on {place}; got device={device}. Move it, model.to(...), or leave device out.")
    return place


def model_path(model: AnyModel) -> Path | None:
    """Give where a model was loaded from; None where it was not loaded."""
    if not isinstance(model, Model):
        return Path(model).expanduser()
    return None if model.card.provenance is None else Path(model.card.provenance.source).expanduser()


def model_name(model: AnyModel) -> str:
    """Name a model for people and documents: where it comes from, or else what it is."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    if not isinstance(model, Model):
        raise ConfigError(f"model must be a name, a file, a run folder or a model; got {type(model).__name__}.")
    return model.card.provenance.source if model.card.provenance is not None else name_of(model.config) or "model"


def data_name(data: object) -> str:
    """Name data for people and documents: its path, or else its type."""
    return os.fspath(data) if isinstance(data, str | os.PathLike) else type(data).__name__
