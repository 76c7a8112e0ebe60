"""`vitrail.load`: from whatever holds weights to a model."""

import logging
import os

import torch

from vitrail.checkpoint.adapt import Weights
from vitrail.checkpoint.prepare import Request, prepare
from vitrail.checkpoint.reading import compare, recognizing
from vitrail.config import Grid, ModelConfig, Provenance
from vitrail.errors import CheckpointError
from vitrail.models import Model, find_device, skeleton

logger = logging.getLogger("vitrail")


def config_of(path: str | os.PathLike[str], **changes: object) -> ModelConfig:
    """Say what model a checkpoint is, or what `load` makes of it with these changes; without its weights."""
    named = {name: changes.pop(name) for name in [*changes] if name in Request.__dataclass_fields__}
    request = Request(**named, fields=changes)  # pyright: ignore[reportArgumentType]
    with recognizing(path, request.asked) as opened:
        return request.target(opened.found.config)


def load(
    path: str | os.PathLike[str],
    *,
    image_size: int | tuple[int, int] | None = None,
    classes: int | None = None,
    patch: int | None = None,
    channels: int | None = None,
    grid: Grid | None = None,
    keep_hidden: bool = False,
    device: torch.device | str | None = None,
    **fields: object,
) -> Model:
    """Load a ViT, hybrid or BiT from a file or folder in any layout, an https:// address or hf:OWNER/NAME, to evaluate.

    `image_size` resamples the positions; `classes` gives a new zero head and drops a pre-training layer unless
    `keep_hidden`; `patch` and `channels` resize the first layer; `grid` is the (rows, cols) of the file's position
    table; other fields are those of `CHANGEABLE`. `model.card` says what was recognised, inferred and left out.
    """
    place = find_device(device)
    request = Request(
        image_size=image_size,
        classes=classes,
        patch=patch,
        channels=channels,
        grid=grid,
        keep_hidden=keep_hidden,
        fields=fields,
    )
    config, weights, card, _ = prepare(path, request, torch.float32)
    model = assemble(config, weights).to(place).eval()
    model.card = card
    if card.provenance is not None:
        _log(card.provenance)
    return model


def assemble(config: ModelConfig, weights: Weights) -> Model:
    """Make the model and give it exactly these weights."""
    model = skeleton(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if difference := compare(wanted, {name: tuple(tensor.shape) for name, tensor in weights.items()}):
        raise CheckpointError(f"the weights do not fit the model asked for: {difference}.")
    model.load_state_dict(weights, strict=True, assign=True)
    return model


def _log(provenance: Provenance) -> None:
    """Say what was recognised and inferred; what was left out more loudly."""
    logger.info("%s: %s, %s", provenance.source, provenance.layout, provenance.container)
    for note in (*provenance.inferred, *provenance.changes):
        logger.info("%s: %s", provenance.source, note)
    if left_out := provenance.left_out:
        some = ", ".join(left_out[:4]) + (", ..." if len(left_out) > 4 else "")
        logger.warning("%s: left out, since the model has no place for it: %s", provenance.source, some)
