"""`vitrail.load`: from a file to a model."""

import os

import numpy as np
import torch

from vitrail.checkpoint.adapt import Weights, replace_head, resize
from vitrail.checkpoint.google import rows, today
from vitrail.checkpoint.infer import infer
from vitrail.checkpoint.npz import Arrays, read_npz
from vitrail.config import Grid, ModelConfig, ViTConfig, as_size, override, pair, suggest, whole
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import Model, find_device, skeleton

# What the weights do not decide.
CHANGEABLE = (
    "activation",
    "attention_dropout",
    "checkpointing",
    "dropout",
    "epsilon",
    "head_bias",
    "representation_width",
    "stochastic_depth",
)


def load(
    path: str | os.PathLike[str],
    *,
    image_size: int | tuple[int, int] | None = None,
    classes: int | None = None,
    grid: Grid | None = None,
    device: torch.device | str | None = None,
    **fields: object,
) -> Model:
    """Load a ViT, hybrid or BiT `.npz`, recognised by its contents, in evaluation mode.

    `image_size` resamples the positions; `classes` gives a new zero head and drops a pre-training layer;
    `grid` is the (rows, cols) of the file's position table; other fields are those of `CHANGEABLE`.
    """
    size = None if image_size is None else as_size(image_size)
    shape = None if grid is None else pair("grid", grid, "(rows, cols) of the file's position table")
    place, asked = find_device(device), None if classes is None else whole("classes", classes)
    for name in fields:
        if name not in CHANGEABLE:
            raise ConfigError(f"load cannot change {name!r}: the file decides.{suggest(name, CHANGEABLE)}")
    arrays = today(read_npz(path))
    try:
        old = infer(arrays, image_size=size, grid=shape, classes=asked)
        weights = read_weights(arrays, old, fresh=() if asked is None else ("head.",))
        changes: dict[str, object] = {} if size is None else {"image_size": size}
        if asked is not None:
            changes |= {"classes": asked} | ({"representation_width": None} if isinstance(old, ViTConfig) else {})
        new = override(old, changes | fields)
        weights = resize(weights, old, new)
        if asked is not None:
            weights = replace_head(weights, new)
        return assemble(new, weights).to(place).eval()
    except CheckpointError as error:
        raise CheckpointError(f"{os.fspath(path)}: {error}") from error


def read_weights(arrays: Arrays, config: ModelConfig, *, fresh: tuple[str, ...]) -> Weights:
    """Read every weight in our names and axes; each array must be used, and none may be missing that is not fresh."""
    layout = [
        row for row in rows(config) if not row.ours.startswith(fresh) or all(name in arrays for name in row.theirs)
    ]
    wanted = {name: row.shape for row in layout for name in row.theirs}
    if difference := _compare(wanted, {name: array.shape for name, array in arrays.items()}):
        raise CheckpointError(f"the file does not fit its own architecture: {difference}.")
    return {row.ours: _tensor(row.read(*[arrays[name] for name in row.theirs])) for row in layout}


def assemble(config: ModelConfig, weights: Weights) -> Model:
    """Make the model and give it exactly these weights."""
    model = skeleton(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if difference := _compare(wanted, {name: tuple(tensor.shape) for name, tensor in weights.items()}):
        raise CheckpointError(f"the weights do not fit the model asked for: {difference}.")
    model.load_state_dict(weights, strict=True, assign=True)
    return model


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _compare(wanted: dict[str, tuple[int, ...]], given: dict[str, tuple[int, ...]]) -> str:
    """List all that is missing, unexpected or of another shape; nothing where all fits."""
    parts = {
        "missing": sorted(wanted.keys() - given.keys()),
        "unexpected": sorted(given.keys() - wanted.keys()),
        "of another shape": [
            f"{name} is {given[name]}, not {shape}" for name, shape in wanted.items() if given.get(name, shape) != shape
        ],
    }
    return "; ".join(f"{len(found)} {what}: {', '.join(found)}" for what, found in parts.items() if found)
