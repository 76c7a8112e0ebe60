"""Masked patch prediction as an objective (Section 4.6, Appendix B.1.2)."""

from typing import assert_never

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config.objective import MaskedPatches
from vitrail.data.loader import Batch
from vitrail.data.transforms import unscale
from vitrail.models import Model, ViT
from vitrail.models.masked import MaskedPatchModel
from vitrail.ops import patchify
from vitrail.ops.colors import COLORS, SMALL, mean_colors, small_colors
from vitrail.ops.constants import upload
from vitrail.ops.masking import EACH, plan_corruption, take
from vitrail.ops.random import Purpose, draws
from vitrail.train.objective import Losses, suitable


class MaskedPatchPrediction:
    """Corrupts patches by the sample's own random numbers, and asks for what was there."""

    def __init__(self, model: Model, objective: MaskedPatches, *, seed: int) -> None:
        self.encoder, self.objective, self.seed = suitable(model, objective), objective, seed
        self.counts = objective.target != "pixels"
        self.module: nn.Module = MaskedPatchModel(self.encoder, objective, seed=seed)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The images, and what becomes of which patches: a function of (seed, epoch, sample)."""
        u = draw_patches(self.encoder, batch, self.seed, EACH)
        plan = plan_corruption(u, self.objective.corrupted, self.objective.masked, self.objective.replaced)
        return (batch.images, *(upload(numbers, batch.images.device) for numbers in plan))

    def compute_loss(self, outputs: Tensor, batch: Batch, inputs: tuple[Tensor, ...]) -> Losses:
        """Compare at the corrupted patches alone, those that were kept as they are too; each image's mean."""
        images, patches, *_ = inputs
        (rows, cols), side = self.encoder.grid_of(images), self.encoder.config.stem.stride
        whole = cover(images.float(), rows * side, cols * side)
        scaling = self.encoder.card.preprocessing
        match self.objective.target:
            case "mean-color":
                return class_losses(outputs, mean_colors(unscale(whole, scaling), side).gather(1, patches))
            case "small-colors":
                wanted = small_colors(unscale(whole, scaling), side)  # B N 16
                chosen = take(wanted, patches).flatten(1)
                return class_losses(outputs.unflatten(2, (SMALL * SMALL, COLORS)).flatten(1, 2), chosen)
            case "pixels":
                return pixel_losses(outputs, take(patchify(whole, side), patches))
            case _:
                assert_never(self.objective.target)


def cover(images: Float[Tensor, "B C H W"], height: int, width: int) -> Float[Tensor, "B C height width"]:
    """Give what the patches cover: a hybrid leaves ends out, or goes on past the edge, as if its pixels did."""
    more = (0, max(width - images.shape[3], 0), 0, max(height - images.shape[2], 0))
    return F.pad(images, more, mode="replicate")[:, :, :height, :width] if any(more) else images[:, :, :height, :width]


def draw_patches(encoder: ViT, part: Batch, seed: int, each: int) -> NDArray[np.float64]:
    """Give so many random numbers for every patch of these images: a function of (seed, epoch, sample)."""
    rows, cols = encoder.grid_of(part.images)
    return draws(part.samples.numpy(), each * rows * cols, seed, part.epoch, Purpose.HIDING)


def pixel_losses(values: Float[Tensor, "B M P"], wanted: Float[Tensor, "B M P"]) -> Losses:
    """Give each image's mean square; values are never correct or wrong."""
    losses = (values.float() - wanted).square().mean(dim=(1, 2))
    return Losses(losses, torch.zeros_like(losses))


def class_losses(scores: Float[Tensor, "B M K"], wanted: Int64[Tensor, "B M"]) -> Losses:
    """Give each image's mean cross-entropy, and the share of classes that are correct."""
    losses = F.cross_entropy(scores.float().flatten(0, 1), wanted.flatten(), reduction="none").unflatten(
        0, wanted.shape
    )
    with torch.no_grad():
        correct = (scores.argmax(dim=2) == wanted).double().mean(dim=1)
    return Losses(losses.mean(dim=1), correct)
