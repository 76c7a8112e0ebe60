"""`vitrail.load`: from a file to a model."""

import os

import numpy as np
import torch

from vitrail.checkpoint.adapt import Weights, replace_head, resize
from vitrail.checkpoint.google import rows
from vitrail.checkpoint.infer import infer
from vitrail.checkpoint.npz import Arrays, read_npz
from vitrail.config import Grid, ModelConfig, ViTConfig, as_size, override
from vitrail.errors import CheckpointError
from vitrail.models import Model
from vitrail.models.build import skeleton


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
    `grid` is the (rows, cols) of the file's position table; any other field changes the configuration.
    """
    size = None if image_size is None else as_size(image_size)
    arrays = read_npz(path)
    try:
        old = infer(arrays, image_size=size, grid=grid, classes=classes)
        weights = read_weights(arrays, old, fresh=() if classes is None else ("head.",))
        changes: dict[str, object] = {} if size is None else {"image_size": size}
        if classes is not None:
            changes |= {"classes": classes} | ({"representation_width": None} if isinstance(old, ViTConfig) else {})
        new = override(old, changes | fields)
        weights = resize(weights, old, new)
        if classes is not None:
            weights = replace_head(weights, new)
        return assemble(new, weights).to(device).eval()
    except CheckpointError as error:
        raise CheckpointError(f"{os.fspath(path)}: {error}") from error


def read_weights(arrays: Arrays, config: ModelConfig, *, fresh: tuple[str, ...]) -> Weights:
    """Read every weight in our names and axes; each array must be used, and none may be missing that is not fresh."""
    layout = [
        row for row in rows(config) if not row.ours.startswith(fresh) or all(name in arrays for name in row.theirs)
    ]
    theirs = {name for row in layout for name in row.theirs}
    missing, strange = sorted(theirs - arrays.keys()), sorted(arrays.keys() - theirs)
    if missing or strange:
        raise CheckpointError("the file does not fit its own architecture: " + _differences(missing, strange, []))
    return {row.ours: _tensor(row.read(*[arrays[name] for name in row.theirs])) for row in layout}


def assemble(config: ModelConfig, weights: Weights) -> Model:
    """Make the model and give it exactly these weights."""
    model = skeleton(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    missing, strange = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
    shapes = [
        f"{name} is {given[name]}, not {shape}" for name, shape in wanted.items() if given.get(name, shape) != shape
    ]
    if missing or strange or shapes:
        raise CheckpointError("the weights do not fit the model asked for: " + _differences(missing, strange, shapes))
    model.load_state_dict(weights, strict=True, assign=True)
    return model


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _differences(missing: list[str], strange: list[str], shapes: list[str]) -> str:
    parts = {"missing": missing, "unexpected": strange, "of another shape": shapes}
    return "; ".join(f"{len(names)} {what}: {', '.join(names)}" for what, names in parts.items() if names) + "."
