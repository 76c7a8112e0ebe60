"""What is random about an image after its crop, and the way to the numbers a model reads: a batch at a time.

Every number is a hash of (seed, epoch, sample, purpose), drawn on the CPU; a batch of one gives an image what a batch
of a thousand gives it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Num, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation
from vitrail.data.source import Batch
from vitrail.data.transforms import color, geometry, mixing, randaugment
from vitrail.errors import ShapeError
from vitrail.ops.constants import constant, upload
from vitrail.ops.random import Purpose, draws

Images = Num[Tensor, "B C H W"]  # uint8, or real where there is a range of values
Reals = NDArray[np.float64]

CHUNK = 32  # images that a worker augments at once: what they need beside stays in its core's cache
BLUR = (0.1, 2.0)  # deviations in pixels, as of three-augment
ERASED = (0.02, 1 / 3)  # shares of the image
SLANT = (0.3, 1 / 0.3)  # aspects of what is erased


class Stage(NamedTuple):
    """An augmentation: what its numbers are drawn for, how many an image takes, and the function of them."""

    purpose: int  # a new one takes a number that no `Purpose` has
    slots: int | Callable[[Any], int]  # of the field's value
    apply: Callable[[Images, Reals, Any], Images]  # to images, their numbers and the field's value


@dataclass
class BatchTransform:
    """Flips, augments, scales and mixes a batch, where its images are; a function of (seed, epoch, sample) alone."""

    config: Augmentation
    preprocessing: Preprocessing
    classes: int
    seed: int

    def augment(self, batch: Batch) -> Batch:
        """Flip, three-augment, jitter, RandAugment and erase alone, in whole levels."""
        if not len(batch.labels):
            return batch
        u, images = self._draws(batch), torch.empty_like(batch.images)
        for start in range(0, len(images), CHUNK):
            some = slice(start, start + CHUNK)
            images[some] = augment(batch.images[some], {what: part[some] for what, part in u.items()}, self.config)
        return batch._replace(images=images)

    def __call__(self, batch: Batch, *, augmented: bool = False) -> Batch:
        """Give float images and the shares of the classes; `augmented` images are only scaled and mixed."""
        images, labels, samples, places = batch[:4]
        if not len(images) == len(labels) == len(samples) == len(places):
            raise ShapeError(
                f"expected as many labels, samples and places as images; got {len(images)} images, {len(labels)} "
                f"labels, {len(samples)} samples, {len(places)} places."
            )
        if not len(images):  # a rank without a share of the last step
            return batch._replace(images=images.float(), targets=torch.zeros(0, self.classes, device=images.device))
        config, u = self.config, self._draws(batch)
        real = scale(images if augmented else augment(images, u, config), self.preprocessing)
        if Purpose.MIXING not in u:
            if batch.targets is None:
                targets = mixing.soft_targets(labels, labels, torch.ones_like(real[:, 0, 0, 0]), self.classes)
                batch = batch._replace(targets=targets)
            return batch._replace(images=real)
        mix = mixing.plan(
            places.numpy(),
            config.mix_block,
            u[Purpose.MIXING],
            config.mixup,
            config.cutmix,
            (images.shape[-2], images.shape[-1]),
            batch.absent.numpy(),
        )
        partner = upload(mix.partner, images.device)
        numbers = upload(np.column_stack([mix.weight, mix.boxes]).astype(np.float32), images.device)
        weight, other = numbers[:, 0], real.index_select(0, partner)
        if config.mixup:
            # What CutMix mixes has the weight of its area in the targets, and all of itself here.
            cut = numbers[:, 3] * numbers[:, 4] > 0
            real = mixing.mixup(real, other, torch.where(cut, 1, weight) if config.cutmix else weight)
        if config.cutmix:
            real = mixing.cutmix(real, other, numbers[:, 1:])
        if batch.targets is None:
            targets = mixing.soft_targets(labels, labels.index_select(0, partner), weight, self.classes)
        else:
            targets = mixing.between(batch.targets, batch.targets.index_select(0, partner), weight)
        return batch._replace(images=real, targets=targets)

    def _draws(self, batch: Batch) -> dict[int, Reals]:
        slots, samples = draw_slots(self.config), batch.samples.numpy()
        return {what: draws(samples, count, self.seed, batch.epoch, what) for what, count in slots.items()}


def draw_slots(config: Augmentation) -> dict[int, int]:
    """How many numbers each stage in use takes for a sample."""
    found: dict[int, int] = {Purpose.CROP: geometry.SLOTS} if config.crop == "inception" else {}
    for field, stage in STAGES.items():
        if value := getattr(config, field):
            found[stage.purpose] = stage.slots if isinstance(stage.slots, int) else stage.slots(value)
    return found | ({Purpose.MIXING: mixing.SLOTS} if config.mixup or config.cutmix else {})


def augment(images: Images, u: Mapping[int, Reals], config: Augmentation) -> Images:
    """Apply the stages that keep whole levels; the numbers of a stage that is not in use are not there."""
    for field, stage in STAGES.items():
        if stage.purpose in u:
            images = stage.apply(images, u[stage.purpose], getattr(config, field))
    return images


def mirror(images: Images, u: Reals, _: object = None) -> Images:
    """Flip half of the images; numbers B 1."""
    return geometry.flip(images, upload((u[:, 0] < 0.5).astype(np.int32), images.device))


def three_augment(images: Images, u: Reals, _: object = None) -> Images:
    """Make each image grey, solarised or blurred, one of them (Touvron et al., 2022); numbers B 2."""
    kind = np.floor(u[:, 0] * 3).astype(np.int64)
    order = np.argsort(kind, kind="stable")
    first, second = (int(edge) for edge in np.searchsorted(kind[order], [1, 2]))
    moves = upload(np.stack([order, np.argsort(order)]), images.device)
    deviation = upload((BLUR[0] + u[order, 1] * (BLUR[1] - BLUR[0])).astype(np.float32), images.device)
    images = images.index_select(0, moves[0])
    half = torch.full((second - first,), 128, dtype=torch.int32, device=images.device)
    parts = [
        color.grayscale(images[:first]),
        color.solarize(images[first:second], half),
        color.blur(images[second:], deviation[second:], BLUR[1]),
    ]
    return torch.cat(parts).index_select(0, moves[1])


def jitter(images: Images, u: Reals, strength: float) -> Images:
    """Change brightness, contrast and saturation, in this order, by factors within the strength of 1; numbers B 3."""
    factors = upload(np.maximum(1 + (2 * u - 1) * strength, 0).astype(np.float32), images.device)
    images = color.brightness(images, factors[:, 0])
    return color.saturation(color.contrast(images, factors[:, 1]), factors[:, 2])


def erase(images: Images, u: Reals, probability: float) -> Images:
    """Put noise, uniform over the levels, into a box of some images (Zhong et al., 2020); numbers B 6."""
    chosen = np.flatnonzero(u[:, 0] < probability)
    if not len(chosen):
        return images
    height, width = images.shape[-2:]
    area = (ERASED[0] + u[chosen, 1] * (ERASED[1] - ERASED[0])) * height * width
    aspect = SLANT[0] * (SLANT[1] / SLANT[0]) ** u[chosen, 2]
    tall = np.clip(np.rint(np.sqrt(area / aspect)), 1, height)
    wide = np.clip(np.rint(np.sqrt(area * aspect)), 1, width)
    top, left = np.floor(u[chosen, 3] * (height - tall + 1)), np.floor(u[chosen, 4] * (width - wide + 1))
    index = upload(chosen, images.device)
    boxes = upload(np.stack([top, left, tall, wide], axis=1).astype(np.float32), images.device)
    keys = upload((np.floor(u[chosen, 5] * 2.0**32) - 2.0**31).astype(np.int32), images.device)
    part = images.index_select(0, index)
    mask = geometry.inside(boxes, height, width)
    return images.index_copy(0, index, torch.where(mask, noise(keys, part.shape[1:]), part))


def noise(keys: Int[Tensor, " B"], shape: torch.Size) -> UInt8[Tensor, "B ..."]:
    """Hash (key, place) to levels: the same on every device."""
    places = torch.arange(shape.numel(), dtype=torch.int32, device=keys.device)
    value = keys[:, None] + places * -1640531527  # the golden ratio of 2**32; products wrap
    for shift, factor in ((16, 0x7FEB352D), (15, -2073254261)):
        value = (value ^ ((value >> shift) & (0xFFFFFFFF >> shift))) * factor
    return ((value >> 24) & 0xFF).to(torch.uint8).unflatten(1, shape)


# By the field of `Augmentation`, in the order in which they are applied: a new one is a field, a function and a row.
STAGES = {
    "flip": Stage(Purpose.FLIP, 1, mirror),
    "three_augment": Stage(Purpose.THREE_AUGMENT, 2, three_augment),
    "jitter": Stage(Purpose.JITTER, 3, jitter),
    "randaugment": Stage(Purpose.RANDAUGMENT, randaugment.slots, randaugment.randaugment),
    "random_erasing": Stage(Purpose.ERASING, 6, erase),
}


def scale(images: Images, preprocessing: Preprocessing) -> Float[Tensor, "B C H W"]:
    """Turn levels into the numbers a model reads: less the mean, by the deviation, both of levels from 0 to 1."""
    mean, deviation = _levels(*_of(preprocessing, images.shape[1]), images.device)
    real = images.to(torch.float32, copy=True)
    return real.sub_(mean).div_(deviation)  # in place: new memory costs more than the arithmetic


def unscale(images: Float[Tensor, "B C H W"], preprocessing: Preprocessing) -> Float[Tensor, "B C H W"]:
    """Turn the numbers that a model reads back into levels from 0 to 255."""
    mean, deviation = _levels(*_of(preprocessing, images.shape[1]), images.device)
    return images * deviation + mean


def _of(preprocessing: Preprocessing, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if len(preprocessing.mean) not in (1, channels):
        preprocessing = preprocessing.for_channels(channels)
    return preprocessing.mean, preprocessing.deviation


@constant
def _levels(mean: tuple[float, ...], deviation: tuple[float, ...], device: torch.device) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(part, device=device)[:, None, None] * 255 for part in (mean, deviation))
