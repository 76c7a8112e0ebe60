"""Inductive bias made visible: what a model does when images move, or lose or exchange their patches."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.config.check import number, one_of, whole
from vitrail.errors import ConfigError, ShapeError
from vitrail.inspection.attention import observe
from vitrail.inspection.layers import LayerFeatures
from vitrail.inspection.views import AT_ONCE, check_pictures, to_model, unwrap
from vitrail.models import BiT, Model, ViT, eval_mode
from vitrail.ops.metrics import mean_interval, wilson
from vitrail.ops.patches import patchify, unpatchify
from vitrail.ops.random import Purpose, draws

Change = Literal["drop", "shuffle"]


class Agreement(NamedTuple):
    """How like the answers to changed images are those to the images as they were; the mean over the images.

    Intervals are of 95 %: Student's of a mean, NaN of one image, and Wilson's of a share.
    """

    cosine: Float[Tensor, " S"]  # of the representations
    same: Float[Tensor, " S"]  # share of images with the same first answer; NaN of a model without classes
    cosine_interval: Float[Tensor, "S 2"]
    same_interval: Float[Tensor, "S 2"]


class Moved(NamedTuple):
    """What images moved to the right change."""

    cosine: Float[Tensor, " S"]
    same: Float[Tensor, " S"]
    maps: Float[Tensor, " S"]  # cosine of the features with those that moved along with the image
    cosine_interval: Float[Tensor, "S 2"]
    same_interval: Float[Tensor, "S 2"]
    maps_interval: Float[Tensor, "S 2"]


class Answers(NamedTuple):
    """What a model makes of images."""

    representation: Float[Tensor, "B D"]
    first: Int64[Tensor, " B"] | None  # the first answer, of a model with classes
    maps: Float[Tensor, "B D rows cols"]


def stride_of(model: nn.Module) -> int:
    """Give the pixels from one feature to the next."""
    inside = unwrap(model)
    if isinstance(inside, ViT):
        return inside.config.stem.stride
    assert isinstance(inside, BiT)
    return 4 * 2 ** (len(inside.stages) - 1)  # root and pooling halve, and every stage after the first


def shift_agreement(
    model: nn.Module, images: Float[Tensor, "B C H W"], shifts: Sequence[int], before: Answers | None = None
) -> Moved:
    """Move images to the right by so many pixels, mirrored at the edge, and compare what the model makes of them.

    Features that move with the image (`maps` near 1) are what a convolution gives; a Vision Transformer is shown other
    patches unless the shift is a whole number of them, and other positions always. `before` is `answers_of` the
    images, where that is known.
    """
    inside = unwrap(model)
    check_pictures(images)
    if not shifts:
        raise ConfigError("expected a shift at least, in pixels; got none.")
    moves = [whole("shift", shift, least=0, most=images.shape[3] - 1) for shift in shifts]
    rows, stride = [], stride_of(inside)
    ours = answers_of(inside, images) if before is None else before
    for move in moves:
        theirs = answers_of(inside, moved(images, move)) if move else ours
        along = _moved_along(ours.maps, move / stride)
        left = min(-(-move // stride), along.shape[3] - 1)  # what came in from the edge is not compared
        maps = F.cosine_similarity(theirs.maps[:, :, :, left:], along[:, :, :, left:], dim=1).mean(dim=(1, 2))
        rows.append((*_compared(ours, theirs), _cosine(maps)))
    return Moved(*_columns(rows))


def patch_agreement(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    shares: Sequence[float],
    *,
    change: Change,
    patch: int | None = None,
    seed: int = 0,
    before: Answers | None = None,
) -> Agreement:
    """Make a share of the patches grey, or exchange them among themselves, and compare what the model makes of it.

    `patch` is a side in pixels: the model's own unless it is said. Which patches is a function of the seed, the image's
    number and nothing else; a larger share holds the smaller ones. `before` is `answers_of` the images, where that is
    known.
    """
    inside = unwrap(model)
    check_pictures(images)
    one_of("change", change, ("drop", "shuffle"))
    if not shares:
        raise ConfigError("expected a share of the patches at least; got none.")
    for share in shares:
        if not 0 <= number("share", share) <= 1:
            raise ConfigError(f"a share of the patches is from 0 to 1; got {share}.")
    side = _usual_patch(inside, images) if patch is None else whole("patch", patch)
    if images.shape[2] % side or images.shape[3] % side:
        raise ShapeError(
            f"patches of {side} pixels must fill the images; got {images.shape[2]}x{images.shape[3]}. Say patch=."
        )
    ours = answers_of(inside, images) if before is None else before
    rows = [
        _compared(ours, answers_of(inside, changed(images, share, change, side, seed)) if share else ours)
        for share in shares
    ]
    return Agreement(*_columns(rows))


def moved(images: Float[Tensor, "B C H W"], pixels: int) -> Float[Tensor, "B C H W"]:
    """Move images to the right; what comes in at the left is mirrored."""
    return F.pad(images, (pixels, 0, 0, 0), mode="reflect")[:, :, :, : images.shape[3]] if pixels else images


def changed(
    images: Float[Tensor, "B C H W"], share: float, change: Change, patch: int, seed: int
) -> Float[Tensor, "B C H W"]:
    """Make a share of the patches grey, or exchange them in a circle."""
    grid = (images.shape[2] // patch, images.shape[3] // patch)
    patches = patchify(images, patch).clone()
    count = round(share * patches.shape[1])
    order = np.argsort(draws(np.arange(len(images)), patches.shape[1], seed, 0, Purpose.SPOILING), axis=1)
    chosen = torch.from_numpy(order[:, :count].copy()).to(images.device)[:, :, None].expand(-1, -1, patches.shape[2])
    taken = patches.gather(1, chosen).roll(1, dims=1) if change == "shuffle" else torch.zeros_like(chosen).to(patches)
    return unpatchify(patches.scatter(1, chosen, taken), patch, grid)


def answers_of(model: Model, images: Float[Tensor, "B C H W"], features: LayerFeatures | None = None) -> Answers:
    """Ask a model, some images at a time; `features` are given what every layer makes of them."""
    parts = []
    with eval_mode(model):
        for some in to_model(model, images).split(AT_ONCE):
            if isinstance(model, ViT):
                tokens = observe(model, some, (), features)
                representation = model.read_out(tokens)
                maps = tokens[:, model.config.leading :].transpose(1, 2).unflatten(2, model.grid_of(some))
            else:
                every = model.feature_map(some, [-1] if features is None else range(model.layers))
                if features is not None:
                    for stage, each in enumerate(every):
                        features.add(stage, each)
                maps = every[-1]
                representation = maps.mean(dim=(2, 3))
            parts.append((representation.float(), model.head(representation).argmax(dim=1), maps.float()))
    made = Answers(*(torch.cat(part) for part in zip(*parts, strict=True)))
    return made if model.config.classes else made._replace(first=None)


Measured = tuple[float, float, float]  # a mean, and the ends of its interval


def _compared(ours: Answers, theirs: Answers) -> tuple[Measured, Measured]:
    cosine = _cosine(F.cosine_similarity(ours.representation, theirs.representation, dim=1))
    if ours.first is None or theirs.first is None:
        return cosine, (math.nan, math.nan, math.nan)
    equal, images = int((ours.first == theirs.first).sum()), len(ours.first)
    return cosine, (equal / images, *wilson(equal, images))


def _cosine(values: Float[Tensor, " B"]) -> Measured:
    """Give the mean of cosines, none of which lies beyond -1 or 1."""
    low, high = np.clip(mean_interval(values.cpu().numpy()), -1, 1)
    return float(values.mean()), float(low), float(high)


def _columns(rows: Sequence[Sequence[Measured]]) -> list[Tensor]:
    """Give what was measured, one after another, then the intervals."""
    table = torch.tensor(rows)  # S parts 3
    return [*table[:, :, 0].unbind(1), *table[:, :, 1:].unbind(1)]


def _moved_along(maps: Float[Tensor, "B D rows cols"], cells: float) -> Float[Tensor, "B D rows cols"]:
    """Move features to the right by cells and parts of cells, linearly between them; the edge goes on."""
    whole_cells, part = int(cells), cells - int(cells)
    padded = F.pad(maps, (whole_cells + 1, 0, 0, 0), mode="replicate")
    near, far = padded[:, :, :, 1 : 1 + maps.shape[3]], padded[:, :, :, : maps.shape[3]]
    return near * (1 - part) + far * part


def _usual_patch(model: Model, images: Tensor) -> int:
    """Give the side of the model's patches; of a ResNet, whose features are coarser, 16 pixels or what fits."""
    own = (stride_of(model),) if isinstance(model, ViT) else ()
    sides = (*own, 16, 14, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1)
    return next(side for side in sides if not any(length % side for length in images.shape[2:]))
