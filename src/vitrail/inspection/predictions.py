"""What a model that learns without labels is shown of images, and what it predicts (Appendix B.1.2)."""

import os
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from vitrail.checkpoint.run_folder import locate, read_predictor
from vitrail.config.objective import Labels, Target
from vitrail.config.recipe import Training
from vitrail.data.source import Batch
from vitrail.data.transforms.finish import scale, unscale
from vitrail.errors import CheckpointError
from vitrail.inspection.views import to_model
from vitrail.models import Model, ViT, eval_mode
from vitrail.models.build import OBJECTIVE
from vitrail.models.objectives import NextPixelModel
from vitrail.ops.masking import COLORS, MASK, OTHER, SMALL, class_colors, put, take
from vitrail.ops.patches import patchify, unpatchify
from vitrail.train.objective import MaskedAutoencoding, MaskedPatchPrediction, NextPixelPrediction, cover, scale_of
from vitrail.train.prepare import build_objective

GRAY = 128  # the level of what is hidden

Pictures = tuple[Tensor, ...]  # B C H W, as the model reads: what it is shown, and what it makes of it
Predicting = MaskedPatchPrediction | MaskedAutoencoding | NextPixelPrediction


class Predictions(NamedTuple):
    """What a model is shown of some images, and what it predicts where it is asked."""

    words: str  # what is to be seen
    read: UInt8[Tensor, "B C H W"]
    made: UInt8[Tensor, "B C H W"]
    losses: Float[Tensor, " B"]
    right: Float[Tensor, " B"] | None  # share of colours; none where values are predicted


def open_objective(checkpoint: str | os.PathLike[str], model: Model) -> Predicting | None:
    """Open what predicts from a model beside its checkpoint; none where it learned labels, or came without."""
    folder = locate(checkpoint).run
    saved = None if folder is None else read_predictor(folder)
    if saved is None or isinstance(saved.objective, Labels) or not isinstance(model, ViT):
        return None
    training = Training(objective=saved.objective, steps=1)
    made = build_objective(model, training, lambda: saved.tensors[OBJECTIVE + "palette"])
    assert isinstance(made, Predicting)
    wanted = {name for name, _ in made.module.named_parameters() if not name.startswith("encoder.")}
    given = {name.removeprefix(OBJECTIVE): value for name, value in saved.tensors.items()}
    try:
        if wanted != given.keys():
            raise ValueError(f"it has {', '.join(sorted(given))}")
        with torch.no_grad():
            for name in wanted:
                made.module.get_parameter(name).copy_(given[name])
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"what predicts from {checkpoint} does not fit the model: {error}. Copy it again."
        ) from None
    return made


def predict(objective: Predicting, images: Float[Tensor, "B C H W"]) -> Predictions:
    """Hide, ask and judge as in training, always the same of the same place; give all of it as pictures."""
    samples = torch.arange(len(images))
    with eval_mode(objective.module):
        images = to_model(objective.encoder, images)
        part = Batch(images, samples, samples, samples, samples[:0], 0, 0, ())
        inputs = objective.inputs(part)
        outputs = objective.module(*inputs).float()
        losses, right = objective.compute_loss(outputs, part, inputs)
        match objective:
            case MaskedPatchPrediction():
                shown, words = _corrupted(objective, outputs, inputs), CORRUPTED[objective.objective.target]
            case MaskedAutoencoding():
                shown = _hidden(objective, outputs, inputs)
                words = SCALED if objective.objective.normalized else HIDDEN
            case NextPixelPrediction():
                shown, words = _pixels(objective, outputs, inputs), PIXELS
        height, width = images.shape[2:]  # a hybrid's patches may go on past the edge
        shown = (picture[:, :, :height, :width] for picture in shown)
        levels = (unscale(picture, objective.encoder.card.preprocessing) for picture in shown)
        read, made = (picture.round().clamp(0, 255).to(torch.uint8).cpu() for picture in levels)
    return Predictions(words, read, made, losses.cpu(), right.float().cpu() if objective.counts else None)


CORRUPTED: dict[Target, str] = {
    "mean-color": "the mean colour that it predicts for each corrupted one",
    "small-colors": "the 4 x 4 colours that it predicts for each corrupted one",
    "pixels": "the pixels that it predicts for each corrupted one",
}
HIDDEN = "the pixels that it predicts for each hidden one"
SCALED = "the pixels that it predicts for each hidden one, brought to the mean and deviation that the patch has"
PIXELS = "the likeliest colour of each pixel after the true ones before it"


def _corrupted(objective: MaskedPatchPrediction, outputs: Tensor, inputs: tuple[Tensor, ...]) -> Pictures:
    images, patches, kinds, others = inputs
    encoder, side = objective.encoder, objective.encoder.config.stem.stride
    grid = encoder.grid_of(images)
    flat = patchify(cover(images, grid[0] * side, grid[1] * side), side)  # B N PPC
    which = kinds[:, :, None]
    seen = torch.where(which == OTHER, take(flat, others), take(flat, patches))
    seen = torch.where(which == MASK, _gray(encoder, images), seen)
    if objective.objective.target == "pixels":
        values = outputs
    else:
        values = scale(_colored(outputs, side), encoder.card.preprocessing).permute(0, 2, 3, 1)
        values = values.flatten(1).unflatten(0, patches.shape)  # B M PPC
    return tuple(unpatchify(put(flat, patches, part), side, grid) for part in (seen, values))


def _colored(scores: Float[Tensor, "B M K"], side: int) -> UInt8[Tensor, "n 3 P P"]:
    """Paint each patch in its likeliest colour, or in its likeliest 4 x 4."""
    cells = scores.unflatten(2, (scores.shape[2] // COLORS, COLORS)).argmax(dim=3).flatten(0, 1)  # n cells
    across = SMALL if cells.shape[1] > 1 else 1
    colors = class_colors(scores.device)[cells].to(torch.uint8)  # n cells 3
    return F.interpolate(colors.unflatten(1, (across, across)).permute(0, 3, 1, 2), size=(side, side), mode="nearest")


def _hidden(objective: MaskedAutoencoding, outputs: Tensor, inputs: tuple[Tensor, ...]) -> Pictures:
    images, _, hidden = inputs
    encoder, side = objective.encoder, objective.encoder.config.stem.stride
    flat = patchify(images, side)
    true = take(flat, hidden)
    mean, deviation = scale_of(true) if objective.objective.normalized else (0, 1)
    values = outputs * deviation + mean
    grid = encoder.grid_of(images)
    gray = _gray(encoder, images).expand_as(true)
    return tuple(unpatchify(put(flat, hidden, part), side, grid) for part in (gray, values))


def _pixels(objective: NextPixelPrediction, outputs: Tensor, inputs: tuple[Tensor, ...]) -> Pictures:
    assert isinstance(objective.module, NextPixelModel)
    (colors,), palette = inputs, objective.module.palette
    likeliest: Int64[Tensor, "B H W"] = outputs.argmax(dim=2).view_as(colors)
    return tuple(palette[numbers].permute(0, 3, 1, 2) for numbers in (colors, likeliest))


def _gray(encoder: ViT, like: Float[Tensor, "B C H W"]) -> Float[Tensor, " PPC"]:
    """Give a patch of what is hidden."""
    level = torch.full((1, like.shape[1], 1, 1), GRAY, dtype=torch.uint8, device=like.device)
    return scale(level, encoder.card.preprocessing).flatten().repeat(encoder.config.stem.stride**2)
