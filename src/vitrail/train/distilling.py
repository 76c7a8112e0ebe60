"""Distillation: what a student is told by a teacher checkpoint, beside the labels."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.checkpoint.load import load, open_checkpoint
from vitrail.config import ModelConfig, Preprocessing
from vitrail.config.model import ViTConfig
from vitrail.config.objective import Distillation, SoftDistillation
from vitrail.config.recipe import Training
from vitrail.data.source import Batch
from vitrail.data.transforms.finish import scale, unscale
from vitrail.errors import ConfigError
from vitrail.models import Model
from vitrail.models.heads import TwoHeads
from vitrail.ops.losses import loss_of
from vitrail.train.losses import Losses
from vitrail.train.objective import Classification


def told_loss(
    student: Float[Tensor, "B K"], teacher: Float[Tensor, "B K"], config: Distillation
) -> Float[Tensor, " B"]:
    """Give how far the student is from what the teacher says (Touvron et al., 2021, eqs. 2 and 3).

    soft: the squared temperature times the divergence from the teacher's probabilities, both of logits over the
    temperature. hard: the cross-entropy of the teacher's answer.
    """
    student, teacher = student.float(), teacher.float()
    if isinstance(config, SoftDistillation):
        ours, theirs = ((logits / config.temperature).log_softmax(dim=1) for logits in (student, teacher))
        return config.temperature**2 * (theirs.exp() * (theirs - ours)).sum(dim=1)
    return loss_of(student, F.one_hot(teacher.argmax(dim=1), teacher.shape[1]).float(), "softmax")


class BothHeads(nn.Module):
    """A model with a distillation token, whose two classifiers are given apart, one after the other."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K2"]:
        """The logits of the class token, and of the distillation token."""
        head = self.model.head
        assert isinstance(head, TwoHeads)
        first, second = self.model.represent(images).chunk(2, dim=1)
        return torch.cat([head.first(first), head.second(second)], dim=1)


class Distilling(Classification):
    """The labels, and what a teacher says of the same images, augmented and mixed alike."""

    def __init__(
        self, module: Model, config: Training, teacher: Model, images: NDArray[np.int64] | None = None
    ) -> None:
        super().__init__(module, config, images)
        assert config.distill is not None
        self.distill, self.teacher = config.distill, teacher.eval().requires_grad_(requires_grad=False)
        self.columns = columns_of(module.card.class_names, teacher.card.class_names, teacher.config.classes or 0)

    def compute_loss(self, outputs: Tensor, batch: Batch, inputs: tuple[Tensor, ...]) -> Losses:
        """Weigh the loss of the labels and that of the teacher; what is right goes by both classifiers."""
        own, told = outputs.chunk(2, dim=1) if self.distill.token else (outputs, outputs)
        losses, correct = super().compute_loss(own, batch, inputs)
        half = outputs.dtype == torch.bfloat16
        with torch.no_grad(), torch.autocast(outputs.device.type, torch.bfloat16, enabled=half):
            said = self.teacher(as_read(batch.images.float(), self.module.card.preprocessing, self.teacher))
        if self.columns is not None:
            said = said[:, self.columns]
        part = self.distill.share
        return Losses((1 - part) * losses + part * told_loss(told, said, self.distill), correct)


def as_read(images: Float[Tensor, "B C H W"], how: Preprocessing, teacher: Model) -> Float[Tensor, "B C h w"]:
    """Give images that a student reads as a teacher does: by its means, and at its own size where sides do not fit."""
    theirs, config = teacher.card.preprocessing, teacher.config
    if (how.mean, how.deviation, how.value_range) != (theirs.mean, theirs.deviation, theirs.value_range):
        images = scale(unscale(images, how), theirs)
    stride = config.stem.stride if isinstance(config, ViTConfig) else 1
    if any(side % stride for side in images.shape[2:]):
        images = F.interpolate(images, config.image_size, mode="bilinear", antialias=True)
    return images


def columns_of(names: Sequence[str] | None, theirs: Sequence[str] | None, count: int) -> list[int] | None:
    """Say which of a teacher's classes are the student's, in its order; None where they are the same."""
    classes = len(names or ())
    if theirs is None and count == classes:
        return None
    lacking = [name for name in names or () if name not in (theirs or ())]
    if lacking or theirs is None:
        what = f"does not know {', '.join(lacking[:4])}" if theirs else f"has {count} classes, and the data {classes}"
        raise ConfigError(
            f"the teacher {what}: it must know the classes of the data, by their names. Fine-tune it on this data "
            "first, and give that run."
        )
    found = [theirs.index(name) for name in names or ()]
    return None if found == [*range(count)] else found


def check_teacher(config: Distillation, student: ModelConfig, names: Sequence[str]) -> None:
    """Refuse a teacher that cannot teach these classes, or a student without what learns from it; reads headers."""
    assert config.teacher is not None
    with open_checkpoint(config.teacher) as opened:
        teacher, card = opened.config, opened.card()
    if not teacher.classes:
        raise ConfigError(f"the teacher {config.teacher} has no classifier. Give one that is fine-tuned on this data.")
    if card.outputs is not None:
        raise ConfigError(f"the teacher {config.teacher} answers with no classes. Give a classifier.")
    if teacher.channels != student.channels:
        raise ConfigError(
            f"the teacher reads {teacher.channels} channels, and the student {student.channels}. Take one that reads "
            "as many."
        )
    columns_of(names, card.class_names, teacher.classes)
    if config.token and not (isinstance(student, ViTConfig) and student.pooling == "distilled"):
        raise ConfigError(
            "token=true needs a model with a distillation token: a DeiT, or a fresh one by its name, such as "
            "model=ViT-Ti/16. Or set token=false."
        )


def open_teacher(config: Distillation, device: torch.device, *, compiled: bool) -> Model:
    """Open the teacher, compiled where the student is."""
    assert config.teacher is not None
    teacher = load(config.teacher, device=device)
    if compiled:
        teacher.compile(dynamic=False)
    return teacher
