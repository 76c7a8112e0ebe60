"""What a model learns of pixels and objects: losses of its queries after every block that they join, or of patches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.config.recipe import Training
from vitrail.data.annotation import VOID
from vitrail.data.decode import ImageError
from vitrail.data.source import Batch, Source
from vitrail.models.dense import DenseViT, Staged, StagedViT
from vitrail.models.dense_heads import LinearPatches
from vitrail.ops.constants import upload
from vitrail.ops.cost.dense import compared_at
from vitrail.ops.dense import (
    Targets,
    guess_losses,
    match,
    pixel_losses,
    query_losses,
    targets_of_boxes,
    targets_of_masks,
)
from vitrail.ops.random import Purpose, draws
from vitrail.train.objective import Losses

PIXELS = 8.0  # what classes of pixels without queries count: patches learn them sooner than queries do
LOOKED_AT = 64  # images whose objects are counted, spread over all
UNMASKED = 0.8  # share of a run after which no query's attention is masked any more


def objects_of(source: Source) -> int:
    """Count the objects, or the classes of pixels, of the richest of some images; what cannot be read has none."""
    most = 0
    for index in np.unique(np.linspace(0, len(source) - 1, min(LOOKED_AT, len(source))).astype(np.int64)).tolist():
        try:
            found = source.annotation(index)
        except ImageError:
            continue
        some = len(found.boxes) if found.mask is None else len(np.setdiff1d(found.mask, VOID))
        most = max(most, some)
    return most


class DensePrediction:
    """Classes of pixels, or objects: every stage of the queries is compared with what is there."""

    counts = False

    def __init__(self, model: DenseViT, training: Training) -> None:
        self.model, self.seed = model, training.seed
        self.module = StagedViT(model)
        self.progress: Callable[[], float] = lambda: 0.0  # share of the run that is over; the run says it

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The images, and whose attention is masked in which block: a function of (seed, epoch, sample) and the step.

        Blocks are freed one after the other, the first ones first.
        """
        blocks, count = self.model.joined, self.model.count
        share = self.progress() / UNMASKED
        if not self.module.training or not blocks or share >= 1:
            return (batch.images,)
        masked = np.clip(1 + np.arange(blocks) - share * blocks, 0, 1)  # probability of each block
        u = draws(batch.samples.numpy(), blocks * count, self.seed, batch.epoch, Purpose.MASKING)
        chosen = u.reshape(len(u), blocks, count) < masked[:, None]
        return (batch.images, upload(chosen, batch.images.device))

    def compute_loss(self, outputs: Any, batch: Batch, inputs: tuple[Tensor, ...]) -> Losses:  # noqa: ANN401
        """Give every image's loss: the mean over the stages, and that of the guess."""
        found, guess = Staged(*outputs)
        stages, images = found.classes.shape[:2]
        if isinstance(self.model.head, LinearPatches):
            assert batch.masks is not None
            losses = pixel_losses(found.masks[-1], batch.masks, VOID)
            return Losses(losses, torch.zeros_like(losses))
        size = found.masks.shape[3], found.masks.shape[4]
        targets = self.targets(batch, size)
        classes, masks, boxes = (part.flatten(0, 1) for part in found)
        coarse = targets.shrink(size) if self.model.task == "segment" else targets
        matched = match(classes, masks, boxes, coarse.repeat(stages))
        losses = query_losses(classes, masks, boxes, targets.repeat(stages), matched)
        losses = losses.unflatten(0, (stages, images)).mean(dim=0)
        if isinstance(guess, Tensor):
            assert batch.masks is not None
            losses = losses + PIXELS * pixel_losses(guess, batch.masks, VOID)
        elif guess is not None:
            losses = losses + guess_losses(guess.classes, guess.boxes, targets, self.model.grid_of(inputs[0]))
        return Losses(losses, torch.zeros_like(losses))

    def targets(self, batch: Batch, size: tuple[int, int]) -> Targets:
        """Give the objects of images; masks of classes no smaller than the predicted ones, which are of this size.

        Those of objects, of which an image may have many, are as large.
        """
        if self.model.task == "segment":
            assert batch.masks is not None
            height, width = batch.masks.shape[1:]
            return targets_of_masks(batch.masks, compared_at((height, width), size), VOID)
        assert batch.objects is not None
        return targets_of_boxes(batch.objects, batch.shapes, size)
