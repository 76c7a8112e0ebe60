"""What a model learns from images: an objective says what goes in, what is asked, and how the answer is judged."""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.config.objective import MaskedAutoencoder, MaskedPatches, NextPixels
from vitrail.config.recipe import Training
from vitrail.config.suitable import check_suitable
from vitrail.data.loader import Batch
from vitrail.models import Model, ViT
from vitrail.ops.losses import loss_of, smooth, with_margin


class Losses(NamedTuple):
    """How good the answers to some images are."""

    losses: Float[Tensor, " B"]
    correct: Float[Tensor, " B"]  # share of what was asked that was answered correctly; no gradient


@runtime_checkable
class Objective(Protocol):
    """Asks and judges; one for a run."""

    module: nn.Module  # what is called and trained: the model, or the model and what predicts from it
    counts: bool  # whether answers are right or wrong; values are neither

    def inputs(self, part: Batch) -> tuple[Tensor, ...]:
        """Give what the module is called with."""
        ...

    def compute_loss(self, outputs: Tensor, part: Batch, inputs: tuple[Tensor, ...]) -> Losses:
        """Give every image's loss, and how much of its answer is right."""
        ...


def suitable(model: Model, objective: MaskedPatches | MaskedAutoencoder | NextPixels) -> ViT:
    """Give a model that can learn what is asked; refuses another."""
    check_suitable(model.config, objective)
    assert isinstance(model, ViT)
    return model


class Classification:
    """The labels of the images: the paper's supervised training and fine-tuning."""

    counts = True

    def __init__(self, model: Model, config: Training) -> None:
        self.module: nn.Module = model
        self.model, self.config = model, config

    def inputs(self, part: Batch) -> tuple[Tensor, ...]:
        """The images alone."""
        return (part.images,)

    def compute_loss(self, outputs: Tensor, part: Batch, inputs: tuple[Tensor, ...]) -> Losses:
        """Compare with the shares of the classes; what has no label has no loss and is not right."""
        assert part.targets is not None
        config, scale = self.config, self.model.config.cosine_scale
        asked = outputs
        if config.margin is not None and scale is not None:  # what is counted as right stays without
            asked = with_margin(outputs, part.targets, scale, config.margin)
        losses = loss_of(asked, smooth(part.targets, config.label_smoothing), config.loss)
        with torch.no_grad():
            known = part.targets.amax(dim=1) > 0
            right = known & (outputs.argmax(dim=1) == part.targets.argmax(dim=1))
        return Losses(losses, right.double())
