"""What is learned of labelled images beside one class: several labels, numbers, ordered classes."""

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config import Card
from vitrail.config.outputs import LabelOutputs, NumberOutputs, OrderedOutputs, Outputs
from vitrail.config.recipe import Training
from vitrail.config.task import ImageTask, MultiLabel, Ordinal, Regression
from vitrail.data.source import Batch, Source
from vitrail.models import Model
from vitrail.ops.task_losses import label_loss, median_class, number_loss, order_loss
from vitrail.ops.uneven import weights_of
from vitrail.train.losses import Losses

HALF = 0.5  # probability from which a label is there, until images to choose by say better


def outputs_for(task: ImageTask, source: Source) -> Outputs | None:
    """Say what the outputs mean of a model that learns a task from these images; None: the logits of one class."""
    match task:
        case MultiLabel(allow_empty=allowed):
            return LabelOutputs(thresholds=(HALF,) * len(source.class_names), allow_empty=allowed)
        case Regression():
            assert source.targets is not None
            known = source.targets.astype(np.float64)
            spread = known.std(axis=0)
            spread = np.where(spread > 0, spread, 1.0)
            return NumberOutputs(mean=tuple(known.mean(axis=0).tolist()), deviation=tuple(spread.tolist()))
        case Ordinal():
            return OrderedOutputs(size=len(source.class_names))
        case _:
            return None


class TaskObjective:
    """The targets of the images, judged as their task says; its outputs' meaning is in the model's card."""

    def __init__(self, module: Model, config: Training, images: NDArray[np.int64] | None = None) -> None:
        self.module, self.config = module, config
        self.outputs = outputs_of(module.card)
        self.counts = not isinstance(self.outputs, NumberOutputs)
        device = next(module.parameters()).device
        self.mean = self.deviation = self.weights = None
        if isinstance(self.outputs, NumberOutputs):
            self.mean = torch.tensor(self.outputs.mean, dtype=torch.float64, device=device)
            self.deviation = torch.tensor(self.outputs.deviation, dtype=torch.float64, device=device)
        if images is not None and config.class_weights is not None:
            self.weights = torch.tensor(weights_of(images, config.class_weights), dtype=torch.float32, device=device)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The images alone."""
        return (batch.images,)

    def compute_loss(self, outputs: Tensor, batch: Batch, inputs: tuple[Tensor, ...]) -> Losses:
        """Compare with the targets: what is right is the share of labels, or the class; numbers are never."""
        assert batch.targets is not None
        targets, config = batch.targets, self.config
        match self.outputs:
            case LabelOutputs():
                right = ((outputs.detach() > 0) == (targets > HALF)).double().mean(dim=1)
                return Losses(label_loss(outputs, targets, config.focal), right)
            case NumberOutputs():
                assert isinstance(config.task, Regression)
                kind = "huber" if config.loss == "huber" else "squared"
                losses = number_loss(outputs, self.scaled(targets), kind, config.task.delta)
                return Losses(losses, torch.zeros_like(losses))
            case OrderedOutputs():
                losses = order_loss(outputs, targets)
                if self.weights is not None:
                    losses = losses * (targets @ self.weights)
                with torch.no_grad():
                    known = targets.amax(dim=1) > 0
                    right = known & (median_class(outputs.float().softmax(dim=1)) == targets.argmax(dim=1))
                return Losses(losses, right.double())
            case _:
                assert_never(self.outputs)

    def scaled(self, targets: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
        """Give numbers less their mean, by their deviation."""
        assert self.mean is not None
        assert self.deviation is not None
        return ((targets.double() - self.mean) / self.deviation).float()


def outputs_of(card: Card) -> Outputs:
    """Give what the card of a model says of its outputs."""
    assert card.outputs is not None, "a task says what its outputs mean when its model is made"
    return card.outputs


def with_outputs(card: Card, task: ImageTask, source: Callable[[], Source]) -> Card:
    """Give a card that says what the outputs mean; as it is where they are the logits of one class."""
    return replace(card, outputs=outputs_for(task, source()))
