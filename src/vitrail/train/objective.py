"""What a model learns from images: an objective says what goes in, what is asked, and how the answer is judged."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.config.objective import MaskedAutoencoder, MaskedPatches, NextPixels
from vitrail.config.recipe import Training
from vitrail.config.suitable import check_suitable
from vitrail.data.loader import Batch
from vitrail.errors import ShapeError
from vitrail.models import Model, ViT
from vitrail.ops.losses import loss_of, smooth, with_margin


class Losses(NamedTuple):
    """How good the answers to some images are."""

    losses: Float[Tensor, " B"]
    correct: Float[Tensor, " B"]  # share of what was asked that was answered correctly; no gradient


@runtime_checkable
class Objective(Protocol):
    """What a model learns, as an object of one's own: `vitrail.finetune(data, model=..., objective=mine)`."""

    def build(self, model: Model) -> nn.Module:
        """Give what is called and trained: the model, or a module that has it as `encoder` and predicts from it."""
        ...

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Give what the module is called with; `batch` has images, labels, targets, samples and the epoch."""
        ...

    def compute_loss(self, outputs: Tensor, batch: Batch, inputs: tuple[Tensor, ...]) -> "Losses | Tensor":
        """Give every image's loss, or `Losses` with what is correct of its answer."""
        ...


@runtime_checkable
class BuiltObjective(Protocol):
    """An objective with its module; one for a run."""

    @property
    def module(self) -> nn.Module:
        """What is called and trained: the model, or the model and what predicts from it."""
        ...

    @property
    def counts(self) -> bool:
        """Whether answers are correct or not; values are neither."""
        ...

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Give what the module is called with."""
        ...

    def compute_loss(self, outputs: Tensor, batch: Batch, inputs: tuple[Tensor, ...]) -> Losses:
        """Give every image's loss, and how much of its answer is correct."""
        ...


class OwnObjective:
    """An objective of one's own with the module that it built."""

    def __init__(self, objective: Objective, model: Model) -> None:
        self.objective, self.module = objective, objective.build(model)
        self.counts = bool(getattr(objective, "counts", False))
        self.inputs = objective.inputs

    def compute_loss(self, outputs: Tensor, batch: Batch, inputs: tuple[Tensor, ...]) -> Losses:
        """Take what it gives, and refuse anything but a loss for every image."""
        found = self.objective.compute_loss(outputs, batch, inputs)
        losses, correct = found if isinstance(found, Losses) else (found, None)
        if losses.shape != batch.labels.shape:
            raise ShapeError(
                f"compute_loss must give a loss for each of the {len(batch.labels)} images; got {tuple(losses.shape)}. "
                "Take the mean over everything but the images: losses.flatten(1).mean(dim=1)."
            )
        return Losses(losses, torch.zeros_like(losses) if correct is None else correct.double())


def suitable(model: Model, objective: MaskedPatches | MaskedAutoencoder | NextPixels) -> ViT:
    """Give a model that can learn what is asked; refuses another."""
    check_suitable(model.config, objective)
    assert isinstance(model, ViT)
    return model


@dataclass
class Classification:
    """The labels of the images: the paper's supervised training and fine-tuning."""

    module: Model
    config: Training
    counts: bool = True

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The images alone."""
        return (batch.images,)

    def compute_loss(self, outputs: Tensor, batch: Batch, inputs: tuple[Tensor, ...]) -> Losses:
        """Compare with the shares of the classes; what has no label has no loss and is not right."""
        assert batch.targets is not None
        config, scale = self.config, self.module.config.cosine_scale
        asked = outputs
        if config.margin is not None and scale is not None:  # what is counted as right stays without
            asked = with_margin(outputs, batch.targets, scale, config.margin)
        losses = loss_of(asked, smooth(batch.targets, config.label_smoothing), config.loss)
        with torch.no_grad():
            known = batch.targets.amax(dim=1) > 0
            correct = known & (outputs.argmax(dim=1) == batch.targets.argmax(dim=1))
        return Losses(losses, correct.double())
