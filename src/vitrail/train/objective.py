"""What a model learns from images: an objective says what goes in, what is asked, and how the answer is judged."""

from collections.abc import Mapping
from typing import Protocol, assert_never, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config import objective as objectives
from vitrail.config.objective import MaskedAutoencoder, MaskedPatches, NextPixels, check_suitable
from vitrail.config.recipe import Training
from vitrail.data.source import Batch
from vitrail.data.transforms.finish import unscale
from vitrail.errors import ConfigError, ShapeError
from vitrail.models import Model, ViT
from vitrail.models.objectives import MaskedAutoencoderModel, MaskedPatchModel, NextPixelModel
from vitrail.ops.constants import upload
from vitrail.ops.losses import loss_of, smooth, with_margin
from vitrail.ops.masking import (
    COLORS,
    EACH,
    SMALL,
    choose_visible,
    mean_colors,
    nearest,
    plan_corruption,
    small_colors,
    take,
)
from vitrail.ops.patches import patchify
from vitrail.ops.random import Purpose, draws
from vitrail.ops.uneven import log_priors, weights_of
from vitrail.runtime.machine import gathered
from vitrail.train.losses import Losses
from vitrail.train.tasks import TaskObjective

EPSILON = 1e-6  # of a patch's variance


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


def own_objective(given: object) -> Objective | None:
    """Take an objective of one's own; None where it is a word or a configuration. Refuses one that lacks a method."""
    if given is None or isinstance(given, str | Mapping | objectives.Objective):
        return None
    missing = [name for name in ("build", "inputs", "compute_loss") if not hasattr(given, name)]
    if missing or isinstance(given, type):
        got = f"the class {given.__name__}: call it" if isinstance(given, type) else f"one missing {', '.join(missing)}"
        raise ConfigError(f"an objective is an object that has build, inputs, compute_loss; got {got}.")
    return given  # pyright: ignore[reportReturnType]


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


class Classification:
    """The labels of the images: the paper's supervised training and fine-tuning; `images` are those of each class."""

    counts = True

    def __init__(self, module: Model, config: Training, images: NDArray[np.int64] | None = None) -> None:
        self.module, self.config = module, config
        self.weights = self.moved = None
        device = next(module.parameters()).device
        if images is not None and config.class_weights is not None:
            self.weights = torch.tensor(weights_of(images, config.class_weights), dtype=torch.float32, device=device)
        if images is not None and config.logit_adjustment:
            moved = config.logit_adjustment * log_priors(images)
            self.moved = torch.tensor(moved, dtype=torch.float32, device=device)

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
        if self.moved is not None:
            asked = asked.float() + self.moved
        targets = smooth(batch.targets, config.label_smoothing)
        kind = "sigmoid" if config.loss == "sigmoid" else "softmax"
        losses = loss_of(asked, targets, kind, weights=self.weights, focal=config.focal)
        with torch.no_grad():
            known = batch.targets.amax(dim=1) > 0
            correct = known & (outputs.argmax(dim=1) == batch.targets.argmax(dim=1))
        return Losses(losses, correct.double())


class MaskedPatchPrediction:
    """Masked patch prediction (Section 4.6, Appendix B.1.2): corrupts patches, and asks for what was there."""

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


class MaskedAutoencoding:
    """Masked autoencoding (He et al., 2022): hides patches, and asks for their pixels."""

    counts = False

    def __init__(self, model: Model, objective: MaskedAutoencoder, *, seed: int) -> None:
        self.encoder, self.objective, self.seed = suitable(model, objective), objective, seed
        self.module: nn.Module = MaskedAutoencoderModel(self.encoder, objective, seed=seed)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The images, and which patches are seen and which are not: a function of (seed, epoch, sample)."""
        parted = choose_visible(draw_patches(self.encoder, batch, self.seed, 1), self.objective.masked)
        return (batch.images, *(upload(places, batch.images.device) for places in parted))

    def compute_loss(self, outputs: Tensor, batch: Batch, inputs: tuple[Tensor, ...]) -> Losses:
        """Compare with the pixels of the hidden patches alone; each image's mean."""
        images, _, hidden = inputs
        wanted = take(patchify(images.float(), self.encoder.config.stem.stride), hidden)
        if self.objective.normalized:
            mean, deviation = scale_of(wanted)
            wanted = (wanted - mean) / deviation
        return pixel_losses(outputs, wanted)


def scale_of(patches: Float[Tensor, "B M P"]) -> tuple[Float[Tensor, "B M 1"], Float[Tensor, "B M 1"]]:
    """Give the mean and the deviation of every patch, all its channels together."""
    return patches.mean(dim=2, keepdim=True), (patches.var(dim=2, keepdim=True) + EPSILON).sqrt()


class NextPixelPrediction:
    """Next pixels (iGPT, Chen et al., 2020): images as colors of a palette, each asked from those before it."""

    counts = True

    def __init__(self, model: Model, objective: NextPixels, palette: Float[Tensor, "K C"]) -> None:
        self.encoder = suitable(model, objective)
        self.module: nn.Module = NextPixelModel(self.encoder, palette)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The number of every pixel's colour."""
        assert isinstance(self.module, NextPixelModel)
        pixels = batch.images.permute(0, 2, 3, 1)  # B H W C
        palette = gathered(self.module.palette.detach())
        return (nearest(pixels.flatten(0, 2), palette).unflatten(0, pixels.shape[:3]),)

    def compute_loss(self, outputs: Tensor, batch: Batch, inputs: tuple[Tensor, ...]) -> Losses:
        """Compare at every pixel, the first too; each image's mean."""
        return class_losses(outputs, inputs[0].flatten(1))


# An objective with its module, what is called and trained; `counts` where its answers are correct or not.
Labelled = Classification | TaskObjective  # learned from labels or targets, by the model itself
BuiltObjective = OwnObjective | Labelled | MaskedPatchPrediction | MaskedAutoencoding | NextPixelPrediction
